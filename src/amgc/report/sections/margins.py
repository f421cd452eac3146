"""Margins of each class and of each pair of classes after the last task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from amgc.report.charts import Heat, heat_map
from amgc.report.groups import MethodRuns
from amgc.report.html import bar
from amgc.report.sections import Comparison, Table, html_table, render, section
from amgc.report.sections.confusion import task_blocks
from amgc.runs import RunRecord
from amgc.runs.observed import Margins, Observed
from amgc.text import DASH


@section("margins", "Margins", order=70)
def margins(comparison: Comparison) -> Markup | None:
    shown: list[dict[str, Any]] = []
    for method, run, values in comparison.recorded(last_margins):
        names = run.class_names[: len(values.own)]
        header = ["class", "own margin", *(["largest against", "by"] if values.pairs else [])]
        rows = [margin_row(label, names, values) for label in range(len(names))]
        shown.append({
            "method": method,
            "run": run,
            "pairs": pair_map(comparison.identity("margins", method), method, run, values),
            "classes": html_table(Table(header, rows, f"Margins of {method.name}, in order of arrival"), classes={1: "barred"}),
        })  # fmt: skip
    return render(TEMPLATE, shown=shown, missing=comparison.missing([item["method"] for item in shown])) if shown else None


def last_margins(observed: Sequence[Observed]) -> Margins | None:
    """Return the margins after the last task if one is above zero."""
    found = observed[-1].margins
    return found if found is not None and any(found.own) else None


def margin_row(label: int, names: Sequence[str], values: Margins) -> list[str]:
    own = values.own[label]
    row = [names[label], bar(f"{own:.3g}", [100 * own / max(values.own)])]
    if not values.pairs:
        return row
    largest, other = max((value, -j) for j, value in enumerate(values.pairs[label]))
    return [*row, names[-other] if largest else DASH, f"{largest:.3g}"]


def pair_map(identity: str, method: MethodRuns, run: RunRecord, margins: Margins) -> Markup | None:
    """Draw by how much the score of the row's class must exceed that of the column's class."""
    values = {(i, j): value for i, row in enumerate(margins.pairs or ()) for j, value in enumerate(row) if i != j}
    if not values:
        return None
    names = run.class_names[: len(margins.own)]
    (one, two), highest = max(values.items(), key=lambda item: item[1])
    strength = {cell: value / (highest or 1) for cell, value in values.items()}
    written = {cell: f"{value:.1f}" if highest >= 1 else f"{value:.2f}" for cell, value in values.items()}
    scale = [(part, f"{part * highest:.2g}") for part in (0.25, 0.5, 0.75, 1)]
    heat = Heat(names, strength, written, "class k", "margin over class j", scale, task_blocks(run, names))
    text = f"Largest: {names[one]} over {names[two]}, {highest:.3g}."
    return heat_map(identity, f"Pairwise margins of {method.name}", text, heat)


TEMPLATE = """
<p>The loss requires more of old classes than a correct prediction: m<sub>k</sub> is subtracted from the score of the class,
and the margin of a pair is by how much the score of class k must exceed that of class j. New classes have no margin.</p>
{% for item in shown %}
<details class="method"{{ " open" if loop.first }}>
  <summary>{{ parts.method(item.method) }}{{ parts.seed(item.method, item.run) }}</summary>
  <div class="row">
  {{ item.classes }}
  {% if item.pairs %}
  <figure>
    <figcaption>Margin of each pair</figcaption>
    {{ parts.scrolling("Pairwise margins of " ~ item.method.name, item.pairs) }}
  </figure>
  {% endif %}
  </div>
</details>
{% endfor %}
{{ parts.missing(missing, "Without margins") }}
"""
