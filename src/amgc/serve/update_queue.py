"""The one thread that changes the model. Lessons wait in a queue of bounded length; meanwhile the old model answers.

A `Model` replaces its state in one step when a change is on the disk, and a prediction takes the state once, so it is made by
the model of before or of after. Between changes the thread looks whether another process has changed the folder.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from amgc.model import Info, Learned, Model
from amgc.model.model import checked_name, normal
from amgc.model.pictures import Picture
from amgc.serve.problems import LOG, Problem

LOOK = 0.5  # seconds between looks at the folder
T = TypeVar("T")


class Stopped(Problem):
    """The server is closing."""

    def __init__(self) -> None:
        super().__init__(503, "The server is closing; the model is as it was before.", 10)


@dataclass(frozen=True)
class Progress:
    """Of the lesson that is being learned."""

    label: str
    done: int
    total: int


class Teacher:
    """Changes one after another, from `start` to `close`; `stop` gives up a lesson that is not done, and those that wait."""

    def __init__(self, model: Model, waiting: int) -> None:
        self.model = model
        self.about: Info = model.info()  # as of the last change; made here, so that nobody who asks waits for the disk
        self.progress: Progress | None = None
        self.problem: str | None = None  # why the folder's latest state could not be taken over
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(waiting)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="amgc-teacher", daemon=True)
        self._seen: tuple[int, int, int] | None = None  # the first look reads: the model was opened some time ago

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._closing.set()

    def close(self) -> None:
        self.stop()
        self._thread.join(timeout=30)

    @property
    def waiting(self) -> int:
        """Changes in the queue."""
        return self._jobs.qsize()

    def learn(self, pictures: list[Picture], label: str) -> Future[Learned]:
        """A lesson. Pictures that cannot be used are left out."""
        name = checked_name(label)

        def job() -> Learned:
            self.progress = Progress(name, 0, len(pictures))
            return self.model.learn(pictures, name, progress=lambda *at: self._went_on(name, *at), on_corrupt="skip")

        return self._submit(job)

    def forget(self, label: str) -> Future[None]:
        def job() -> None:
            if normal(label) not in self.model.classes:
                raise Problem(404, "The model knows no class of that name.")
            self.model.forget(label)

        return self._submit(job)

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # who asked has gone before it began
            try:
                try:
                    if self._closing.is_set():
                        raise Stopped
                    found = job()
                    self.about = self.model.info()
                finally:
                    self.progress = None  # before the answer: who has it is not told that the lesson is still going on
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        if self._closing.is_set():
            raise Stopped
        try:
            self._jobs.put_nowait(run)
        except queue.Full:
            seconds = 5
            raise Problem(429, f"{self.waiting} lessons are waiting already; try again in {seconds} s.", seconds) from None
        return future

    def _went_on(self, label: str, done: int, total: int) -> None:
        self.progress = Progress(label, done, total)
        if self._closing.is_set():
            raise Stopped

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                job = self._jobs.get(timeout=LOOK)
            except queue.Empty:
                self._look()
                continue
            job()
        while not self._jobs.empty():
            self._jobs.get()()

    def _look(self) -> None:
        """Take over what another process has written. While that is impossible, what was known goes on answering."""
        try:
            stamp = self._stamp()  # before it is read: what changes meanwhile is seen the next time
            if stamp == self._seen and self.problem is None:
                return
            self.model.refresh()
            self.about, self._seen, self.problem = self.model.info(), stamp, None
        except Exception as error:  # the folder is gone, damaged, or of a newer version: none ends the server
            if self.problem is None:
                LOG.error("the model's folder cannot be read; the server goes on with what it knew: %s", error)
            self.problem = "The model's folder cannot be read; these are the answers of what was known before."

    def _stamp(self) -> tuple[int, int, int]:
        """Changes whenever the manifest is replaced."""
        found = (self.model.path / "manifest.json").stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
