"""Results: LA, AIA, forgetting and first-task accuracy of each method, with the paper's numbers."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from amgc.report.charts import percent_spread
from amgc.report.sections import Comparison, render, section
from amgc.runs import DEFINITIONS


@section("results", "Results", order=10)
def results(comparison: Comparison) -> Markup:
    rows: list[dict[str, Any]] = []
    for method in comparison.methods:
        latest = method.after(lambda metrics: metrics.accuracy)[-1] if method.done and not method.finished else None
        rows.append(
            {
                "method": method,
                "LA": method.last_accuracy,
                "AIA": method.average_incremental_accuracy,
                "forgetting": method.at_end(lambda metrics: metrics.forgetting),
                "first": method.at_end(lambda metrics: metrics.first_task_accuracy[-1]),
                "latest": None if latest is None else f"{percent_spread(latest)} so far",
            }
        )
    paper = any(method.paper for method in comparison.methods)
    definitions = [(name, DEFINITIONS[name]) for name in ("LA", "AIA", "forgetting", "first task")]
    if comparison.several_seeds:
        definitions.append(("±", "standard deviation over the seeds (n − 1) of the finished runs"))
    if paper:
        definitions.append(("paper", "what the paper reports for this data and these tasks"))
    return render(TEMPLATE, comparison=comparison, rows=rows, paper=paper, definitions=definitions)


TEMPLATE = """
<div class="scroll" tabindex="0" role="region" aria-label="Results of {{ comparison.data }}">
<table class="main">
  <caption class="aside">Accuracies in percent after the last task</caption>
  <thead>
    <tr><th scope="col">method</th><th scope="col" class="barred">LA</th>{% if paper %}<th scope="col">LA, paper</th>{% endif %}
    <th scope="col">AIA</th>{% if paper %}<th scope="col">AIA, paper</th>{% endif %}
    <th scope="col">forgetting</th><th scope="col">first task</th><th scope="col" class="words">runs</th></tr>
  </thead>
  <tbody>
  {% for row in rows %}
  <tr>
    <th scope="row">{{ parts.method(row.method) }}</th>
    <td class="barred"><span class="amount">{{ spread(row.LA) }}</span>
      {%- if row.LA %}<span class="track" aria-hidden="true">
        <span style="width:{{ "%.1f"|format(100 * row.LA.mean) }}%"></span></span>{% endif %}</td>
    {% if paper %}<td>{{ "%.1f"|format(row.method.paper.LA) if "LA" in row.method.paper else "–" }}</td>{% endif %}
    <td>{{ spread(row.AIA) }}</td>
    {% if paper %}<td>{{ "%.1f"|format(row.method.paper.AIA) if "AIA" in row.method.paper else "–" }}</td>{% endif %}
    <td>{{ spread(row.forgetting) }}</td>
    <td>{{ spread(row.first) }}</td>
    <td class="words">{{ row.method.state }}{% if row.latest %}, {{ row.latest }}{% endif %}</td>
  </tr>
  {% endfor %}
  </tbody>
</table>
</div>
{% if not comparison.begun %}<p>No run has finished a task yet.</p>{% endif %}
<p class="soft">Percentages; forgetting in percentage points.</p>
{{ parts.definitions(definitions) }}
"""
