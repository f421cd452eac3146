"""Commands that show the results of runs: `amgc show`, `amgc table` and `amgc report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError, message, say
from amgc.cli.tyro_flags import several
from amgc.text import DASH, byte_size, percent

if TYPE_CHECKING:
    from rich.console import Console

    from amgc.runs import RunRecord

Format: TypeAlias = Literal["text", "markdown", "latex", "csv"]
PLOT = "accuracy.png"
MAX_WIDTH = 120  # columns, even if the terminal is wider
BY_SUFFIX: dict[str, Format] = {".md": "markdown", ".tex": "latex", ".csv": "csv"}


def show(
    runs: Annotated[Positional[tuple[str, ...]], several("RUN", "folders of one or several runs each")],
) -> None:
    """Print the accuracies of runs, finished or not: one run in full, several side by side."""
    from amgc.cli.progress import console
    from amgc.report import accuracy_table, details
    from amgc.runs import find_runs

    _check_given(runs, "show")
    found = {folder: find_runs(folder) for folder in runs}
    records = [run for inside in found.values() for run in inside]
    screen = console()
    screen.print(details(records[0], width(screen)) if len(records) == 1 else accuracy_table(records, width(screen)))
    for folder, inside in found.items():
        show_paper(Path(folder), inside, screen)


def table(
    number: Annotated[
        Positional[Literal[1, 2, 3]], arg(metavar="1|2|3", help="1: methods compared, 2: parts of AMGC, 3: kinds of margin")
    ],
    runs: Annotated[
        Positional[tuple[str, ...]],
        several("RUN", "folders of one or several runs each; NAME=FOLDER makes a separate row of them"),
    ],
    format: Annotated[
        Format | None, arg(help="format of the table", help_behavior_hint="(default: by the suffix of --out, otherwise text)")
    ] = None,
    out: Annotated[Path | None, arg(aliases=["-o"], help="file to write to instead of the terminal")] = None,
) -> None:
    """Print one of the paper's tables with your finished runs in it: mean ± standard deviation over seeds, and the paper's
    numbers."""
    from amgc.cli.progress import console
    from amgc.files import write_text
    from amgc.report import named_runs, paper_table

    _check_given(runs, f"table {number}")
    made = paper_table(number, named_runs(runs))
    chosen = format or BY_SUFFIX.get(out.suffix.lower() if out else "", "text")
    if out is None:
        print(made.format(chosen, width(console())), end="")
        return
    write_text(out, made.format(chosen))
    print(f"{out}: Table {number} as {chosen}")


def report(
    runs: Annotated[
        Positional[tuple[str, ...]],
        several("RUN", "folders of one or several runs each; NAME=FOLDER sets the name of a method's row"),
    ],
    out: Annotated[Path, arg(aliases=["-o"], help="file to write")] = Path("report.html"),
    section: Annotated[
        tuple[Path, ...], arg(metavar="FILE …", help=".py files with your own sections (docs/add-a-report-section.md)")
    ] = (),
) -> None:
    """Write runs, finished or not, as one HTML page with tables, figures and all settings. The page needs no network."""
    from amgc.report.page import write_report

    _check_given(runs, "report")
    if out.is_dir():
        raise UsageError(f"{str(out)!r} is a folder; specify a file in it: -o {out / 'report.html'}")
    for error in write_report(runs, out, section):
        say(f"skipped: {error}")
    print(f"Report: {out} ({byte_size(out.stat().st_size)})")


def show_summary(folder: Path, console: Console) -> None:
    """Plot the runs in a folder, print their table, and print where both are: the end of `amgc run`."""
    from amgc.report import accuracy_table, plot_accuracy
    from amgc.runs import find_runs

    runs = find_runs(folder)
    plot = f"Plot: {folder / PLOT}"
    try:
        plot_accuracy(runs, folder / PLOT)
    except OSError as error:  # a read-only or full disk: the table is what matters
        plot = f"The plot was not written: {message(error)}"
    console.print()
    console.print(accuracy_table(runs, width(console)))
    show_paper(folder, runs, console)
    console.print(
        f"\nRun folder: {folder}\n{plot}\nTable: amgc show {folder}\nHTML page: amgc report {folder}",
        highlight=False,
        markup=False,
    )


def show_paper(folder: Path, runs: Sequence[RunRecord], console: Console) -> None:
    """Print the paper's numbers beside ours, if the plan in the folder contains any."""
    from amgc.report.paper import plan_figures
    from amgc.report.table import grid

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


def _check_given(runs: Sequence[str], command: str) -> None:
    if not runs:
        raise UsageError(f"specify at least one folder: amgc {command} RUN")
