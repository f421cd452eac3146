"""Forgetting and backward transfer, as bars."""

from __future__ import annotations

from markupsafe import Markup

from amgc.report.groups import Spread
from amgc.report.sections import Comparison, render, section
from amgc.runs import DEFINITIONS


@section("forgetting", "Forgetting", order=40)
def forgetting(comparison: Comparison) -> Markup | None:
    rows = []
    for method in comparison.begun:
        value = Spread.of([run.metrics.forgetting for run in method.counted])
        if value is not None:
            rows.append((method, value, Spread.of([run.metrics.backward_transfer for run in method.counted])))
    if not any(method.done > 1 for method in comparison.begun):
        return None
    return render(
        TEMPLATE,
        data=comparison.data,
        rows=rows,
        scale=100 / max([0.01, *[value.mean + (value.std or 0) for _, value, _ in rows]]),
        unfinished=any(not method.finished for method, _, _ in rows),
        definitions=[(name, DEFINITIONS[name]) for name in ("forgetting", "BWT")],
    )


TEMPLATE = """
<div class="scroll" tabindex="0" role="region" aria-label="Forgetting of {{ data }}">
<table class="main">
  <caption class="aside">Forgetting and backward transfer, percentage points</caption>
  <thead><tr><th scope="col">method</th><th scope="col" class="barred wide">forgetting</th><th scope="col">BWT</th></tr></thead>
  <tbody>
  {% for method, value, backward in rows %}
  <tr>
    <th scope="row">{{ parts.method(method) }}</th>
    <td class="barred wide"><span class="amount">{{ spread(value) }}</span><span class="track" aria-hidden="true">
      {%- if value.mean > 0 %}<span style="width:{{ "%.1f"|format(value.mean * scale) }}%"></span>{% endif %}
      {%- if value.std %}<i style="left:{{ "%.1f"|format([0, (value.mean - value.std) * scale]|max) }}%;
        right:{{ "%.1f"|format(100 - [0, (value.mean + value.std) * scale]|max) }}%"></i>{% endif %}</span></td>
    <td>{{ spread(backward) }}</td>
  </tr>
  {% endfor %}
  </tbody>
</table>
</div>
{% if unfinished %}<p class="soft">For unfinished runs, the finished tasks count.</p>{% endif %}
{{ parts.definitions(definitions) }}
"""
