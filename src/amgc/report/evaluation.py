"""The confusion and the reliability of a model, drawn. matplotlib is imported when something is drawn."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path

from amgc.files import atomic
from amgc.report.plot import COLOURS, GREY
from amgc.text import percent, printable

NAMED = 40  # classes that have their names at the axes


def confusion_csv(classes: Sequence[str], confusion: Sequence[Sequence[int]], path: Path) -> None:
    """A row for each true class, a column for each predicted one."""
    with atomic(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["true \\ predicted", *classes])
        writer.writerows([name, *row] for name, row in zip(classes, confusion, strict=True))


def plot_confusion(classes: Sequence[str], confusion: Sequence[Sequence[int]], path: Path) -> None:
    """Each true class's pictures by what they were taken for, as shares."""
    from matplotlib.figure import Figure

    shares = [[count / max(1, sum(row)) for count in row] for row in confusion]
    side = min(14.0, 2.5 + 0.22 * len(classes))
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    axes.set_xlabel("taken for")
    axes.set_ylabel("is")
    if len(classes) <= NAMED:
        names = [printable(name[:30]) for name in classes]
        axes.set_xticks(range(len(classes)), names, rotation=90, parse_math=False)
        axes.set_yticks(range(len(classes)), names, parse_math=False)
    figure.colorbar(drawn, ax=axes, shrink=0.7, label="share of the class's pictures")
    with atomic(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of a script that matplotlib's font lacks: a box stands for it
        figure.savefig(temporary, format="png", dpi=130)


def plot_reliability(bins: Sequence[tuple[float, float, int]], error: float, path: Path) -> None:
    """How often the model is right against how sure it is; the size of a dot is its number of pictures."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    if bins:
        sure, right, count = zip(*bins, strict=True)
        axes.plot(sure, right, color=COLOURS[0], linewidth=1)
        axes.scatter(sure, right, s=[10 + 200 * one / max(count) for one in count], color=COLOURS[0], alpha=0.7)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="how sure the model is", ylabel="how often it is right")
    axes.set_title(f"expected calibration error {percent(error)} %", fontsize=10)
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
