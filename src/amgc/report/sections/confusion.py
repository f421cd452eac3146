"""Confusion matrices after the last task, and the most frequent confusions.

Confusions are those of one run, not of all seeds: each seed has its own order of classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from amgc.report.charts import MAX_SMALL, Heat, heat_map
from amgc.report.sections import Comparison, Table, render, section
from amgc.runs import RunRecord
from amgc.text import DASH, percent

MAX_PAIRS = 10  # confused pairs that are listed


@section("confusion", "Confused classes", order=60)
def confusion(comparison: Comparison) -> Markup | None:
    if not comparison.begun:
        return None
    shown: list[dict[str, Any]] = []
    for method, run, last in comparison.recorded(lambda observed: observed[-1]):
        counts = {(true, predicted): count for true, predicted, count in last.confusion}
        found = Confusion(run, counts, tuple(run.metrics.total[last.task]))
        pairs = found.pairs(MAX_PAIRS)
        often = "; ".join(f"{one} predicted as {other}, {count} times" for one, other, count, _ in pairs[:3])
        text = f"Most frequent: {often}." if pairs else "No confusions."
        figure = heat_map(comparison.identity("confusion", method), f"Confusion of {method.name}", text, found.heat())
        shown.append({
            "method": method,
            "run": found.run,
            "figure": figure,
            "pairs": pairs,
            "classes": Table(["class", "accuracy", "mostly predicted as", "%"], found.rows(), f"{method.name}, all classes, %"),
            "pointer": found.pointer() if len(found.totals) > MAX_SMALL else None,
        })  # fmt: skip
    return render(
        TEMPLATE,
        shown=shown,
        missing=comparison.missing([item["method"] for item in shown]),
        square_root=any(item["pointer"] for item in shown),
    )


@dataclass(frozen=True)
class Confusion:
    """Counts of (true, predicted) after the last task of a run; classes are numbered in order of arrival."""

    run: RunRecord
    counts: dict[tuple[int, int], int]
    totals: tuple[int, ...]  # test images of each class

    @property
    def names(self) -> tuple[str, ...]:
        return self.run.class_names[: len(self.totals)]

    def pairs(self, most: int) -> list[tuple[str, str, int, float]]:
        """Return the most frequent confusions: class, predicted class, count, and share of the class's images."""
        wrong = [(cell, count) for cell, count in self.counts.items() if cell[0] != cell[1]]
        ranked = sorted(wrong, key=lambda pair: (-pair[1], pair[0]))[:most]
        return [(self.names[i], self.names[j], count, count / self.totals[i]) for (i, j), count in ranked]

    def rows(self) -> list[list[str]]:
        """Return for each class its accuracy, the class that it is confused with most often, and how often."""
        worst: dict[int, tuple[int, int]] = {}  # count and negative label, so that the earliest class wins a tie
        for (true, predicted), count in self.counts.items():
            if true != predicted:
                worst[true] = max(worst.get(true, (0, 0)), (count, -predicted))
        rows = []
        for true, images in enumerate(self.totals):
            count, other = worst.get(true, (0, 0))
            confused = [self.names[-other], percent(count / images)] if count else [DASH, DASH]
            rows.append([self.names[true], percent(self.counts.get((true, true), 0) / images), *confused])
        return rows

    def heat(self) -> Heat:
        cells = {cell: count / self.totals[cell[0]] for cell, count in self.counts.items()}
        written = {}
        if len(self.names) <= MAX_SMALL:  # with numbers, empty cells are drawn as well
            everywhere = [(i, j) for i in range(len(self.names)) for j in range(len(self.names))]
            cells = {cell: cells.get(cell, 0.0) for cell in everywhere}
            written = {cell: f"{100 * share:.0f}" if share else "" for cell, share in cells.items()}
        else:  # without numbers, the square root makes rare confusions visible
            cells = {cell: math.sqrt(share) for cell, share in cells.items()}
        scale = [(math.sqrt(share / 100), f"{share} %") for share in (1, 5, 25, 50, 100)]
        blocks = task_blocks(self.run, self.names)
        return Heat(self.names, cells, written, rows="true class", columns="predicted class", scale=scale, blocks=blocks)

    def pointer(self) -> dict[str, Any]:
        """Return what page.js needs to name the cell under the pointer."""
        counts = [[*cell, count] for cell, count in self.counts.items()]
        return {"names": self.names, "totals": self.totals, "counts": counts}


def task_blocks(run: RunRecord, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return names and sizes of the tasks, for a heat map with too many classes to name them."""
    return [(f"T{task + 1}", size) for task, size in enumerate(run.sizes[: run.done])] if len(names) > MAX_SMALL else []


TEMPLATE = """
{% if shown %}
<p>Percentage of the test images of each class (row) that were predicted as each class (column) after the last task. Classes are
in order of arrival.{% if square_root %} The colour shows the square root of the share, so that rare confusions are visible.
{% endif %}</p>
{% for item in shown %}
<details class="method"{{ " open" if loop.first }}>
  <summary>{{ parts.method(item.method) }}{{ parts.seed(item.method, item.run) }}</summary>
  <div class="beside">
    <figure>
      {{ parts.scrolling("Confusion of " ~ item.method.name, item.figure) }}
      {% if item.pointer %}
      <p class="readout soft" aria-hidden="true" hidden>Point at a cell to read it.</p>
      <script type="application/json" class="cells">{{ item.pointer|tojson }}</script>
      {% endif %}
    </figure>
    <div>
      {% if item.pairs %}
      <table class="pairs">
        <caption>Most frequent confusions</caption>
        <thead><tr><th scope="col">class</th><th scope="col" class="words">predicted as</th>
          <th scope="col">images</th><th scope="col">%</th></tr></thead>
        <tbody>
        {% for one, other, count, share in item.pairs %}
        <tr><th scope="row">{{ parts.named(one) }}</th><td class="words">{{ parts.named(other) }}</td>
          <td>{{ count }}</td><td>{{ percent(share) }}</td></tr>
        {% endfor %}
        </tbody>
      </table>
      {% else %}<p>No confusions.</p>{% endif %}
      <details class="data">
        <summary>All classes</summary>
        {{ parts.table(item.classes) }}
      </details>
    </div>
  </div>
</details>
{% endfor %}
{% endif %}
{{ parts.missing(missing, "Runs of an older version of amgc, which did not record confusions") }}
"""
