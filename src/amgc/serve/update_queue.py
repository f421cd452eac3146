"""A thread that changes the model, one update after another, while the server continues to answer predictions.

A `Model` replaces its state in one step after a change is written to disk, and each prediction reads the state once. So a
prediction uses the model either before or after a change. Between updates the thread checks whether another process has
changed the folder.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from amgc.core.expected import ExpectedAccuracy
from amgc.model import Info, Learned, Model
from amgc.model.held import Held
from amgc.model.inputs import Input
from amgc.model.manifest import checked_name, normal
from amgc.model.state import State
from amgc.serve.errors import LOG, ApiError, StoppedError, sentence

CHECK_SECONDS = 0.5  # seconds between checks of the folder
CLOSE_SECONDS = 10  # seconds that the current update may take when the server is stopped; writing is atomic
T = TypeVar("T")


@dataclass(frozen=True)
class LearnProgress:
    """Progress of the current call of `learn`."""

    label: str
    done: int
    total: int


@dataclass(frozen=True)
class Undoable:
    """The last change, and the state of the model before it: that of the folder, and the lessons in memory.

    what : the change, in words.
    lesson : requests with the same value, if it is not "", belong to one change.
    generation : of the model after the change. If it differs, another process has changed the model, and the change cannot be
        undone.
    """

    what: str
    lesson: str
    before: State
    held: Held
    generation: int


def new_name(label: str) -> str:
    """Return the normalised name of a class, or raise the response for one that cannot be a name, such as an invisible one."""
    try:
        return checked_name(label)
    except ValueError as error:
        raise ApiError(422, sentence(str(error))) from error


class UpdateQueue:
    """A bounded queue of updates, and the thread that runs them. `stop` cancels the current update and all waiting ones.

    hold : lessons of fewer images of a class stay in memory until there are as many, or the queue is closed.
    """

    def __init__(self, model: Model, waiting: int, hold: int = 1) -> None:
        self.model, self.hold = model, hold
        self.info: Info = model.info()  # cached after each change, so that requests do not wait for the disk
        self.expected: ExpectedAccuracy | None = model.expected_accuracy()
        self.last: Undoable | None = None
        self.progress: LearnProgress | None = None
        self.problem: str | None = None  # why changes by other processes cannot be loaded
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(waiting)
        self.closing = threading.Event()  # set when the server is stopped
        self._thread = threading.Thread(target=self._work, name="amgc-update", daemon=True)
        self._seen: tuple[int, int, int] | None = None  # of the manifest that was loaded; None forces a first check

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.closing.set()
        with suppress(queue.Full):  # otherwise the thread is busy and will check the event
            self._jobs.put_nowait(lambda: None)  # the thread may be waiting for a job

    def close(self) -> None:
        self.stop()
        self._thread.join(timeout=CLOSE_SECONDS)
        if counts := self.model.held.counts:
            shown = ", ".join(f"{count} of {label!r}" for label, count in counts.items())
            try:
                self.model.write_held()
            except Exception as error:
                LOG.error("lost, because the folder could not be written, were the pictures in memory: %s (%s)", shown, error)
            else:
                LOG.warning("written, because the server stops, were the pictures in memory: %s", shown)

    @property
    def waiting(self) -> int:
        """Number of updates in the queue."""
        return self._jobs.qsize()

    def learn(self, pictures: Sequence[Input], label: str, lesson: str = "") -> Future[Learned]:
        """Learn a class; unreadable images are skipped. Requests of one lesson are undone together."""
        name = new_name(label)

        def job() -> Learned:
            self.progress = LearnProgress(name, 0, len(pictures))
            told = lambda *at: self._advance(name, *at)  # noqa: E731
            return self.model.learn(pictures, name, progress=told, on_corrupt="skip", hold=self.hold)

        return self._submit(job, f"learning “{name}”", lesson)

    def undo(self) -> Future[str]:
        """Undo the last change. Return the change in words."""

        def job() -> str:
            self._check_folder()  # if another process has forgotten a class since, undo must not restore it
            if self.undo_words is None:
                raise ApiError(409, "There is nothing to undo.")
            what = self.undo_words
            if self.undoable is None:
                self.model.undo()
            else:
                self.model.restore(self.undoable.before, self.undoable.held).drop_previous()
            return what

        return self._submit(job)

    @property
    def undoable(self) -> Undoable | None:
        """The last change, if it can be undone: it was made here, and no other process has changed the model since."""
        return self.last if self.last and self.last.generation == self.info.generation else None

    @property
    def undo_words(self) -> str | None:
        """What can be undone, in words: the last change made here, or else the change that the folder can undo."""
        if self.undoable is not None:
            return self.undoable.what
        return "the last change" if self.info.can_undo else None

    def replace(self, other: State) -> Future[None]:
        """Replace the model with another one."""

        def job() -> None:
            self.model.restore(other)

        return self._submit(job, "opening a model")

    def rename(self, label: str, to: str, join: bool) -> Future[None]:
        """Rename a class, or join it with an existing class of the new name."""
        old, new = normal(label), new_name(to)

        def job() -> None:
            if old not in self.model.classes:
                raise ApiError(404, "The model has no class of that name.")
            if new in self.model.classes and not join:
                raise ApiError(409, f"The model already has a class “{new}”; join the two, or choose another name.")
            self.model.rename(old, new, join=join)

        return self._submit(job, f"renaming “{old}” to “{new}”")

    def forget(self, label: str) -> Future[None]:
        """Forget a class. This cannot be undone."""

        def job() -> None:
            if normal(label) not in self.model.classes:
                raise ApiError(404, "The model has no class of that name.")
            self.model.forget(label)

        return self._submit(job)

    def _submit(self, job: Callable[[], T], what: str = "", lesson: str = "") -> Future[T]:
        """Add a change to the queue. `what` describes it for undo; "" if it cannot be undone."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the client disconnected before the update began
            try:
                try:
                    if self.closing.is_set():
                        raise StoppedError
                    before = self.model.stored, self.model.held
                    found = job()
                    self._note(*before, what, lesson)
                finally:
                    # Reset before the result is set: a client that has the result must not see the update as running.
                    self.progress = None
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        if self.closing.is_set():
            raise StoppedError
        try:
            self._jobs.put_nowait(run)
        except queue.Full:
            seconds = 5
            raise ApiError(429, f"{self.waiting} updates are already waiting; try again in {seconds} s.", seconds) from None
        return future

    def _note(self, before: State, held: Held, what: str, lesson: str) -> None:
        """Record a change for undo, and update the cached information about the model."""
        same = lesson and self.undoable is not None and self.undoable.lesson == lesson
        info = self.model.info()
        if same:
            assert self.last is not None
            together = what if what == self.last.what else "learning several classes"
            self.last = replace(self.last, what=together, generation=info.generation)
        else:
            can_undo = what and info.privacy is None  # undoing would refund the budget
            self.last = Undoable(what, lesson, before, held, info.generation) if can_undo else None
        self.expected = self.model.expected_accuracy()
        self.info = info

    def _advance(self, label: str, done: int, total: int) -> None:
        self.progress = LearnProgress(label, done, total)
        if self.closing.is_set():
            raise StoppedError

    def _work(self) -> None:
        while not self.closing.is_set():
            try:
                job = self._jobs.get(timeout=CHECK_SECONDS)
            except queue.Empty:
                self._check_folder()
                continue
            job()
        while not self._jobs.empty():
            self._jobs.get()()

    def _check_folder(self) -> None:
        """Load changes made by other processes. If that fails, keep the last state."""
        try:
            stamp = self._stamp()  # before reading, so that a later change is noticed next time
            if stamp == self._seen and self.problem is None:
                return
            self.model.refresh()
            self.expected = self.model.expected_accuracy()
            self.info, self._seen, self.problem = self.model.info(), stamp, None
        except Exception as error:  # the folder is missing, damaged or of a newer version
            if self.problem is None:
                LOG.error("the model's folder cannot be read; the server continues with the last state: %s", error)
            self.problem = "The model's folder cannot be read; answers are those of its last state."

    def _stamp(self) -> tuple[int, int, int]:
        """Return a value that changes whenever the manifest file is replaced."""
        found = (self.model.path / "manifest.json").stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
