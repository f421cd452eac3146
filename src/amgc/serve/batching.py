"""Answer concurrent requests together: their images go through the extractor in one batch.

Threads decode images: one image of each request at a time, in turn. Large images have threads of their own. So a small request
waits for at most one image of each other request, and not for large images. One thread encodes and classifies the decoded
images: it takes those that arrived while it worked on the previous batch, and waits a few milliseconds if there are few. A
request with many images is encoded in parts, in turn with others.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc.features.extractor import Extractor
from amgc.model import Model, Prediction
from amgc.model.extractors import encode
from amgc.model.predict import check_can_predict, classify
from amgc.model.state import State
from amgc.serve.errors import ApiError
from amgc.serve.metrics import Metrics
from amgc.serve.uploads import Upload
from amgc.serve.work import Workers

WAIT = 0.004  # seconds to wait for more images
BATCH = 32  # images that are encoded together
LARGE = 16_000_000  # pixels above which an image is large: it may take seconds to decode, others a fraction of one
WAITING = 1024  # images of all requests that wait; beyond, requests are refused
VECTORS = 100_000  # the same for a model of vectors
RETRY = 2  # seconds after which a refused client should try again
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Request:
    """A request for predictions. state : of the model when it came. All images are answered with this state or a later one.

    pixels : of images that are decoded, and not encoded yet. features : of those that are encoded.
    """

    state: State
    pictures: Sequence[Upload]
    top: int
    reject: float | None
    answer: Future[list[Prediction]] = field(default_factory=Future)
    pixels: list[NDArray[np.uint8]] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)

    def take(self, most: int) -> list[NDArray[np.uint8]]:
        """Return the pixels of at most `most` images that are not encoded yet."""
        taken, self.pixels = self.pixels[:most], self.pixels[most:]
        return taken


class Batcher:
    """A queue of requests and the thread that answers them."""

    def __init__(self, model: Model, workers: Workers, metrics: Metrics, waiting: int = WAITING) -> None:
        self.model, self.workers, self.metrics, self.most = model, workers, metrics, waiting
        self.large = Workers(workers.count)  # threads that decode large images
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

    def submit(self, pictures: Sequence[Upload], top: int, reject: float | None) -> Future[list[Prediction]]:
        """Return the predictions for the images of a request. Raises ApiError 503 if too many images wait."""
        state = self.model.state
        check_can_predict(state, top, reject)
        self._enter(len(pictures))
        request = Request(state, pictures, top, reject)
        request.answer.add_done_callback(lambda _: self._leave(len(pictures)))
        self._decode_next(request)
        return request.answer

    def run(self, count: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function for `count` vectors in a thread. Raises ApiError 503 if too many wait."""
        self._enter(count)
        future = self.workers.submit(function, *args, **kwargs)
        future.add_done_callback(lambda _: self._leave(count))
        return future

    def _enter(self, count: int) -> None:
        with self._lock:
            if self.waiting and self.waiting + count > self.most:
                self.metrics.add("refused")
                noun = self.model.state.manifest.noun.replace("image", "picture")
                raise ApiError(503, f"{self.waiting} {noun}s are waiting already; try again in {RETRY} s.", RETRY)
            self.waiting += count
            self.metrics.set("waiting", self.waiting)

    def _leave(self, count: int) -> None:
        with self._lock:
            self.waiting -= count
            self.metrics.set("waiting", self.waiting)

    # ---- decode ------------------------------------------------------------------------------------------------------

    def _decode_next(self, request: Request) -> None:
        picture = request.pictures[len(request.pixels)]
        (self.large if picture.pixels > LARGE else self.workers).submit(self._decode, request, picture)

    def _decode(self, request: Request, picture: Upload) -> None:
        if not request.pixels and not request.answer.set_running_or_notify_cancel():
            return
        try:
            if not isinstance(request.state.extractor, Extractor):  # a function of the user's
                request.answer.set_result(self.model.predict(list(request.pictures), request.top, request.reject))
                return
            request.pixels.append(request.state.frame.pixels(picture))
            if len(request.pixels) < len(request.pictures):
                self._decode_next(request)
            else:
                self._queue.put(request)
        except BaseException as error:
            request.answer.set_exception(error)

    # ---- encode and classify -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            request = self._queue.get()
            if request is None:
                if self._queue.empty():
                    return
                self._queue.put(None)  # after the parts of requests that are left
                continue
            batch = self._gathered(request)
            try:
                self._answer(batch)
            except BaseException as error:
                for one, _ in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
            del request, batch  # they hold images

    def _gathered(self, first: Request) -> list[tuple[Request, list[NDArray[np.uint8]]]]:
        """Return the requests of a batch, each with the pixels of all its images or of the next ones."""
        batch = [(first, first.take(BATCH))]
        room, deadline = BATCH - len(batch[0][1]), time.monotonic() + WAIT
        while room:
            try:
                following = self._queue.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                break
            if following is None or following.state.extractor is not first.state.extractor:  # another model was opened
                self._queue.put(following)
                break
            batch.append((following, following.take(room)))
            room -= len(batch[-1][1])
        return batch

    def _answer(self, batch: list[tuple[Request, list[NDArray[np.uint8]]]]) -> None:
        extractor = batch[0][0].state.extractor
        assert isinstance(extractor, Extractor)
        features = encode(extractor, np.stack([one for _, pixels in batch for one in pixels]))
        self.metrics.add("batches")
        self.metrics.add("images", len(features))
        complete: list[Request] = []
        for (request, _), own in zip(batch, torch.split(features, [len(pixels) for _, pixels in batch]), strict=True):
            request.features.append(own)
            if request.pixels:
                self._queue.put(request)
            else:
                complete.append(request)
        if complete:
            self._classify(complete)

    def _classify(self, requests: list[Request]) -> None:
        state, now = requests[0].state, self.model.state
        if now.extractor is state.extractor and type(now.classifier) is type(state.classifier):
            state = now  # newer than when the images were decoded
        features = torch.cat([own for request in requests for own in request.features])
        names = [picture.name for request in requests for picture in request.pictures]
        found = iter(classify(state, features, names, max(request.top for request in requests), None))
        for request in requests:
            own = [_cut(next(found), request.top, request.reject) for _ in request.pictures]
            request.answer.set_result(own)


def _cut(found: Prediction, top: int, reject: float | None) -> Prediction:
    """Return a prediction with the options of a request."""
    rejected = reject is not None and found.fit is not None and found.fit < reject
    return Prediction(found.labels[:top], found.probabilities[:top], found.fit, rejected, found.source)
