"""A run in memory: the stream of tasks, the network, the method, and where in the run we are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amgc import files
from amgc.core.inputs import listing
from amgc.data import Augment, Dataset, Images, TaskStream, load
from amgc.engine import checkpoint
from amgc.engine.chance import generator, seed_of
from amgc.engine.config import Config
from amgc.engine.from_config import first_task_key, identity, make_network, order_and_sizes
from amgc.engine.processes import Processes
from amgc.engine.training import Meter
from amgc.engine.watch import Stopped, TrainingError, Watch
from amgc.features.cache import cached_features
from amgc.methods.contract import Features, Method, Plain, Task
from amgc.methods.registry import find

CHECKPOINT, FIRST_TASK = "checkpoint.safetensors", "task-1.safetensors"
FIRST_KIND = "first task"
INFERENCE_BATCH = 256
# Bytes of features that are kept: beyond, those of a task are computed anew in each pass over them, and those of the test
# images after every task. A solved head needs one pass.
TRAINING_ROOM, TEST_ROOM = 1_000_000_000, 4_000_000_000


@dataclass
class Position:
    """Where a run is: optimiser steps done in a task; `begun` once the method has been told of the task."""

    task: int = 0
    step: int = 0
    begun: bool = False


class Again:
    """Something to iterate over, computed anew each time."""

    def __init__(self, make: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._make()


class Session:
    """Everything that a run needs while it runs; `checkpoint` and `resume` are opposites."""

    def __init__(self, config: Config, folder: Path, watch: Watch, dataset: Dataset | None = None) -> None:
        self.config, self.folder, self.watch = config, folder, watch
        self.processes = Processes(config.machine)
        dataset = dataset or load(config.data, **config.data_options)
        if dataset.skipped:
            watch.note(f"{len(dataset.skipped)} unreadable images were left out: {listing(dataset.skipped)}")
        self.skipped = dataset.skipped
        self.stream = TaskStream(dataset, *order_and_sizes(config, dataset))
        torch.manual_seed(seed_of(config.seed, "weights"))
        self.network = make_network(config, dataset).to(self.processes.device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's types lack it
        self.augment = Augment.of(dataset).normalised(self.network.mean, self.network.std)
        self.image_side = 0 if dataset.is_features else dataset.train.shape[1]  # before any crop
        self.method: Method[Any] = find(config.method).kind(config.hyper, self.network, self.processes.device)
        self.position = Position()
        self.meter = Meter()
        self.lines: list[dict[str, Any]] = []  # of metrics.jsonl
        self.seconds = {"train": 0.0, "remember": 0.0, "evaluate": 0.0}  # of the task at hand
        self._optimizer_tensors: dict[str, Tensor] = {}
        self._saved_at = self._counted_at = time.monotonic()
        self._images: tuple[int, Images] | None = None
        self._features: tuple[object, Tensor] | None = None
        self._test: list[tuple[object, Tensor, Tensor]] = []  # features and labels per task, and the network's they are

    def task(self, index: int) -> Task:
        return Task(index, self.stream.classes(index))

    # ---- images and features -----------------------------------------------------------------------------------------

    def fit_network(self) -> None:
        """Before task 1, for a network that learns from its images without training; unless its weights are there already."""
        if not self.network.needs_fit or self.starts_elsewhere:
            return
        drawing, images = generator(self.config.seed, "fit"), self.training_images(self.task(0))
        self.network.fit(images, preprocess=self.augment.plain, generator=drawing)
        self.processes.take_from_first(self.network.buffers())  # cores that differ round differently

    def training_images(self, task: Task) -> Images:
        """The new classes' images; for the upper bound those of all seen classes."""
        if self._images is None or self._images[0] != task.index:  # a copy of the task's images: made once, gone after it
            of = self.stream.train_seen if self.method.sees_old_data else self.stream.train
            self._images = task.index, of(task.index)
        return self._images[1]

    def training_features(self, task: Task) -> Tensor:
        """All features (n, d) of the task's training images by a network that does not train: computed once."""
        version = self.version()
        if self._features is None or self._features[0] != (task.index, version):
            self._features = None  # the last task's go first
            self._features = (task.index, version), self.frozen_features(self.training_images(task))
        return self._features[1]

    def final_features(self, task: Task) -> Features:
        """What `Method.end` is given; it may go through them more than once."""
        if self.method.trains_network() or self.streams(task):
            return Again(lambda: self.plain_features(self.training_images(task)))
        return Again(lambda: self.stored_features(task))

    def streams(self, task: Task) -> bool:
        """Whether the training features of a network that does not train are too large to be kept, and need not be."""
        needed = self.method.phase(task).epochs > 0 or self.config.machine.feature_cache is not None
        return not needed and 4 * self.network.dim * self.image_count(task.index) > TRAINING_ROOM

    @property
    def keeps_tests(self) -> bool:
        """Whether all test images' features are kept, for as long as the network stays the same."""
        count = sum(self.stream.counts(index)[1] for index in range(len(self.stream)))
        return self.config.machine.feature_cache is not None or 4 * self.network.dim * count <= TEST_ROOM

    def image_count(self, index: int) -> int:
        """How many images a task trains on; none is touched."""
        counts = [self.stream.counts(earlier)[0] for earlier in range(index + 1)]
        return sum(counts) if self.method.sees_old_data else counts[-1]

    def stored_features(self, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
        """`training_features` and their labels, batch after batch."""
        features, labels, device = self.training_features(task), self.training_images(task).labels, self.processes.device
        for rows in torch.split(torch.arange(len(labels)), INFERENCE_BATCH):
            yield features[rows].to(device), labels[rows].to(device)

    def plain_images(self, task: Task) -> Plain:
        """What `Method.study` is given."""
        return Plain(lambda size: self.plain_batches(self.training_images(task), size), self.processes.sum)

    def version(self) -> object:
        """Changes whenever a weight or a running mean of the network does."""
        return tuple((tensor.data_ptr(), tensor._version) for tensor in self.network.state_dict(keep_vars=True).values())

    def plain_features(self, images: Images) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels, batch after batch, as the network sees images without augmentation; of all processes."""
        wholes = torch.split(images.labels, INFERENCE_BATCH)
        for (plain, _), labels in zip(self.plain_batches(images, INFERENCE_BATCH), wholes, strict=True):
            with torch.no_grad(), self.processes.fabric.autocast():
                features = self.network(plain)
            yield self.processes.gather(features.float()), labels.to(self.processes.device)

    def plain_batches(self, images: Images, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of each batch without augmentation, and its labels; the network in evaluation mode."""
        self.network.eval()
        share, device = self.processes.share, self.processes.device
        shares = [rows[share(len(rows))] for rows in torch.split(torch.arange(len(images)), size)]
        for batch, labels in images.batches(shares):
            if self.watch.stop and self.processes.count == 1:  # several cannot agree here
                raise Stopped
            plain = self.augment.plain(batch.to(device, non_blocking=True))
            plain = plain.contiguous(memory_format=torch.channels_last) if plain.ndim == 4 else plain
            yield plain, labels.to(device)

    def frozen_features(self, images: Images) -> Tensor:
        """All features (n, d); if the network does not train in this task, from the cache that the user named."""
        if self.config.machine.feature_cache and self.processes.count == 1 and not self.method.trains_network():
            folder = self.config.machine.feature_cache
            return cached_features(self.network, images, preprocess=self.augment.plain, directory=folder)
        kept, start = torch.empty(len(images), self.network.dim), 0
        for features, _ in self.plain_features(images):
            kept[start : start + len(features)] = features
            start += len(features)
        return kept

    def evaluate(self, task: Task, see: Callable[[Tensor, Tensor], None] = lambda features, labels: None) -> Tensor:
        """(K, K): how many test images of each seen class were taken for which; `see` is shown features and labels."""
        seen = len(task.seen)
        confusion = torch.zeros(seen * seen, dtype=torch.int64)
        for index in range(task.index + 1):
            for features, labels in self.test_batches(index):
                with torch.no_grad():
                    scores = self.method.scores(features.to(self.processes.device)).cpu()
                if scores.shape[1] != seen or not bool(torch.isfinite(scores).all()):
                    raise TrainingError(
                        f"after task {task.index + 1} {self.config.method} gives scores of shape {tuple(scores.shape)}, some "
                        f"perhaps not finite; there must be a finite one for each of {len(task.seen)} classes."
                    )
                confusion += torch.bincount(seen * labels + scores.argmax(1), minlength=seen * seen)
                see(features, labels)
        return confusion.view(seen, seen)

    def test_batches(self, index: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels of the test images of one task's classes, on the CPU."""
        if self.keeps_tests:
            features, labels = self.test_features(index)
            yield from zip(torch.split(features, 4096), torch.split(labels, 4096), strict=True)
            return
        for features, labels in self.plain_features(self.test_images(index)):
            yield features.cpu(), labels.cpu()

    def test_images(self, index: int) -> Images:
        images = self.stream.test(index)
        return images.subset((images.labels >= self.stream.classes(index).start).nonzero().squeeze(1))

    def test_features(self, index: int) -> tuple[Tensor, Tensor]:
        """All features of them; computed anew only if the network has changed since."""
        version = self.version()
        if index == len(self._test) or self._test[index][0] != version:
            images = self.test_images(index)
            entry = version, self.frozen_features(images), images.labels
            self._test[index : index + 1] = [entry]
        return self._test[index][1:]

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint_if_due(self, optimizer: Any, *, last: bool) -> None:
        """After a step: save if it is time; if asked to, stop, as soon as that can be saved.

        The `last` step of a task is always saved: what follows can be stopped too, but is not to be saved halfway.
        """
        passed, new, stop = time.monotonic() - self._saved_at, self.method.task.new, self.stop_asked()
        due = last or passed > 60 * self.config.machine.checkpoint_minutes
        if not (due or stop) or not self.method.settled(self.stream.class_counts[0][new.start : new.stop]):
            return
        self.meter.check(self.method.task)  # a network that is broken does not replace one that is not
        self.checkpoint(optimizer)
        if stop:
            raise Stopped

    def stop_asked(self) -> bool:
        """Several processes stop at the same step, or one would wait for the others forever."""
        if self.processes.count == 1:
            return self.watch.stop
        return bool(self.processes.sum(torch.tensor(float(self.watch.stop), device=self.processes.device)))

    def checkpoint(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Write all that is needed to go on from here. The first process alone writes; all hold the same."""
        self.count_seconds("train" if optimizer is not None else "evaluate")
        self._saved_at = time.monotonic()
        if not self.processes.is_first:
            return
        self.watch.saving(self.lines)
        header, tensors = checkpoint.pack(self.method.state())
        about: dict[str, Any] = {
            "config": identity(self.config),
            "position": asdict(self.position),
            "method": header,
            "lines": self.lines,
        }
        about |= {"seconds": self.seconds, "count": self.meter.count}
        about["precision"] = self.processes.fabric.strategy.precision.state_dict()
        parts = checkpoint.prefixed("network/", self.network.state_dict())
        parts |= checkpoint.prefixed("method/", tensors) | checkpoint.prefixed("meter/", self.meter.sums)
        if optimizer is not None:
            parts |= checkpoint.prefixed("optimizer/", checkpoint.optimizer_tensors(optimizer))
        checkpoint.write(self.folder / CHECKPOINT, about, parts)

    def resume(self) -> None:
        """Go back to the last checkpoint, if there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        about, tensors = checkpoint.read(path)
        if about.get("config") != identity(self.config):
            raise files.FileFormatError(f"{str(path)!r} belongs to a run with another config; it cannot be resumed here.")
        try:
            self.position = Position(**about["position"])
            if self.position.begun:
                self.method.task = self.task(self.position.task)
            self.method.reshape_network(self.position.task, self.position.begun)
            self.network.load_state_dict(checkpoint.without("network/", tensors))
            own = checkpoint.unpack(about["method"], checkpoint.without("method/", tensors), self.processes.device)
            self.method.restore(own)
            self.lines, self.seconds = about["lines"], about["seconds"]
            self.meter.sums = {k: v.to(self.processes.device) for k, v in checkpoint.without("meter/", tensors).items()}
            self.meter.count = about["count"]
            self.processes.fabric.strategy.precision.load_state_dict(about["precision"])
            self._optimizer_tensors = checkpoint.without("optimizer/", tensors)
        except files.MISFITS as error:
            raise files.misfit(path, error) from error

    def restore_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The momenta of the checkpoint that the run was resumed from, once."""
        if self._optimizer_tensors:
            checkpoint.restore_optimizer(optimizer, self._optimizer_tensors)
            self._optimizer_tensors = {}

    def start_clock(self) -> None:
        """What has passed so far, on measuring the cost or on starting loggers, is not the run's."""
        self._counted_at = time.monotonic()

    def count_seconds(self, activity: str) -> None:
        """What has passed since the last call was spent on this."""
        now = time.monotonic()
        self.seconds[activity] += now - self._counted_at
        self._counted_at = now

    # ---- the training of task 1, for other methods to start from -----------------------------------------------------

    def save_first_task(self) -> None:
        """Network and head as task 1's training left them."""
        if self.processes.is_first and self.method.common_start and not self.method.sees_old_data:
            tensors = checkpoint.prefixed("network/", self.network.state_dict())
            tensors |= {"head.weight": self.method.head.weight, "head.bias": self.method.head.bias}
            header = {"key": first_task_key(self.config), "seconds": self.seconds["train"], "losses": self.meter.means()}
            header["steps"] = self.position.step
            files.write(self.folder / FIRST_TASK, FIRST_KIND, header, tensors)

    @property
    def starts_elsewhere(self) -> bool:
        """Whether the training of task 1 is taken over from another run."""
        return self.config.machine.start is not None and self.method.common_start

    def take_first_task(self) -> bool:
        """Take over what `save_first_task` wrote in `machine.start`; False if there is nothing to take."""
        if not self.starts_elsewhere:
            return False
        path = Path(str(self.config.machine.start)) / FIRST_TASK
        header, tensors = files.read(path, FIRST_KIND)
        mine = first_task_key(self.config)
        differing = sorted(name for name in mine if header.get("key", {}).get(name) != mine[name])
        if differing:
            raise ValueError(
                f"task 1 of {self.config.machine.start!r} was trained with another {', '.join(differing)}; "
                "leave --start out, or set the same."
            )
        self.network.load_state_dict(checkpoint.without("network/", tensors))
        self.method.head.set(tensors["head.weight"], tensors["head.bias"])
        self.seconds["train"] = float(header["seconds"])
        self.position.step = int(header.get("steps", 0))  # older files do not say
        self.meter.sums = {name: torch.tensor(mean, dtype=torch.float64) for name, mean in header["losses"].items()}
        self.meter.count = 1
        self.start_clock()
        return True
