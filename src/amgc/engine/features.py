"""Where the images and features of a run come from: computed, kept in memory, or read from the feature cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amgc.data import Augment, Images, TaskStream
from amgc.engine.processes import Processes
from amgc.engine.watch import Stopped
from amgc.features.cache import cached_features
from amgc.methods.contract import Features, Method, Task

BATCH = 256  # images per forward pass without training
# Bytes of features that are kept in memory. If a task's training features need more, they are computed anew in each pass over
# them; if the test features need more, they are computed anew after every task.
TRAINING_ROOM, TEST_ROOM = 1_000_000_000, 4_000_000_000


class FeatureSource:
    """Provides a task's images, and their features without augmentation.

    `cache` is the folder of the feature cache, if the user named one. `stopping` says whether the user asked to stop.
    """

    def __init__(
        self,
        stream: TaskStream,
        method: Method[Any],
        augment: Augment,
        processes: Processes,
        cache: str | None,
        stopping: Callable[[], bool],
    ) -> None:
        self.stream, self.method, self.augment, self.processes = stream, method, augment, processes
        self.cache, self.stopping = cache, stopping
        self._images: tuple[int, Images] | None = None
        self._training: tuple[object, Tensor] | None = None
        self._test: dict[int, tuple[object, Tensor, Tensor]] = {}  # network version, features and labels of each task

    # ---- training ----------------------------------------------------------------------------------------------------

    def training_images(self, task: Task) -> Images:
        """Return the images of the new classes, or of all seen classes for the upper bound `joint`."""
        if self._images is None or self._images[0] != task.index:  # the copy of one task's images is kept, no more
            of = self.stream.train_seen if self.method.sees_old_data else self.stream.train
            self._images = task.index, of(task.index)
        return self._images[1]

    def image_count(self, index: int) -> int:
        """Return how many images a task trains on, without reading any."""
        counts = [self.stream.counts(earlier)[0] for earlier in range(index + 1)]
        return sum(counts) if self.method.sees_old_data else counts[-1]

    def training(self, task: Task) -> Tensor:
        """Return all features (n, d) of the task's training images. For a network that does not train: computed once."""
        key = (task.index, self._version())
        if self._training is None or self._training[0] != key:
            self._training = None  # free the last task's features first
            self._training = key, self.extract_all(self.training_images(task))
        return self._training[1]

    def for_end(self, task: Task) -> Features:
        """Return what `Method.end` gets: it may iterate more than once."""
        if self.method.trains_network() or self.streams(task):
            return _Repeatable(lambda: self.extract(self.training_images(task)))
        return _Repeatable(lambda: self._stored(task))

    def _stored(self, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
        features, labels, device = self.training(task), self.training_images(task).labels, self.processes.device
        for rows in torch.split(torch.arange(len(labels)), BATCH):
            yield features[rows].to(device), labels[rows].to(device)

    def streams(self, task: Task) -> bool:
        """Return whether the training features of a network that does not train are too large to keep, and need not be kept."""
        needed = self.method.phase(task).epochs > 0 or self.cache is not None
        return not needed and 4 * self.method.network.dim * self.image_count(task.index) > TRAINING_ROOM

    # ---- test --------------------------------------------------------------------------------------------------------

    @property
    def keeps_tests(self) -> bool:
        """Whether the features of all test images are kept as long as the network does not change."""
        count = sum(self.stream.counts(index)[1] for index in range(len(self.stream)))
        return self.cache is not None or 4 * self.method.network.dim * count <= TEST_ROOM

    def test_batches(self, index: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features and labels, on the CPU, of the test images of one task's classes."""
        if not self.keeps_tests:
            for features, labels in self.extract(self._test_images(index)):
                yield features.cpu(), labels.cpu()
            return
        version = self._version()
        if index not in self._test or self._test[index][0] != version:
            images = self._test_images(index)
            self._test[index] = version, self.extract_all(images), images.labels
        _, kept, labels = self._test[index]
        yield from zip(torch.split(kept, 4096), torch.split(labels, 4096), strict=True)

    def _test_images(self, index: int) -> Images:
        images = self.stream.test(index)
        return images.subset((images.labels >= self.stream.classes(index).start).nonzero().squeeze(1))

    # ---- any images --------------------------------------------------------------------------------------------------

    def batches(self, images: Images, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's share of each batch without augmentation, and its labels; the network is in evaluation mode."""
        self.method.network.eval()
        share, device = self.processes.share, self.processes.device
        shares = [rows[share(len(rows))] for rows in torch.split(torch.arange(len(images)), size)]
        for batch, labels in images.batches(shares):
            if self.stopping() and self.processes.count == 1:  # several processes cannot agree here
                raise Stopped
            plain = self.augment.plain(batch.to(device, non_blocking=True))
            plain = plain.contiguous(memory_format=torch.channels_last) if plain.ndim == 4 else plain
            yield plain, labels.to(device)

    def extract(self, images: Images) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features and labels, batch after batch, of all processes."""
        labels = torch.split(images.labels, BATCH)
        for (plain, _), whole in zip(self.batches(images, BATCH), labels, strict=True):
            with torch.no_grad(), self.processes.fabric.autocast():
                features = self.method.network(plain)
            yield self.processes.gather(features.float()), whole.to(self.processes.device)

    def extract_all(self, images: Images) -> Tensor:
        """Return all features (n, d), from the feature cache if there is one and the network does not train in this task."""
        network = self.method.network
        if self.cache and self.processes.count == 1 and not self.method.trains_network():
            return cached_features(network, images, preprocess=self.augment.plain, directory=self.cache)
        kept, start = torch.empty(len(images), network.dim), 0
        for features, _ in self.extract(images):
            kept[start : start + len(features)] = features
            start += len(features)
        return kept

    def _version(self) -> object:
        """Return a value that changes whenever a weight or a running mean of the network does."""
        state = self.method.network.state_dict(keep_vars=True)
        return tuple((tensor.data_ptr(), tensor._version) for tensor in state.values())


class _Repeatable:
    """An iterable that starts anew each time."""

    def __init__(self, start: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._start()
