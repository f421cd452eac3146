"""`amgc show RUN [RUN …]`, and the summary that `amgc run` prints at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from rich.console import Console

    from amgc.report import RunRecord

PLOT = "accuracy.png"
MAX_WIDTH = 120  # columns, even if the terminal is wider


@dataclass(frozen=True)
class Show:
    """Print the accuracies of runs, finished or not: one run in full, several side by side."""

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN [RUN …]", help="folders of one or several runs each")]


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Show, args=list(arguments), prog="amgc show")

    from amgc.cli.errors import UsageError
    from amgc.cli.progress import console
    from amgc.report import accuracy_table, details, find_runs

    if not given.runs:
        raise UsageError("Specify at least one folder: amgc show RUN")
    found = {folder: find_runs(folder) for folder in given.runs}
    runs = [run for inside in found.values() for run in inside]
    screen = console()
    screen.print(details(runs[0], width(screen)) if len(runs) == 1 else accuracy_table(runs, width(screen)))
    for folder, inside in found.items():
        show_paper(Path(folder), inside, screen)
    return 0


def show_summary(folder: Path, console: Console) -> None:
    """Plot the runs in a folder, print their table, and print where both are."""
    from amgc.report import accuracy_table, find_runs, plot_accuracy

    runs = find_runs(folder)
    plot_accuracy(runs, folder / PLOT)
    console.print()
    console.print(accuracy_table(runs, width(console)))
    show_paper(folder, runs, console)
    console.print(
        f"\nRun folder: {folder}\nPlot: {folder / PLOT}\nTable: amgc show {folder}\nHTML page: amgc report {folder}",
        highlight=False,
        markup=False,
    )


def show_paper(folder: Path, runs: Sequence[RunRecord], console: Console) -> None:
    """Print the paper's numbers beside ours, if the plan in the folder contains any."""
    from amgc.report.paper import plan_figures
    from amgc.report.table import grid
    from amgc.text import DASH, percent

    figures = plan_figures(folder)
    rows = []
    for run in runs:
        if theirs := figures.get(run.method):
            ours = (run.metrics.last_accuracy, run.metrics.average_incremental_accuracy) if run.finished else (None, None)
            pairs = zip(ours, (theirs.get("LA"), theirs.get("AIA")), strict=True)
            cells = [[percent(own), DASH if other is None else f"{other:.1f}"] for own, other in pairs]
            rows.append([run.method, *cells[0], *cells[1]])
    if rows:
        console.print()
        console.print(grid(["method", "LA", "LA, paper", "AIA", "AIA, paper"], rows))


def width(console: Console) -> int:
    return min(console.width, MAX_WIDTH)
