"""Display a comparison: a live table on a terminal, otherwise a line per finished run; the results; the costs of a dry run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from amgc.cli.jobs.schedule import Work, same_start
from amgc.cli.progress import console
from amgc.engine.run import run as run_method
from amgc.engine.watch import Watch
from amgc.report import Spread
from amgc.report.groups import percent_spread
from amgc.report.table import definition_list, grid
from amgc.runs import DEFINITIONS
from amgc.text import DASH, duration, percent, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from amgc.engine.cost import Cost

REFRESH_SECONDS = 0.5


class Board:
    """Show the progress of a comparison. Use it as a context manager."""

    def __init__(self, screen: Console, works: Sequence[Work], slots: int) -> None:
        self.screen, self.works, self.slots = screen, works, slots
        self.reported = {id(one) for one in works if one.state == "done"}
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
        """Update the display. It is redrawn at most once per REFRESH_SECONDS."""
        for one in self.works:
            if one.state in ("done", "failed") and id(one) not in self.reported:
                self.reported.add(id(one))
                if self.live is None:
                    self.screen.print(Text(printable(self.line(one))), soft_wrap=True)
        if self.live is not None and time.monotonic() - self.drawn > REFRESH_SECONDS:
            self.drawn = time.monotonic()
            self.live.update(Group(table(self.works), Text(self.progress())), refresh=True)

    def line(self, one: Work) -> str:
        if one.state == "failed":
            return f"{one.cell}: failed: {one.reason}"
        assert one.run is not None
        return f"{one.cell}: LA {percent(one.run.metrics.last_accuracy)} % ({duration(one.seconds or 0.0)}; {self.progress()})"

    def progress(self) -> str:
        """Return the number of finished runs and the estimated time left."""
        count = {state: sum(one.state == state for one in self.works) for state in ("done", "running", "failed")}
        parts = [f"{count['done']} of {len(self.works)} runs done"]
        parts += [f"{count[state]} {state}" for state in ("running", "failed") if count[state]]
        left = time_left(self.works, self.slots, time.monotonic())
        return ", ".join(parts) + ("" if not left else f", about {duration(left)} left")


def time_left(works: Sequence[Work], slots: int, now: float) -> float | None:
    """Estimate the seconds left, from finished runs of the same method, else of the same column, else of all."""
    measured = [one for one in works if one.seconds is not None]
    if not measured:
        return None
    left = []
    for one in works:
        if one.state in ("waiting", "running"):
            alike = [other for other in measured if other.cell.method == one.cell.method]
            alike = alike or [other for other in measured if other.cell.column == one.cell.column] or measured
            whole = statistics.mean(other.seconds or 0.0 for other in alike)
            left.append(max(0.0, whole - (now - one.submitted)) if one.state == "running" else whole)
    return max(sum(left) / min(slots, len(left)), max(left)) if left else None


def cell_text(works: Sequence[Work]) -> list[str]:
    """Return LA and AIA over the finished seeds of a method in a column of the grid, LA with the progress of the others."""
    runs = [one.run for one in works if one.state == "done" and one.run is not None]
    parts = [percent_spread(Spread.of([run.metrics.last_accuracy for run in runs]))] if runs else []
    if 0 < len(runs) < len(works):
        parts.append(f"({len(runs)}/{len(works)})")
    for one in works:
        if one.state == "running":
            parts.append(f"{one.run.done}/{len(one.run.sizes)} tasks" if one.run else "starting")
    if failed := sum(one.state == "failed" for one in works):
        parts.append("failed" if len(works) == 1 else f"{failed} failed")
    return [" ".join(parts) or DASH, percent_spread(Spread.of([run.metrics.average_incremental_accuracy for run in runs]))]


def table(works: Sequence[Work]) -> RenderableType:
    """Return a table with a row per method, and LA and AIA for each data set and number of tasks."""
    columns = list(dict.fromkeys(one.cell.column for one in works))
    rows = []
    for method in dict.fromkeys(one.cell.method for one in works):
        cells = [[one for one in works if (one.cell.method, one.cell.column) == (method, column)] for column in columns]
        rows.append([method, *[text for cell in cells for text in cell_text(cell)]])
    return grid(["method", *[f"{data}, T = {tasks}, {name}" for data, tasks in columns for name in ("LA", "AIA")]], rows)


def results(works: Sequence[Work]) -> RenderableType:
    """Return the table with definitions."""
    seeds = len({one.cell.seed for one in works})
    note = "Numbers are percentages" + (f", mean ± standard deviation over {seeds} seeds." if seeds > 1 else ".")
    defined = definition_list([(name, DEFINITIONS[name]) for name in ("LA", "AIA")])
    return Group(table(works), "", defined, Text(note, style="italic"))


class CostWatch(Watch):
    """Measure the cost of a run before it begins."""

    cost: Cost | None = None

    def begin_run(self, class_names: Sequence[str], sizes: Sequence[int], cost: Callable[[], Any]) -> None:
        self.cost = cost()


def print_costs(works: Sequence[Work], jobs: int, threads: int) -> None:
    """Print the estimated time of each missing run and of all. One seed is measured; the others cost the same."""
    from amgc.data.registry import survey

    screen = console()
    seconds: dict[tuple[str, ...], float] = {}
    total = 0.0
    datasets: dict[str, Any] = {}
    for one in works:
        if one.state == "done":
            text = "done"
        else:
            key = one.cell.method, *one.cell.column
            if key not in seconds:
                config = one.cell.config
                data = repr((config.data, config.data_options))
                dataset = datasets[data] = datasets.get(data) or survey(config.data, **config.data_options)
                source = next((other for other in same_start(one, works) if other.cell.can_share_start), one)
                start = config.machine.start if source is one else str(source.cell.folder)
                machine = replace(config.machine, devices=1, threads=config.machine.threads or threads, start=start)
                watch = CostWatch()
                run_method(replace(config, machine=machine), one.cell.folder / "dry-run", watch, dataset, dry_run=True)
                assert watch.cost is not None
                seconds[key] = watch.cost.seconds
            total += seconds[key]
            begun = f"continues after {one.run.done} of {len(one.run.sizes)} tasks; all tasks" if one.run else "new"
            text = f"{begun}: about {duration(seconds[key])}"
        screen.print(printable(f"{one.cell}: {text}"), highlight=False, markup=False, soft_wrap=True)
    done = sum(one.state == "done" for one in works)
    parallel = f", about {duration(total / jobs)} with {jobs} at a time" if jobs > 1 else ""
    screen.print(f"{done} of {len(works)} runs done; the others: about {duration(total)}{parallel}", highlight=False)
