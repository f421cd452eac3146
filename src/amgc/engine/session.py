"""The state of a run: the stream of tasks, the network, the method, and the position in the stream."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amgc.data import Augment, Dataset, TaskStream, class_order, load, order_of, split_tasks
from amgc.engine.checkpoint import Checkpoints, Position
from amgc.engine.config import Config
from amgc.engine.features import FeatureSource
from amgc.engine.processes import Processes
from amgc.engine.seeding import seed_torch
from amgc.engine.training import Meter
from amgc.engine.watch import Watch
from amgc.features import build
from amgc.features.extractor import Extractor
from amgc.methods.contract import Method, Task
from amgc.methods.registry import find
from amgc.runs.folder import RunFolder
from amgc.text import listing


class Identity(Extractor):
    """The extractor of a data set that consists of features: the identity."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return features


def order_and_sizes(config: Config, dataset: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the classes in order of arrival, as labels of the data set, and the number of classes in each task."""
    if config.classes is not None:
        order = order_of(config.classes, dataset.class_names)
    else:
        order = class_order(len(dataset.class_names), None if config.natural_order else config.seed)
    tasks = config.tasks
    if (config.first_classes, config.increment, config.sizes, tasks) == (None, None, None, None):
        tasks = 1
    return order, split_tasks(
        len(order), tasks=tasks, first=config.first_classes, increment=config.increment, sizes=config.sizes
    )


def make_network(config: Config, dataset: Dataset) -> Extractor:
    """Return the extractor for the data set's images; for a data set of features the identity."""
    if dataset.is_features:
        return Identity(dataset.train.shape[0])
    augmented = Augment.of(dataset)
    shape = (dataset.train.shape[0], augmented.size, augmented.size) if augmented.resized else dataset.train.shape
    return build(config.features, image_shape=shape, **config.features_options)


class Stopwatch:
    """Seconds spent on each activity of the current task."""

    def __init__(self) -> None:
        self.start()
        self.reset()

    def start(self) -> None:
        """Count from now on."""
        self._since = time.monotonic()

    def reset(self) -> None:
        self.seconds = {"train": 0.0, "remember": 0.0, "evaluate": 0.0}

    def count(self, activity: str) -> None:
        """Add the time since the last call to this activity."""
        now = time.monotonic()
        self.seconds[activity] += now - self._since
        self._since = now


class Session:
    """Everything that a run needs while it runs. `features` provides its data, `checkpoints` saves and restores it."""

    def __init__(self, config: Config, folder: Path, watch: Watch, dataset: Dataset | None = None) -> None:
        self.config, self.folder, self.watch = config, RunFolder(folder), watch
        self.processes = Processes(config.machine)
        dataset = dataset or load(config.data, **config.data_options)
        if dataset.skipped:
            watch.note(f"{len(dataset.skipped)} unreadable images were left out: {listing(dataset.skipped)}")
        self.skipped = dataset.skipped
        self.stream = TaskStream(dataset, *order_and_sizes(config, dataset))
        seed_torch(self.processes.device, config.seed, "weights")
        self.network = make_network(config, dataset).to(self.processes.device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's types lack it
        self.augment = Augment.of(dataset).normalised(self.network.mean, self.network.std)
        self.image_side = 0 if dataset.is_features else dataset.train.shape[1]  # before any crop
        self.method: Method[Any] = find(config.method).kind(config.hyper, self.network, self.processes.device)
        self.features = FeatureSource(self)
        self.checkpoints = Checkpoints(self)
        self.position = Position()
        self.meter = Meter()
        self.stopwatch = Stopwatch()
        self.lines: list[dict[str, Any]] = []  # of metrics.jsonl

    def task(self, index: int) -> Task:
        return Task(index, self.stream.classes(index))
