"""Answer concurrent requests together: their images go through the extractor in one batch.

Threads decode the images of each request. One thread encodes and classifies the decoded images: it takes those that arrived
while it worked on the previous batch, and waits a few milliseconds if there are few.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amgc.features.extractor import Extractor
from amgc.model import ImageError, Model, Prediction
from amgc.model.extractors import encode
from amgc.model.inputs import Input
from amgc.model.predict import check_can_predict, classify
from amgc.model.state import State
from amgc.serve.errors import ApiError
from amgc.serve.metrics import Metrics
from amgc.serve.work import Workers

WAIT = 0.004  # seconds to wait for more images
BATCH = 32  # images that are encoded together
WAITING = 1024  # images of all requests that wait; beyond, requests are refused
RETRY = 2  # seconds after which a refused client should try again


@dataclass
class Request:
    """A decoded request. state : of the model when it was decoded. All images are answered with this state or a later one."""

    state: State
    pixels: list[NDArray[np.uint8]]
    names: list[str]
    top: int
    reject: float | None
    answer: Future[list[Prediction]]


class Batcher:
    """A queue of requests and the thread that answers them."""

    def __init__(self, model: Model, workers: Workers, metrics: Metrics, waiting: int = WAITING) -> None:
        self.model, self.workers, self.metrics, self.most = model, workers, metrics, waiting
        self.waiting = 0  # images
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="amgc-batch", daemon=True)

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()

    def close(self) -> None:
        """End the thread after the requests that are in the queue."""
        self._queue.put(None)

    def submit(self, pictures: Sequence[Input], top: int, reject: float | None) -> Future[list[Prediction]]:
        """Return the predictions for the images of a request. Raises ApiError 503 if too many images wait."""
        with self._lock:
            if self.waiting and self.waiting + len(pictures) > self.most:
                self.metrics.add("refused")
                raise ApiError(503, f"{self.waiting} pictures are waiting already; try again in {RETRY} s.", RETRY)
            self.waiting += len(pictures)
            self.metrics.set("waiting", self.waiting)
        answer: Future[list[Prediction]] = Future()
        answer.add_done_callback(lambda _: self._leave(len(pictures)))
        self.workers.submit(self._decode, pictures, top, reject, answer)
        return answer

    def _leave(self, count: int) -> None:
        with self._lock:
            self.waiting -= count
            self.metrics.set("waiting", self.waiting)

    def _decode(self, pictures: Sequence[Input], top: int, reject: float | None, answer: Future[list[Prediction]]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            state = self.model.state
            check_can_predict(state, top, reject)
            if not isinstance(state.extractor, Extractor):  # a function of the user's
                answer.set_result(self.model.predict(list(pictures), top, reject))
                return
            pixels = list(state.frame.each(pictures))
            if wrong := next((one for one in pixels if isinstance(one, ImageError)), None):
                raise wrong
            usable = [one for one in pixels if not isinstance(one, ImageError)]
            self._queue.put(Request(state, usable, [one.name for one in pictures], top, reject, answer))
        except BaseException as error:
            answer.set_exception(error)

    def _work(self) -> None:
        first: Request | None = self._queue.get()
        while first is not None:
            batch, first = self._gathered(first)
            try:
                self._answer(batch)
            except BaseException as error:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
            del batch  # it holds images
            if first is None:
                first = self._queue.get()
            elif first is _END:
                return

    def _gathered(self, first: Request) -> tuple[list[Request], Request | None]:
        """Return the requests of a batch, and the first one of the next if it is known already."""
        batch, images, deadline = [first], len(first.pixels), time.monotonic() + WAIT
        while images < BATCH:
            try:
                following = self._queue.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                return batch, None
            if following is None:
                return batch, _END
            if following.state.extractor is not first.state.extractor:  # another model was opened
                return batch, following
            batch.append(following)
            images += len(following.pixels)
        return batch, None

    def _answer(self, batch: list[Request]) -> None:
        state, now = batch[0].state, self.model.state
        if now.extractor is state.extractor and type(now.classifier) is type(state.classifier):
            state = now  # newer than when the images were decoded
        assert isinstance(state.extractor, Extractor)
        pixels = [one for request in batch for one in request.pixels]
        names = [name for request in batch for name in request.names]
        found: list[Prediction] = []
        top = max(request.top for request in batch)
        for start in range(0, len(pixels), BATCH):
            features = encode(state.extractor, np.stack(pixels[start : start + BATCH]))
            found += classify(state, features, names[start : start + BATCH], top, None)
        self.metrics.add("batches")
        self.metrics.add("images", len(pixels))
        start = 0
        for request in batch:
            own = found[start : start + len(request.pixels)]
            start += len(request.pixels)
            request.answer.set_result([_cut(one, request.top, request.reject) for one in own])


def _cut(found: Prediction, top: int, reject: float | None) -> Prediction:
    """Return a prediction with the options of a request."""
    rejected = reject is not None and found.fit is not None and found.fit < reject
    return Prediction(found.labels[:top], found.probabilities[:top], found.fit, rejected, found.source)


_END = Request.__new__(Request)  # the queue is closed
