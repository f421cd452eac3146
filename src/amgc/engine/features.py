"""Where the images and features of a run come from: computed, kept in memory, or read from the feature cache on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from amgc.data import BatchRandom, Images
from amgc.engine.watch import Stopped
from amgc.features.cache import cached_features
from amgc.methods.contract import Task

if TYPE_CHECKING:
    from amgc.engine.session import Session

BATCH = 256  # images per forward pass without training
# Bytes of features that are kept in memory. If a task's training features need more, they are computed again in each pass over
# them; if the test features need more, they are computed again after every task.
TRAINING_ROOM, TEST_ROOM = 1_000_000_000, 4_000_000_000


class FeatureSource:
    """Provides a task's images, and their features without augmentation."""

    def __init__(self, session: Session) -> None:
        self.session, self.stream, self.method = session, session.stream, session.method
        self.augment, self.processes = session.augment, session.processes
        self.cache = session.config.machine.feature_cache  # a folder, if the user named one
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
            for features, labels in self.extract(self.stream.test_new(index)):
                yield features.cpu(), labels.cpu()
            return
        version = self._version()
        if index not in self._test or self._test[index][0] != version:
            images = self.stream.test_new(index)
            self._test[index] = version, self.extract_all(images), images.labels
        _, kept, labels = self._test[index]
        yield from zip(torch.split(kept, 4096), torch.split(labels, 4096), strict=True)

    def passes(self, index: int, *, reads: bool, new_network: bool, resumed: bool) -> int:
        """Return how many images will go through the network for `Method.end` and the evaluation of a task.

        reads : whether `Method.end` reads the features.
        new_network : whether the network is replaced in this task by one that another run has trained.
        resumed : whether this is the first task of this process, which has kept no features.
        """
        images, phase = self.image_count(index), self.method.phase(self.session.task(index))
        tests = [self.stream.counts(earlier)[1] for earlier in range(index + 1)]
        if new_network or self.method.trains_network(phase):
            return images * reads + sum(tests)
        again = sum(tests) if resumed or not self.keeps_tests else tests[-1]
        return images * (reads and not phase.epochs) + again  # if the head is trained on features, they are kept

    def kept_bytes(self, tasks: range) -> int:
        """Return the bytes of features that are kept: of all test images, and of the training images of the largest task."""
        tests = sum(self.stream.counts(index)[1] for index in range(len(self.stream))) * self.keeps_tests
        frozen = [task for task in map(self.session.task, tasks) if not self.method.trains_network(self.method.phase(task))]
        training = max((self.image_count(task.index) for task in frozen if not self.streams(task)), default=0)
        return 4 * self.method.network.dim * (tests + training)

    # ---- any images --------------------------------------------------------------------------------------------------

    def batches(
        self, images: Images, size: int, generator: torch.Generator | None = None, *, augmented: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's share of each batch, and its labels; the network is in evaluation mode.

        With a generator, the images are in random order and can be augmented.
        """
        self.method.network.eval()
        share, device = self.processes.share, self.processes.device
        order = torch.arange(len(images)) if generator is None else torch.randperm(len(images), generator=generator)
        parts = torch.split(order, size)
        for rows, (batch, labels) in zip(parts, images.batches([rows[share(len(rows))] for rows in parts]), strict=True):
            self._may_stop()
            batch = batch.to(device, non_blocking=True)
            if generator is not None and augmented:
                batch = self.augment(batch, BatchRandom(generator, share(len(rows)).start, len(rows)))
            else:
                batch = self.augment.plain(batch)
            yield batch.contiguous(memory_format=torch.channels_last) if batch.ndim == 4 else batch, labels.to(device)

    def extract(self, images: Images, network: nn.Module | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features and labels, batch after batch, of all processes."""
        network = self.method.network if network is None else network
        labels = torch.split(images.labels, BATCH)
        for (plain, _), whole in zip(self.batches(images, BATCH), labels, strict=True):
            with torch.no_grad(), self.processes.fabric.autocast():
                features = network(plain)
            yield self.processes.gather(features.float()), whole.to(self.processes.device)

    def extract_all(self, images: Images) -> Tensor:
        """Return all features (n, d), from the feature cache if there is one and the network does not train in this task."""
        network = self.method.network
        if self.cache and self.processes.count == 1 and not self.method.trains_network():
            return self._cached(images)
        kept, start = torch.empty(len(images), network.dim), 0
        for features, _ in self.extract(images):
            kept[start : start + len(features)] = features
            start += len(features)
        return kept

    def _cached(self, images: Images) -> Tensor:
        """Return the same from a cache file per class, which runs with other tasks or another order of classes can use too."""
        assert self.cache is not None
        kept = torch.empty(len(images), self.method.network.dim)
        for label in sorted(set(images.labels.tolist())):
            rows = (images.labels == label).nonzero().squeeze(1)
            own = images.subset(rows, labels=torch.zeros_like(rows))
            kept[rows] = cached_features(self.method.network, own, preprocess=self._stoppable_plain, directory=self.cache)
        return kept

    def _stoppable_plain(self, batch: Tensor) -> Tensor:
        self._may_stop()
        return self.augment.plain(batch)

    def _may_stop(self) -> None:
        """Raise Stopped if the user has asked to stop the run. Called between batches."""
        if self.session.watch.stop and self.processes.count == 1:  # several processes cannot agree here
            raise Stopped

    def _version(self) -> object:
        """Return a value that changes whenever a weight or a running mean of the network does."""
        state = self.method.network.state_dict(keep_vars=True)
        return tuple((tensor.data_ptr(), tensor._version) for tensor in state.values())


class ImagesOfTask:
    """The training images of a task, as `Method.collect` gets them (`amgc.methods.TaskImages`).

    passes : how often all images were read, to be used with gradients (True), or without.
    picked : how many images `take` returned at most.
    """

    def __init__(self, source: FeatureSource, task: Task) -> None:
        self.source, self.images = source, source.training_images(task)
        self.labels = self.images.labels.to(source.processes.device)
        self.gather, self.sum = source.processes.gather, source.processes.sum
        self.passes: Counter[bool] = Counter()
        self.picked = 0

    def batches(
        self, size: int, generator: torch.Generator | None = None, *, augmented: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes[True] += 1
        return self.source.batches(self.images, size, generator, augmented=augmented)

    def take(self, numbers: Tensor) -> Tensor:
        self.picked, numbers = max(self.picked, len(numbers)), numbers.cpu()
        images = self.images.take(numbers[self.source.processes.share(len(numbers))])
        return self.source.augment.plain(images.to(self.source.processes.device))

    def features(self, network: nn.Module) -> Tensor:
        self.passes[False] += 1
        return torch.cat([features for features, _ in self.source.extract(self.images, network)])


class TaskFeatures:
    """The features of a task's training images, batch after batch, as `Method.end` gets them: it may iterate more than once."""

    def __init__(self, source: FeatureSource, task: Task) -> None:
        self.source, self.task = source, task

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        source, images = self.source, self.source.training_images(self.task)
        if source.method.trains_network() or source.streams(self.task):
            yield from source.extract(images)
            return
        features, device = source.training(self.task), source.processes.device
        for rows, labels in zip(torch.split(features, BATCH), torch.split(images.labels, BATCH), strict=True):
            yield rows.to(device), labels.to(device)
