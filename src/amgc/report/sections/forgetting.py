"""Forgetting and backward transfer of each method."""

from __future__ import annotations

from markupsafe import Markup

from amgc.report.groups import Spread, percent_spread
from amgc.report.html import bar, method_cell
from amgc.report.sections import Comparison, Table, html_table, render, section
from amgc.runs import DEFINITIONS


@section("forgetting", "Forgetting", order=40)
def forgetting(comparison: Comparison) -> Markup | None:
    shown = []
    for method in comparison.begun:
        value = Spread.of([run.metrics.forgetting for run in method.counted])
        if value is not None:
            shown.append((method, value, Spread.of([run.metrics.backward_transfer for run in method.counted])))
    if not any(method.done > 1 for method in comparison.begun):
        return None
    scale = 100 / max([0.01, *[value.mean + (value.std or 0) for _, value, _ in shown]])
    rows = []
    for method, value, backward in shown:
        low, high = (max(0, scale * (value.mean + side * (value.std or 0))) for side in (-1, 1))
        drawn = bar(percent_spread(value), [max(0, scale * value.mean)], (low, high) if value.std else None)
        rows.append([method_cell(method), drawn, percent_spread(backward)])
    table = Table(["method", "forgetting", "BWT"], rows, "Forgetting and backward transfer, percentage points")
    return render(
        TEMPLATE,
        table=html_table(table, main=True, classes={1: "barred wide"}),
        unfinished=any(not method.finished for method, _, _ in shown),
        definitions=[(name, DEFINITIONS[name]) for name in ("forgetting", "BWT")],
    )


TEMPLATE = """
{{ table }}
{% if unfinished %}<p class="soft">For unfinished runs, the finished tasks count.</p>{% endif %}
{{ parts.definitions(definitions) }}
"""
