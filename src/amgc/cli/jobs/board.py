"""What is seen of a comparison: a live table on a terminal, a line per run that ends elsewhere; the results at the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from amgc.cli.jobs.schedule import Work
from amgc.report import Spread
from amgc.report.table import definition_list, grid
from amgc.runs import DEFINITIONS
from amgc.text import DASH, duration, percent, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH = 0.5  # seconds


class Board:
    """Shows the works on a console while they go on; in a `with` statement."""

    def __init__(self, screen: Console, works: Sequence[Work], slots: int) -> None:
        self.screen, self.works, self.slots = screen, works, slots
        self.told = {id(one) for one in works if one.state == "done"}
        self.drawn = 0.0
        self.live = Live(console=screen, auto_refresh=False, transient=True) if screen.is_terminal else None

    def __enter__(self) -> Board:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self) -> None:
        """Called often; draws now and then, and tells of each run that has ended."""
        for one in self.works:
            if one.state in ("done", "failed") and id(one) not in self.told:
                self.told.add(id(one))
                if self.live is None:
                    self.screen.print(Text(printable(self.line(one))), soft_wrap=True)
        if self.live is not None and time.monotonic() - self.drawn > REFRESH:
            self.drawn = time.monotonic()
            self.live.update(Group(table(self.works, cell_text), Text(self.progress())), refresh=True)

    def line(self, one: Work) -> str:
        if one.state == "failed":
            return f"{one.cell}: failed: {one.reason}"
        assert one.run is not None
        return f"{one.cell}: LA {percent(one.run.metrics.last_accuracy)} % ({duration(one.seconds or 0.0)}; {self.progress()})"

    def progress(self) -> str:
        """How many are done, and how long the others may take."""
        count = {state: sum(one.state == state for one in self.works) for state in ("done", "going", "failed")}
        parts = [f"{count['done']} of {len(self.works)} runs done"]
        parts += [f"{count[state]} {state}" for state in ("going", "failed") if count[state]]
        left = time_left(self.works, self.slots, time.monotonic())
        return ", ".join(parts) + ("" if not left else f", about {duration(left)} left")


def time_left(works: Sequence[Work], slots: int, now: float) -> float | None:
    """Seconds, if what is left takes as long as the same method elsewhere, or as runs of this column, took so far."""
    measured = [one for one in works if one.seconds is not None]
    if not measured:
        return None
    left = []
    for one in works:
        if one.state in ("waiting", "going"):
            alike = [other for other in measured if other.cell.method == one.cell.method]
            alike = alike or [other for other in measured if other.cell.column == one.cell.column] or measured
            whole = statistics.mean(other.seconds or 0.0 for other in alike)
            left.append(max(0.0, whole - (now - one.submitted)) if one.state == "going" else whole)
    return max(sum(left) / min(slots, len(left)), max(left)) if left else None


def cell_text(works: Sequence[Work]) -> list[str]:
    """One method on one column of the grid, all seeds: LA, or how far it is."""
    states = [one.state for one in works]
    done = [one for one in works if one.state == "done"]
    parts = [spread([one.run.metrics.last_accuracy for one in done if one.run])] if done else []
    if 0 < len(done) < len(works):
        parts.append(f"({len(done)}/{len(works)})")
    for one in works:
        if one.state == "going":
            parts.append(f"{one.run.done}/{len(one.run.sizes)} tasks" if one.run else "starting")
    if "failed" in states:
        parts.append("failed" if len(works) == 1 else f"{states.count('failed')} failed")
    return [" ".join(parts) or "waiting"]


def accuracy_text(works: Sequence[Work]) -> list[str]:
    """LA and AIA over the seeds that are done."""
    runs = [one.run for one in works if one.state == "done" and one.run is not None]
    short = f" ({len(runs)}/{len(works)})" if 0 < len(runs) < len(works) else ""
    la = spread([run.metrics.last_accuracy for run in runs])
    return [la + short, spread([run.metrics.average_incremental_accuracy for run in runs])]


def spread(values: Sequence[float | None]) -> str:
    """Mean and, of several, standard deviation in percent.

    >>> spread([0.5, 0.52, 0.57]), spread([0.5]), spread([])
    ('53.0 ± 3.6', '50.0', '–')
    """
    found = Spread.of([value for value in values if value is not None])
    if found is None:
        return DASH
    return percent(found.mean) if found.std is None else f"{percent(found.mean)} ± {percent(found.std)}"


def table(works: Sequence[Work], text: Callable[[Sequence[Work]], list[str]], names: Sequence[str] = ("",)) -> RenderableType:
    """Methods as rows, data and numbers of tasks as columns; `text` says what stands in a cell, under each of `names`."""
    columns = list(dict.fromkeys(one.cell.column for one in works))
    rows = []
    for method in dict.fromkeys(one.cell.method for one in works):
        cells = [[one for one in works if (one.cell.method, one.cell.column) == (method, column)] for column in columns]
        rows.append([method, *[part for cell in cells for part in (text(cell) if cell else [DASH] * len(names))]])
    header = [f"{data}, T = {tasks}{name and f', {name}'}" for data, tasks in columns for name in names]
    return grid(["method", *header], rows)


def results(works: Sequence[Work]) -> RenderableType:
    """The accuracies at the end, with their definitions."""
    seeds = len({one.cell.seed for one in works})
    note = "Numbers are percentages" + (f", mean ± standard deviation over {seeds} seeds." if seeds > 1 else ".")
    shown = table(works, accuracy_text, ("LA", "AIA"))
    return Group(shown, "", definition_list([(name, DEFINITIONS[name]) for name in ("LA", "AIA")]), Text(note, style="italic"))
