"""Threads that answer requests. Work is cancelled if the client has disconnected."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request

from amgc.serve.errors import AbandonedError, StoppedError

P = ParamSpec("P")
T = TypeVar("T")
Jobs = queue.SimpleQueue[Callable[[], None] | None]


class Workers:
    """Threads that run functions in order. Unlike those of a ThreadPoolExecutor, they do not delay the end of the process.

    >>> Workers(2).submit(max, 3, 4).result()
    4
    """

    def __init__(self, count: int) -> None:
        self.count, self._started, self._lock = count, 0, threading.Lock()
        self._jobs: Jobs = queue.SimpleQueue()
        weakref.finalize(self, _end, self._jobs, count)

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                found = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        self._jobs.put(run)
        with self._lock:
            if self._started < self.count:
                self._started += 1
                threading.Thread(target=_work, args=(self._jobs,), name="amgc-predict", daemon=True).start()
        return future


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds images


def _end(jobs: Jobs, count: int) -> None:
    for _ in range(count):
        jobs.put(None)


class Work:
    """The work on a request. `check` raises an error if the client has disconnected or the server is being stopped.

    closing : set when the server is stopped.
    """

    def __init__(self, closing: threading.Event) -> None:
        self._closing, self._abandoned = closing, threading.Event()

    def check(self) -> None:
        if self._closing.is_set():
            raise StoppedError
        if self._abandoned.is_set():
            raise AbandonedError

    async def result(self, request: Request, future: Future[T]) -> T:
        """Wait for the result while the client does. The body of the request must have been read."""
        waiting, leaving = asyncio.wrap_future(future), asyncio.ensure_future(_disconnected(request))
        try:
            either: set[asyncio.Future[Any]] = {waiting, leaving}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._abandoned.set()
                if future.cancel():  # it has not begun
                    raise AbandonedError
            return await waiting  # also if abandoned: the images are in memory until then
        finally:
            self._abandoned.set()
            waiting.cancel()
            leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
