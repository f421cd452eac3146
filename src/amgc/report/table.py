"""Runs side by side: a row per run, in the terminal or as Markdown, with the definition of every column below.

rich is imported when a table is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amgc.runs import DEFINITIONS, RunRecord, labels

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

DASH = "–"  # what is undefined, or not there yet
WIDTH = 100
SHOWN = 8  # tasks that have a column, at most


def accuracy_table(runs: Sequence[RunRecord], width: int = WIDTH) -> RenderableType:
    """For the terminal: a row per run with accuracies in percent, then the definitions. Fits into `width` columns."""
    from rich.console import Group
    from rich.text import Text

    header, rows = _cells(runs, width, gap=2)
    return Group(grid(header, rows), "", meanings(_defined(header)), *[Text(note, style="italic") for note in _notes(runs)])


def markdown_table(runs: Sequence[RunRecord]) -> str:
    """The same as Markdown, aligned so that it reads well as plain text too."""
    header, rows = _cells(runs, WIDTH, gap=3)
    cells = [[_escape(cell) for cell in row] for row in (header, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * widths[0], *["-" * (width - 1) + ":" for width in widths[1:]]])
    lines = []
    for name, *numbers in cells:
        right = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        lines.append(f"| {' | '.join([name.ljust(widths[0]), *right])} |")
    below = [f"{name}: {DEFINITIONS[key]}" for name, key in _defined(header)] + _notes(runs)
    return "\n".join([*lines, "", *[f"- {text}" for text in below], ""])


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Table:
    """A table in the house's look: the columns `left` are names, the others are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(header):
        named = place in left
        table.add_column(Text(name), justify="left" if named else "right", no_wrap=not named, overflow="fold")
    for row in rows:
        table.add_row(*[Text(printable(cell)) for cell in row])
    return table


def meanings(shown: Sequence[tuple[str, str]]) -> Table:
    """A line for each name that is shown, with the definition of its key in `DEFINITIONS`."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, key in shown:
        table.add_row(Text(name, style="bold"), Text(DEFINITIONS[key]))
    return table


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal.

    >>> percent(0.12345), percent(-0.0001), percent(None), percent(float("nan"))
    ('12.3', '0.0', '–', '–')
    """
    if value is None or value != value:
        return DASH
    return f"{round(100 * value, 1) + 0.0:.1f}"  # + 0.0: no minus before a zero


def evenly(count: int, shown: int) -> list[int]:
    """At most `shown` (two or more) of 0..count-1: the first, the last, and others evenly between.

    >>> evenly(3, 8), evenly(20, 5), evenly(1, 2)
    ([0, 1, 2], [0, 5, 10, 14, 19], [0])
    """
    if count <= shown:
        return list(range(count))
    return [round(place * (count - 1) / (shown - 1) + 1e-9) for place in range(shown)]


def printable(text: str) -> str:
    """Names may come from folders: control characters must not reach the terminal.

    >>> printable("a\\x1b[31mb")
    'a?[31mb'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _cells(runs: Sequence[RunRecord], width: int, gap: int) -> tuple[list[str], list[list[str]]]:
    """The header and a row per run, with columns for as many tasks as fit into `width` with `gap` after each column."""
    if not runs:
        raise ValueError("there is no run to show.")
    count = max(len(run.sizes) for run in runs)
    names = labels(runs)
    for shown in range(SHOWN, 1, -1):
        tasks = evenly(count, shown)
        header = ["method", "done", *[f"T{task + 1}" for task in tasks], "LA", "AIA", "forgetting", "first task"]
        rows = [_row(printable(name), run, tasks) for name, run in zip(names, runs, strict=True)]
        if all(run.finished for run in runs):
            del header[1]
            for row in rows:
                del row[1]
        if sum(max(map(len, column)) + gap for column in zip(header, *rows, strict=True)) < width:
            break
    return header, rows


def _row(name: str, run: RunRecord, tasks: Sequence[int]) -> list[str]:
    metrics = run.metrics
    after = [metrics.accuracy[task] if task < run.done else None for task in tasks]
    first = metrics.first_task_accuracy[-1] if run.done else None
    ends = [metrics.last_accuracy, metrics.average_incremental_accuracy, metrics.forgetting, first]
    return [name, f"{run.done}/{len(run.sizes)}", *map(percent, after + ends)]


def _defined(header: Sequence[str]) -> list[tuple[str, str]]:
    return [("Tn", "Tn"), *[(name, name) for name in header if name in DEFINITIONS]]


def _notes(runs: Sequence[RunRecord]) -> list[str]:
    """What a reader must know before comparing the rows."""
    notes = ["Numbers are percentages; forgetting is in percentage points."]
    if any(not run.finished for run in runs):
        notes.append("Runs still going (done: finished tasks/all tasks) have the numbers after their last finished task.")
    if len({run.sizes for run in runs}) > 1:
        notes.append("The runs split the classes into different tasks, so a column does not compare like with like.")
    for key in ("data", "features", "seed"):
        values = list(dict.fromkeys(str(run.config.get(key)) for run in runs))
        if len(values) > 1:
            notes.append(f"The runs differ in {key}: {printable(', '.join(values))}.")
    return notes


def _escape(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|")
