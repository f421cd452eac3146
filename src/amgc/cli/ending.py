"""What is shown when runs have ended, and by `amgc show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from amgc.report import RunRecord, accuracy_table, find_runs, plot_accuracy
from amgc.report.paper import plan_figures
from amgc.report.table import grid
from amgc.text import DASH, percent

if TYPE_CHECKING:
    from rich.console import Console

GRID, PLOT = "compare.json", "accuracy.png"
WIDEST = 120


def show_ending(folder: Path, console: Console) -> None:
    """The table, the plot, and where to find them again."""
    runs = find_runs(folder)
    plot_accuracy(runs, folder / PLOT)
    console.print()
    console.print(accuracy_table(runs, width(console)))
    show_paper(folder, runs, console)
    console.print(
        f"\nRun folder: {folder}\nPlot: {folder / PLOT}\nSee it again: amgc show {folder}; as a page: amgc report {folder}",
        highlight=False,
        markup=False,
    )


def show_paper(folder: Path, runs: Sequence[RunRecord], console: Console) -> None:
    """The paper's figures beside ours, where the preset has some."""
    figures = plan_figures(folder)
    rows = []
    for run in runs:
        theirs = figures.get(run.method)
        if theirs:
            ours = (run.metrics.last_accuracy, run.metrics.average_incremental_accuracy) if run.finished else (None, None)
            pairs = zip(ours, (theirs.get("LA"), theirs.get("AIA")), strict=True)
            cells = [[percent(own), DASH if other is None else f"{other:.1f}"] for own, other in pairs]
            rows.append([run.method, *cells[0], *cells[1]])
    if rows:
        console.print()
        console.print(grid(["method", "LA", "LA, paper", "AIA", "AIA, paper"], rows))


def width(console: Console) -> int:
    return min(console.width, WIDEST)
