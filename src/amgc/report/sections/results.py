"""Results: LA, AIA, forgetting and first-task accuracy of each method, with the paper's numbers."""

from __future__ import annotations

from markupsafe import Markup

from amgc.report.groups import percent_spread
from amgc.report.html import bar, method_cell
from amgc.report.sections import Comparison, Table, html_table, render, section
from amgc.runs import DEFINITIONS
from amgc.text import DASH


@section("results", "Results", order=10)
def results(comparison: Comparison) -> Markup:
    paper = any(method.paper for method in comparison.methods)
    header = ["method", "LA", "AIA", "forgetting", "first task", "runs"]
    if paper:
        header = ["method", "LA", "LA, paper", "AIA", "AIA, paper", "forgetting", "first task", "runs"]
    rows = []
    for method in comparison.methods:
        la = method.last_accuracy
        cells = {
            "method": method_cell(method),
            "LA": bar(percent_spread(la), [100 * la.mean]) if la else DASH,
            "AIA": percent_spread(method.average_incremental_accuracy),
            "forgetting": percent_spread(method.at_end(lambda metrics: metrics.forgetting)),
            "first task": percent_spread(method.at_end(lambda metrics: metrics.first_task_accuracy[-1])),
            "runs": method.state,
        }
        cells |= {f"{key}, paper": f"{method.paper[key]:.1f}" if key in method.paper else DASH for key in ("LA", "AIA")}
        if method.done and not method.finished:
            cells["runs"] += f", {percent_spread(method.after(lambda metrics: metrics.accuracy)[-1])} so far"
        rows.append([cells[name] for name in header])
    definitions = [(name, DEFINITIONS[name]) for name in ("LA", "AIA", "forgetting", "first task")]
    if comparison.several_seeds:
        definitions.append(("±", "standard deviation over the seeds (n − 1) of the finished runs"))
    if paper:
        definitions.append(("paper", "what the paper reports for this data and these tasks"))
    table = Table(header, rows, "Accuracies in percent after the last task")
    return render(
        TEMPLATE,
        table=html_table(table, main=True, classes={1: "barred", len(header) - 1: "words"}),
        begun=comparison.begun,
        definitions=definitions,
    )


TEMPLATE = """
{{ table }}
{% if not begun %}<p>No run has finished a task yet.</p>{% endif %}
<p class="soft">Percentages; forgetting in percentage points.</p>
{{ parts.definitions(definitions) }}
"""
