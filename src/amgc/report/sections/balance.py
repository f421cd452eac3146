"""Accuracy on old and on new classes after each task, one small chart per method."""

from __future__ import annotations

from markupsafe import Markup

from amgc.report.charts import Line, line_chart
from amgc.report.groups import Spread, percent_spread
from amgc.report.sections import Comparison, Table, render, section
from amgc.runs import DEFINITIONS
from amgc.text import percent

OLD, NEW = 0, 1  # places, which determine colour and marker


@section("balance", "Old and new classes", order=50)
def balance(comparison: Comparison) -> Markup | None:
    shown = []
    for method in comparison.begun:
        if method.done < 2:
            continue
        old = Line.of(method, lambda metrics: metrics.old_accuracy, "old classes", OLD)
        new = Line.of(method, lambda metrics: metrics.new_accuracy, "new classes", NEW)
        ends = [percent(line.values[-1].mean) for line in (old, new)]
        figure = line_chart(
            comparison.identity("balance", method),
            f"Accuracy of {method.name} on old and on new classes",
            f"After task {method.done}: old classes {ends[0]} %, new classes {ends[1]} %.",
            [old, new],
            sorted(set(new.seen)),
            "small",
        )
        before: list[Spread | None] = [None, *old.values]
        rows = [[f"T{task + 1}", percent_spread(before[task]), percent_spread(value)] for task, value in enumerate(new.values)]
        table = Table(["after", "old", "new"], rows, f"{method.name}, accuracy on old and new classes, %")
        shown.append((method, figure, table))
    definitions = [(name, DEFINITIONS[name]) for name in ("old", "new")]
    return render(TEMPLATE, shown=shown, definitions=definitions, old=OLD, new=NEW) if shown else None


TEMPLATE = """
<p>If the lines coincide, the classifier favours neither old nor new classes. A gap is a bias, usually towards the classes that
were learned last.</p>
<ul class="legend"><li>{{ charts.swatch(old) }} old classes</li><li>{{ charts.swatch(new) }} new classes</li></ul>
<div class="multiples">
  {% for method, figure, numbers in shown %}
  <figure>
    <figcaption>{{ parts.named(method.name) }}</figcaption>
    {{ figure }}
    {{ parts.numbers(numbers) }}
  </figure>
  {% endfor %}
</div>
{{ parts.definitions(definitions) }}
"""
