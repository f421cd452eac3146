"""Accuracy against the number of classes seen, one line per run, labelled at its end.

matplotlib is imported when a plot is drawn, without pyplot: its global state stays as it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amgc.report.table import percent, printable
from amgc.report.writing import whole_file
from amgc.runs import DEFINITIONS, RunRecord, labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette for all kinds of colour vision, without its yellow, which is too light for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # eight with seven colours: 56 runs look different
GREY = "#555555"
FONT = 9  # points
LINE = 1.5 * FONT  # points from label to label


def plot_accuracy(runs: Sequence[RunRecord], path: str | os.PathLike[str]) -> None:
    """Draw the accuracy on all seen classes after each task into a PNG or SVG file, by the suffix of `path`."""
    from matplotlib.figure import Figure

    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise ValueError(f"a plot is written as .png or .svg, not as {Path(path).name!r}.")
    drawn = [(run, label) for run, label in zip(runs, labels(runs), strict=True) if run.done]
    if not drawn:
        raise ValueError("no run has finished a task yet, so there is nothing to draw.")
    height = max(4.2, (LINE * len(drawn)) / 72 + 0.6)  # inches of the axes
    figure = Figure(figsize=(7.2, height))
    axes = figure.add_axes((0, 0, 1, 1))  # labels stand outside; the file is cut to what is drawn
    _frame(axes, [run for run, _ in drawn])
    for place, (run, _) in enumerate(drawn):
        shares = [100 * value for value in run.metrics.accuracy]
        axes.plot(run.metrics.seen[: run.done], shares, linewidth=1.8, clip_on=False, zorder=3, **_look(place))
    _name_lines(axes, drawn, height * 72)
    with whole_file(path) as temporary:
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(temporary, format=kind, dpi=160, bbox_inches="tight", pad_inches=0.15, metadata=metadata)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions at least `gap` apart, in the order of and as near as can be to the `wanted` ones, given in any order.

    >>> spread([0.0, 10.0, 10.0], gap=4.0)
    [0.0, 8.0, 12.0]
    """
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    blocks: list[tuple[float, list[int]]] = []  # where a block of touching labels begins, and its labels
    for place in order:
        start, block = wanted[place], [place]
        while blocks and blocks[-1][0] + gap * len(blocks[-1][1]) > start:
            block = blocks.pop()[1] + block
            start = sum(wanted[label] - gap * rank for rank, label in enumerate(block)) / len(block)
        blocks.append((start, block))
    found = {label: start + gap * rank for start, block in blocks for rank, label in enumerate(block)}
    return [found[place] for place in range(len(wanted))]


def _frame(axes: Axes, runs: Sequence[RunRecord]) -> None:
    """Limits, ticks, grid and names of the axes."""
    from matplotlib.ticker import MultipleLocator

    values = [100 * value for run in runs for value in run.metrics.accuracy]
    low, high = 10 * math.floor(min(values) / 10), 10 * math.ceil(max(values) / 10)
    low, high = max(0, min(low, high - 20)), max(high, 20)
    axes.set_ylim(low, high)
    seen = sorted({count for run in runs for count in run.metrics.seen})
    margin = 0.03 * (seen[-1] - seen[0]) or 1
    axes.set_xlim(seen[0] - margin, seen[-1] + margin)
    ticks = [seen[-1]]
    for count in reversed(seen[:-1]):  # those that do not crowd the one to the right
        if ticks[-1] - count >= 0.055 * (seen[-1] - seen[0]):
            ticks.append(count)
    axes.set_xticks(ticks)
    axes.yaxis.set_major_locator(MultipleLocator(10 if high - low > 40 else 5))
    axes.tick_params(colors=GREY, labelsize=FONT, length=0, pad=6)
    axes.grid(color="#e6e6e6", linewidth=0.8, zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.set_xlabel("classes seen", fontsize=FONT + 1, color=GREY)
    axes.set_ylabel("accuracy on all seen classes, %", fontsize=FONT + 1, color=GREY)
    axes.set_title(f"LA: {DEFINITIONS['LA']}", fontsize=FONT - 1, color=GREY, loc="left", pad=12)


def _name_lines(axes: Axes, drawn: Sequence[tuple[RunRecord, str]], height: float) -> None:
    """A label for each line right of the axes (`height` points), joined to the line's end by dots."""
    (low, high), (left, right) = axes.get_ylim(), axes.get_xlim()
    ends = [100 * run.metrics.accuracy[-1] for run, _ in drawn]
    heights = spread(ends, LINE * (high - low) / height)
    edge, text = right + 0.025 * (right - left), right + 0.04 * (right - left)
    for place, ((run, label), end, at) in enumerate(zip(drawn, ends, heights, strict=True)):
        look = _look(place)
        axes.plot([run.metrics.seen[run.done - 1], edge], [end, at], ":", color=look["color"], linewidth=0.9, clip_on=False)
        axes.plot([edge], [at], clip_on=False, **look)
        last = percent(run.metrics.last_accuracy)
        value = f"LA {last}" if run.finished else f"{last} after {run.done} of {len(run.sizes)} tasks"
        said = f"{printable(label)}  {value}"
        axes.text(text, at, said, color="#222222", fontsize=FONT, verticalalignment="center_baseline", parse_math=False)
    axes.set(xlim=(left, right), ylim=(low, high))  # as they were before the dots


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)], "markersize": 5}
