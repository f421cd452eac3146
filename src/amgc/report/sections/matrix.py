"""Accuracy on the classes of each task after each task, as heat maps."""

from __future__ import annotations

from markupsafe import Markup

from amgc.report.charts import MAX_SMALL, Heat, heat_map
from amgc.report.run_tables import evenly
from amgc.report.sections import Comparison, Table, render, section
from amgc.runs import DEFINITIONS
from amgc.text import percent


@section("matrix", "Accuracy on each task", order=30)
def matrix(comparison: Comparison) -> Markup | None:
    if not comparison.begun:
        return None
    shown = []
    for method in comparison.begun:
        tasks = evenly(method.done, MAX_SMALL)
        names = [str(task + 1) for task in tasks]
        cells = {(i, j): method.matrix[row][column] for i, row in enumerate(tasks) for j, column in enumerate(tasks[: i + 1])}
        written = {cell: f"{100 * value:.0f}" for cell, value in cells.items()}
        last = ", ".join(f"task {name} {written[len(names) - 1, j]} %" for j, name in enumerate(names))
        figure = heat_map(
            comparison.identity("matrix", method),
            f"Accuracy of {method.name} on each task after each task",
            f"After the last task: {last}.",
            Heat(names, cells, written, rows="after task", columns="on the classes of task"),
        )
        rows = [
            [f"T{name}", *[percent(cells[i, j]) if j <= i else "" for j in range(len(names))]] for i, name in enumerate(names)
        ]
        header = ["after", *[f"task {name}" for name in names]]
        shown.append((method, figure, Table(header, rows, f"{method.name}, accuracy on each task, %")))
    sampled = any(method.done > MAX_SMALL for method in comparison.begun)
    definition = DEFINITIONS["matrix"]
    return render(
        TEMPLATE, shown=shown, definition=definition, seeds=comparison.several_seeds, sampled=MAX_SMALL if sampled else None
    )


TEMPLATE = """
<p>{{ definition|capitalize }}. A column that fades downwards is a task that is being forgotten.
{% if seeds %}Values are means over the seeds. {% endif %}
{% if sampled %}{{ sampled }} tasks are shown, evenly chosen.{% endif %}</p>
<div class="multiples">
  {% for method, figure, numbers in shown %}
  <figure>
    <figcaption>{{ parts.method(method) }}</figcaption>
    {{ parts.scrolling("Matrix of " ~ method.name, figure) }}
    {{ parts.numbers(numbers) }}
  </figure>
  {% endfor %}
</div>
"""
