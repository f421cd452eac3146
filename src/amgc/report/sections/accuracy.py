"""Accuracy after each task: one line per method."""

from __future__ import annotations

from markupsafe import Markup

from amgc.report.charts import Line, line_chart
from amgc.report.groups import percent_spread
from amgc.report.sections import Comparison, Table, render, section
from amgc.runs import DEFINITIONS


@section("accuracy", "Accuracy after each task", order=20)
def accuracy(comparison: Comparison) -> Markup | None:
    if not comparison.begun:
        return None
    lines = [Line.of(method, lambda metrics: metrics.accuracy, method.name, method.place) for method in comparison.begun]
    text = "; ".join(f"{line.name} from {100 * line.values[0].mean:.1f} to {line.end:.1f} %" for line in lines) + "."
    title = "Accuracy on all seen classes after each task"
    seen = comparison.methods[0].runs[0].metrics.seen
    rows = [
        [
            f"T{task + 1}",
            str(seen[task]),
            *[percent_spread(line.values[task]) if task < len(line.values) else "" for line in lines],
        ]
        for task in range(max(method.done for method in comparison.begun))
    ]
    header = ["after", "classes seen", *[line.name for line in lines]]
    return render(
        TEMPLATE,
        definition=DEFINITIONS["Tn"],
        bands=comparison.several_seeds,
        wide=line_chart(comparison.identity("accuracy"), title, text, lines, seen, "wide"),
        narrow=line_chart(comparison.identity("accuracy-narrow"), title, text, lines, seen, "narrow"),
        methods=comparison.begun,
        numbers=Table(header, rows, "accuracy after each task, %"),
    )


TEMPLATE = """
<p>T<sub>n</sub>: {{ definition }}.{% if bands %} Bands show one standard deviation over the seeds.{% endif %}</p>
<figure>
  {{ wide }}
  {{ narrow }}
  <div class="narrow">{{ parts.legend(methods) }}</div>
</figure>
{{ parts.numbers(numbers) }}
"""
