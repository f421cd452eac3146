"""Plots in image files, drawn by matplotlib: accuracies of runs, and confusion and reliability of a model.

matplotlib is imported when a plot is drawn, without pyplot, so its global state is not changed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amgc.files import atomic
from amgc.report.style import ACCURACY, COLOURS, MARKERS, SEEN, percent_limits, percent_ticks, spaced, spread_labels
from amgc.runs import DEFINITIONS, RunRecord, labels
from amgc.text import percent, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#555555"
FONT = 9  # points
LABEL_GAP = 1.5 * FONT  # points between labels
MAX_NAMED = 40  # classes that are named at the axes of a confusion matrix


def plot_accuracy(runs: Sequence[RunRecord], path: str | os.PathLike[str]) -> None:
    """Plot the accuracy on all seen classes after each task, one line per run, into a PNG or SVG file (by the suffix)."""
    from matplotlib.figure import Figure

    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise ValueError(f"a plot is written as .png or .svg, not as {Path(path).name!r}.")
    drawn = [(run, label) for run, label in zip(runs, labels(runs), strict=True) if run.done]
    if not drawn:
        raise ValueError("no run has finished a task yet, so there is nothing to plot.")
    height = max(4.2, (LABEL_GAP * len(drawn)) / 72 + 0.6)  # inches of the axes
    figure = Figure(figsize=(7.2, height))
    axes = figure.add_axes((0, 0, 1, 1))  # labels are outside; bbox_inches crops the file
    _frame(axes, [run for run, _ in drawn])
    for place, (run, _) in enumerate(drawn):
        shares = [100 * value for value in run.metrics.accuracy]
        axes.plot(run.metrics.seen[: run.done], shares, linewidth=1.8, clip_on=False, zorder=3, **_look(place))
    _name_lines(axes, drawn, height * 72)
    with atomic(path) as temporary:
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(temporary, format=kind, dpi=160, bbox_inches="tight", pad_inches=0.15, metadata=metadata)


def _frame(axes: Axes, runs: Sequence[RunRecord]) -> None:
    """Set limits, ticks, grid and names of the axes."""
    low, high = percent_limits([100 * value for run in runs for value in run.metrics.accuracy])
    axes.set_ylim(low, high)
    seen = sorted({count for run in runs for count in run.metrics.seen})
    margin = 0.03 * (seen[-1] - seen[0]) or 1
    axes.set_xlim(seen[0] - margin, seen[-1] + margin)
    axes.set_xticks(spaced(seen, 0.055 * (seen[-1] - seen[0])))
    axes.set_yticks(percent_ticks(low, high))
    axes.tick_params(colors=GREY, labelsize=FONT, length=0, pad=6)
    axes.grid(color="#e6e6e6", linewidth=0.8, zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
    axes.set_xlabel(SEEN, fontsize=FONT + 1, color=GREY)
    axes.set_ylabel(ACCURACY, fontsize=FONT + 1, color=GREY)
    axes.set_title(f"LA: {DEFINITIONS['LA']}", fontsize=FONT - 1, color=GREY, loc="left", pad=12)


def _name_lines(axes: Axes, drawn: Sequence[tuple[RunRecord, str]], height: float) -> None:
    """Label each line right of the axes (which are `height` points high), with a dotted line to its end."""
    (low, high), (left, right) = axes.get_ylim(), axes.get_xlim()
    ends = [100 * run.metrics.accuracy[-1] for run, _ in drawn]
    heights = spread_labels(ends, LABEL_GAP * (high - low) / height)
    edge, text = right + 0.025 * (right - left), right + 0.04 * (right - left)
    for place, ((run, label), end, at) in enumerate(zip(drawn, ends, heights, strict=True)):
        look = _look(place)
        axes.plot([run.metrics.seen[run.done - 1], edge], [end, at], ":", color=look["color"], linewidth=0.9, clip_on=False)
        axes.plot([edge], [at], clip_on=False, **look)
        last = percent(run.metrics.last_accuracy)
        value = f"LA {last}" if run.finished else f"{last} after {run.done} of {len(run.sizes)} tasks"
        name = f"{printable(label)}  {value}"
        axes.text(text, at, name, color="#222222", fontsize=FONT, verticalalignment="center_baseline", parse_math=False)
    axes.set(xlim=(left, right), ylim=(low, high))  # the dotted lines must not change them


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)], "markersize": 5}


def plot_confusion(classes: Sequence[str], confusion: Sequence[Sequence[int]], path: Path) -> None:
    """Plot the confusion matrix of a model; each row shows the shares of a true class's images by predicted class."""
    from matplotlib.figure import Figure

    shares = [[count / max(1, sum(row)) for count in row] for row in confusion]
    side = min(14.0, 2.5 + 0.22 * len(classes))
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot(xlabel="predicted class", ylabel="true class")
    drawn = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    if len(classes) <= MAX_NAMED:
        names = [printable(name[:30]) for name in classes]
        axes.set_xticks(range(len(classes)), names, rotation=90, parse_math=False)
        axes.set_yticks(range(len(classes)), names, parse_math=False)
    figure.colorbar(drawn, ax=axes, shrink=0.7, label="share of the true class's images")
    with atomic(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # characters that matplotlib's font lacks are shown as boxes
        figure.savefig(temporary, format="png", dpi=130)


def plot_reliability(bins: Sequence[tuple[float, float, int]], error: float, path: Path) -> None:
    """Plot accuracy against confidence; the size of a dot shows the number of images."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    axes = figure.add_subplot(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    if bins:
        sure, right, count = zip(*bins, strict=True)
        axes.plot(sure, right, color=COLOURS[0], linewidth=1)
        axes.scatter(sure, right, s=[10 + 200 * one / max(count) for one in count], color=COLOURS[0], alpha=0.7)
    axes.set_title(f"expected calibration error {percent(error)} %", fontsize=10)
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
