"""Progress of runs, as a live display on a terminal and as plain lines elsewhere, and stopping by Ctrl-C."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from amgc.cli.errors import say
from amgc.engine.watch import Stopped, TrainingProgress, Watch
from amgc.methods.contract import Task
from amgc.runs.folder import is_first_process
from amgc.text import duration, percent, printable

if TYPE_CHECKING:
    from amgc.engine.cost import Cost

REFRESH_SECONDS = 0.25  # between two updates, each of which synchronises with the GPU
PLAIN_REFRESH_SECONDS = 60.0  # without a terminal, where each update is a new line
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
CLOSED = (errno.EPIPE, errno.EIO, errno.ENXIO)  # of a pipe without a reader, and of a terminal that is gone
MAX_NAMES = 40  # characters of class names


def console() -> Console:
    """Return the console for results. It respects $NO_COLOR; piped output is plain and 100 columns wide."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=100)


@contextmanager
def bar(screen: Console, text: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar with the time left, on a terminal only. Yields a function of (done, total)."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    with Bar(*columns, console=screen, transient=True, disable=quiet or not screen.is_terminal) as shown:
        task = shown.add_task(text, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


class Quiet(Watch):
    """Show nothing. `before_start` is called when a run is about to start.

    While data are `reading`, a request to stop raises KeyboardInterrupt, because there is nothing to save yet.
    """

    reading = False
    before_start: Callable[[], None] | None = None

    def begin_method(self, name: str) -> None:
        """Announce the method of the next run."""

    def sum_up(self, source: str | None, reusing: Sequence[str]) -> None:
        """Print the total cost of all methods."""

    def print_line(self, text: str) -> None:
        """Print a line."""

    def begin_run(self, class_names: Sequence[str], sizes: Sequence[int], cost: Callable[[], Any]) -> None:
        if self.stop:
            raise Stopped
        if self.before_start is not None:
            self.before_start()


class Shown(Quiet):
    """Show runs on a console."""

    def __init__(self, screen: Console) -> None:
        self.screen = screen
        self.live: Live | None = None
        self.method = ""
        self.costs: dict[str, Cost] = {}
        self.names: Sequence[str] = ()
        self.sizes: Sequence[int] = ()
        self.heading = ""
        self.looked = self.task_began = self.run_began = time.monotonic()
        self.task, self.steps, self.done = 0, 0, 0
        self.first_task: int | None = None

    def begin_method(self, name: str) -> None:
        self.method = name

    def print_line(self, text: str) -> None:
        self.screen.print(Text(printable(text)), soft_wrap=True)

    def begin_run(self, class_names: Sequence[str], sizes: Sequence[int], cost: Callable[[], Any]) -> None:
        self.names, self.sizes = class_names, sizes
        if self.method not in self.costs:
            self.costs[self.method] = cost()
            self.print_line(f"{self.method}: {self.costs[self.method]}")
        super().begin_run(class_names, sizes, cost)
        self.run_began, self.first_task = time.monotonic(), None

    def sum_up(self, source: str | None, reusing: Sequence[str]) -> None:
        self.print_line(f"all: about {duration(sum(cost.seconds for cost in self.costs.values()))}")
        if reusing:
            self.print_line(f"Task 1 is trained once, by {source}, and reused by {' and '.join(reusing)}.")

    def wants_progress(self) -> bool:
        now = time.monotonic()
        if now - self.looked < (REFRESH_SECONDS if self.screen.is_terminal else PLAIN_REFRESH_SECONDS):
            return False
        self.looked = now
        return True

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        if self.first_task is None:
            self.first_task = task.index
        self.task, self.steps, self.done, self.task_began = task.index, steps, done, time.monotonic()
        names = ", ".join(printable(self.names[label]) for label in task.new)
        names = (
            names if len(names) <= MAX_NAMES else f"{names[: MAX_NAMES - 2].rpartition(',')[0] or names[: MAX_NAMES - 2]}, …"
        )
        self.heading = f"{self.method}, task {task.index + 1}/{tasks}: {names}"
        if self.screen.is_terminal and steps:
            self.live = Live(Text(self.heading), console=self.screen, auto_refresh=False, transient=True)
            self.live.start(refresh=True)

    def progress(self, now: TrainingProgress) -> None:
        spent = max(time.monotonic() - self.task_began, 1e-9)
        parts = [f"epoch {now.epoch + 1}/{now.epochs}"]
        parts += [f"{name} {value:.3g}" for name, value in now.losses.items()]
        parts += [f"batch accuracy {percent(now.accuracy)} %"] if now.accuracy == now.accuracy else []  # not NaN
        parts += [f"{(now.step - self.done) / spent:.1f} steps/s"]
        line, heading = ", ".join(parts), self.heading
        if (left := self.time_left(now.step)) is not None:  # the first line has space for it
            heading += f" (about {duration(left)} left" + (f" for {self.method})" if len(self.costs) > 1 else ")")
        if self.live is not None:
            self.live.update(Text(f"{heading}\n{line}", overflow="ellipsis", no_wrap=True), refresh=True)
        elif not self.screen.is_terminal:
            self.print_line(f"{heading}: {line}")

    def time_left(self, step: int) -> float | None:
        """Return the estimated time left, scaled by how much longer than estimated the run took so far."""
        cost = self.costs.get(self.method)
        if cost is None or not cost.tasks or self.first_task is None or not self.steps > self.done:
            return None
        tasks = cost.tasks[-(len(self.sizes) - self.first_task) :]
        place = self.task - self.first_task
        share = (step - self.done) / (self.steps - self.done)
        expected = sum(tasks[:place]) + share * tasks[place]
        left = sum(tasks) - expected
        spent = time.monotonic() - self.run_began
        return left * (spent + 1) / (expected + 1)  # + 1 s avoids large fluctuations at the start

    def note(self, text: str) -> None:
        self.print_line(text)

    def end_task(self, task: Task, line: dict[str, Any]) -> None:
        self.close()
        accuracy = percent(sum(line["correct"]) / max(1, sum(line["total"])))
        spent = duration(sum(line["seconds"].values()))
        classes = f"{len(task.seen)} seen class{'es' * (len(task.seen) > 1)}"
        self.print_line(f"{self.method}, task {task.index + 1}/{len(self.sizes)}: {accuracy} % on {classes} ({spent})")

    def close(self) -> None:
        """Remove the live display."""
        if self.live is not None:
            self.live.stop()
            self.live = None


class _Lasting:
    """Standard output that may be closed: the first failed write is reported on stderr, and later output is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.closed_early = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], Any]) -> None:
        if self.closed_early:
            return
        try:
            action()
        except OSError as error:
            if error.errno not in CLOSED:
                raise
            self.closed_early = True
            with suppress(OSError):  # or Python would try to write the rest when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            with suppress(OSError):
                say("the output was closed; the run continues without it. Ctrl-C or SIGTERM saves and stops it.")


@contextmanager
def lasting_output() -> Iterator[None]:
    """Let a run continue after its output is closed: `amgc run | head -1`, or a closed terminal."""
    before = sys.stdout
    sys.stdout = cast(TextIO, _Lasting(before))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = before


@contextmanager
def stoppable(shown: Quiet) -> Iterator[None]:
    """Let the run save a checkpoint and stop on Ctrl-C, SIGTERM or SIGHUP. The same signal again ends it immediately."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number in seen:
            raise KeyboardInterrupt
        if not seen:
            with suppress(OSError):  # the terminal may be gone
                say("stopping …; the same signal again ends it immediately.")
        seen.add(number)
        shown.stop = True
        if shown.reading:
            raise KeyboardInterrupt

    seen: set[int] = set()
    # Only the first process reacts; the others end when they lose the connection to it. On their own they would stop at
    # different steps and wait for each other forever.
    action = handle if is_first_process() else signal.SIG_IGN
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    ignored = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
    if signal.SIGINT in ignored:  # by a shell that starts a command in the background; SIGINT must still work
        ignored.remove(signal.SIGINT)
    # Under nohup, SIGHUP stays ignored.
    before = {number: signal.signal(number, action) for number in numbers if number not in ignored}
    try:
        yield
    finally:
        if isinstance(shown, Shown):
            shown.close()
        for number, earlier in before.items():
            signal.signal(number, earlier)
