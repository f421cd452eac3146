"""Margins of each class and of each pair of classes after the last task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from amgc.report.charts import Heat, heat_map
from amgc.report.groups import MethodRuns
from amgc.report.sections import Comparison, Table, render, section
from amgc.report.sections.confusion import task_blocks
from amgc.report.svg import Frame, drawing, number, tag
from amgc.runs import RunRecord
from amgc.runs.observed import Margins
from amgc.text import DASH, shorten

MAX_NAMED = 40  # bars that are labelled with their class; with more, the tasks are labelled


@section("margins", "Margins", order=70)
def margins(comparison: Comparison) -> Markup | None:
    shown: list[dict[str, Any]] = []
    for method in comparison.begun:
        found = find_margins(method)
        if found is None:
            continue
        run, values = found
        names = run.class_names[: len(values.own)]
        largest, whose = max(zip(values.own, names, strict=True))
        text = f"From {min(values.own):.3g} to {largest:.3g}, the margin of {whose}."
        identity = comparison.identity("margins", method)
        header = ["class", "own margin", *(["largest against", "by"] if values.pairs else [])]
        rows = [margin_row(label, names, values) for label in range(len(names))]
        shown.append({
            "method": method,
            "run": run,
            "bars": class_bars(identity, f"Margins of {method.name}", text, names, values.own, run.sizes[: run.done]),
            "pairs": pair_map(f"{identity}-pairs", method, run, values),
            "numbers": Table(header, rows, f"{method.name}, margins"),
        })  # fmt: skip
    return render(TEMPLATE, shown=shown, missing=comparison.missing([item["method"] for item in shown])) if shown else None


def find_margins(method: MethodRuns) -> tuple[RunRecord, Margins] | None:
    """Return the margins of the first run that has one above zero after its last task."""
    for run, observed in method.recorded:
        if (found := observed[-1].margins) is not None and any(found.own):
            return run, found
    return None


def margin_row(label: int, names: Sequence[str], values: Margins) -> list[str]:
    row = [names[label], f"{values.own[label]:.3g}"]
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


def class_bars(
    identity: str, title: str, text: str, names: Sequence[str], values: Sequence[float], tasks: Sequence[int]
) -> Markup:
    """Draw a bar per class, in order of arrival, and boundaries between the tasks, whose sizes are `tasks`."""
    count = len(names)
    named = count <= MAX_NAMED
    letters = min(12, max(map(len, names))) if named else 0
    step = max(7.0, min(44.0, 640 / count))
    highest = max(values) or 1.0
    ticks = round_ticks(highest)
    frame = Frame(
        width=56 + step * count + 8,
        height=200 + (letters * 6.2 + 12 if named else 24),
        left=56,
        right=8,
        top=28,
        bottom=letters * 6.2 + 14 if named else 28,
        xs=(0, count),
        ys=(0, max(highest, ticks[-1])),
    )
    parts = [frame.axes([], ticks, "", "margin")]
    floor = frame.y(0)
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        top, left = frame.y(value), frame.x(place) + 0.15 * step
        tooltip = tag("title", f"{name}: {value:.3g}")
        parts.append(tag("rect", tooltip, x=left, y=top, width=0.7 * step, height=floor - top, class_="bar"))
        if named:
            parts.append(_name_below(name, frame.x(place + 0.5), floor, upright=letters * 6.2 < step))
    parts += _task_boundaries(frame, tasks, floor, named)
    return drawing(identity, frame.width, frame.height, title, text, *parts, class_="bars")


def round_ticks(highest: float) -> list[float]:
    """Return zero and a few round values up to the highest.

    >>> round_ticks(0.47), round_ticks(12)
    ([0.0, 0.1, 0.2, 0.3, 0.4], [0.0, 5.0, 10.0])
    """
    size = 10.0 ** math.floor(math.log10(highest))
    step = next(size * part for part in (0.1, 0.2, 0.5, 1, 2) if highest / (size * part) < 5)
    return [float(f"{step * place:.6g}") for place in range(int(highest / step) + 1)]


def _name_below(name: str, x: float, floor: float, upright: bool) -> Markup:
    turn = f"translate({number(x + 4)} {number(floor + 8)}) rotate(-90)"
    if upright:
        turn = f"translate({number(x)} {number(floor + 16)})"
    return tag("text", tag("title", name), shorten(name, 12), class_="tick middle" if upright else "tick end", transform=turn)


def _task_boundaries(frame: Frame, tasks: Sequence[int], floor: float, named: bool) -> list[Markup]:
    parts, at, last = [], 0, -math.inf
    for task, length in enumerate(tasks, 1):
        if at:
            parts.append(tag("path", d=f"M{number(frame.x(at))} {number(frame.top)}V{number(floor)}", class_="boundary"))
        middle = frame.x(at + length / 2)
        if not named and middle - last >= 26:
            parts.append(tag("text", f"T{task}", x=middle, y=floor + 17, class_="tick middle"))
            last = middle
        at += length
    return parts


TEMPLATE = """
<p>The loss requires more of old classes than a correct prediction: m<sub>k</sub> is subtracted from the score of the class,
and the margin of a pair is by how much the score of class k must exceed that of class j. New classes have no margin.</p>
{% for item in shown %}
<details class="method"{{ " open" if loop.first }}>
  <summary>{{ parts.method(item.method) }}{{ parts.seed(item.method, item.run) }}</summary>
  <div class="row">
  <figure>
    <figcaption>Margin of each class, in order of arrival</figcaption>
    {{ parts.scrolling("Margins of " ~ item.method.name, item.bars) }}
  </figure>
  {% if item.pairs %}
  <figure>
    <figcaption>Margin of each pair</figcaption>
    {{ parts.scrolling("Pairwise margins of " ~ item.method.name, item.pairs) }}
  </figure>
  {% endif %}
  </div>
  {{ parts.numbers(item.numbers) }}
</details>
{% endfor %}
{{ parts.missing(missing, "Without margins") }}
"""
