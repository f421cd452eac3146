"""Plot the confusion matrix and the reliability diagram of a model. matplotlib is imported when it is used."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path

from amgc.files import atomic
from amgc.report.plot import COLOURS, GREY
from amgc.text import percent, printable

NAMED = 40  # up to so many classes are named at the axes


def confusion_csv(classes: Sequence[str], confusion: Sequence[Sequence[int]], path: Path) -> None:
    """Write a CSV file with a row for each true class and a column for each predicted class."""
    with atomic(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["true \\ predicted", *classes])
        writer.writerows([name, *row] for name, row in zip(classes, confusion, strict=True))


def plot_confusion(classes: Sequence[str], confusion: Sequence[Sequence[int]], path: Path) -> None:
    """Plot the confusion matrix; each row shows the shares of a true class's images by predicted class."""
    from matplotlib.figure import Figure

    shares = [[count / max(1, sum(row)) for count in row] for row in confusion]
    side = min(14.0, 2.5 + 0.22 * len(classes))
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(classes) <= NAMED:
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
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    if bins:
        sure, right, count = zip(*bins, strict=True)
        axes.plot(sure, right, color=COLOURS[0], linewidth=1)
        axes.scatter(sure, right, s=[10 + 200 * one / max(count) for one in count], color=COLOURS[0], alpha=0.7)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    axes.set_title(f"expected calibration error {percent(error)} %", fontsize=10)
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
