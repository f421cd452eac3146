"""Estimate the cost of a run before it starts: a timed step times the passes that are left.

A step of a first and of a later task is timed on a copy of the network with random images. Neither the session nor any image
of the data set is touched. The first task gets half of all classes, the average number of old ones.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from amgc.data import Images
from amgc.engine.checkpoint import Checkpoints, Position, pack, reuses_first_task
from amgc.engine.features import FeatureSource, ImagesOfTask
from amgc.engine.processes import Processes, peak_memory
from amgc.engine.session import Session, Vectors
from amgc.engine.training import Trainer, second_phase
from amgc.methods.contract import Features, Method, Phase, Task
from amgc.methods.optional import BeginsEpochs, CollectsFromImages, TrainsTwice
from amgc.text import byte_size, duration

STEPS, PATIENCE = 3, 1.0  # steps that are timed, but no further one after so many seconds
FORWARD, COLLECTED = 64, 8  # images on which a forward pass and `Method.collect` are timed
ROWS = 512  # features on which `Method.end` is timed, and then on twice as many
PICKED = 100  # images per class that a method picks out with `TaskImages.take`, as ADC does
COSTLY = 256  # rows with which a step of a second stage costs more than its overhead
WIDE = 1024  # features with which `Method.end` is timed if there are more and nothing is trained
clock = time.perf_counter


@dataclass(frozen=True)
class Cost:
    """What is left to do in a run."""

    trained: int  # images through the network forwards and backwards, all views of them
    passed: int  # images forwards only, through old networks too
    seconds: float
    disk: int  # bytes in the run's folder, while a checkpoint is written and the last one still exists
    memory: int  # bytes at the peak
    tasks: tuple[float, ...] = ()  # seconds of each task that is left

    def __str__(self) -> str:
        return (
            f"{self.trained + self.passed:,} image passes ({self.trained:,} of them training), about "
            f"{duration(self.seconds)}, {byte_size(self.disk)} of disk, {byte_size(self.memory)} of memory"
        )


@dataclass(frozen=True)
class Trial:
    """What was measured in a first or a later task. Times are in seconds."""

    step: float = 0.0  # time of an optimiser step
    trained: float = 1.0  # images that train the network, for each image of a batch
    passed: float = 0.0  # images that go forwards only, for each image of a batch
    repeats: float = 1.0  # how often an epoch uses each image
    collect: float = 0.0  # time of `Method.collect` per image that it reads
    collected: float = 0.0  # images that it reads with gradients, for each image of the task
    asked: float = 0.0  # features that it asks for, for each image of the task
    picked: float = 0.0  # time of `Method.collect` per image that it picks out for each class
    second: Phase | None = None  # the second stage, if there is one
    second_step: float = 0.0  # time of its steps
    second_passed: float = 0.0  # images that go forwards in it, for each image of a batch
    second_once: float = 0.0  # images that go forwards before it, for each image of the task
    end: float = 0.0  # time of `Method.end` for no rows
    row: float = 0.0  # time of `Method.end` per row of features
    reads: bool = False  # whether `Method.end` reads the features
    checkpoint: int = 0  # bytes of a checkpoint after the last task


def estimate(session: Session) -> Cost:
    """Return what is left to do from the session's position."""
    left = range(session.position.task, len(session.stream))
    forward, trials = measure(session) if left else (0.0, [Trial()])
    trained, passed, tasks = 0, 0, []
    for index in left:
        trial, images = trials[min(index, 1)], session.features.image_count(index)
        steps, shown, forwards = passes(session, index, trial)
        second, later, once = second_passes(session, index, trial)
        trained += round(shown * trial.trained) + round(images * trial.collected)
        passed += round(shown * trial.passed) + forwards + later + once
        tasks.append(steps * trial.step + (forwards + once) * forward + images * (trial.collect + trial.row) + trial.end)
        tasks[-1] += second * trial.second_step + min(images, PICKED) * trial.picked
    checkpoint = trials[-1].checkpoint
    weights = sum(tensor.nbytes for tensor in session.network.state_dict().values())
    memory = peak_memory() + session.stream.bytes_to_read() + checkpoint + _kept_features(session, left)
    return Cost(trained, passed, sum(tasks), 2 * checkpoint + weights, memory, tuple(tasks))


def passes(session: Session, index: int, trial: Trial) -> tuple[int, int, int]:
    """Count what is left of a task: steps, images that they train the network on, and images that go forwards only."""
    features, position, images = session.features, session.position, session.features.image_count(index)
    phase, is_next = session.method.phase(session.task(index)), index == position.task
    tests = [session.stream.counts(earlier)[1] for earlier in range(index + 1)]
    batches = -(-round(images * trial.repeats) // phase.batch_size)
    done = 0 if not is_next else batches * phase.epochs if position.stage else position.step
    steps = max(0, batches * phase.epochs - done)
    if index == 0 and not done and reuses_first_task(session):
        return 0, 0, images * trial.reads + sum(tests)
    asked = round(images * trial.asked)
    if not session.method.trains_network(phase):
        new_tests = sum(tests) if is_next or not features.keeps_tests else tests[-1]  # the features of the others are kept
        fitted = min(images, session.network.fit_images) * (index == 0 and session.network.needs_fit)
        return steps, 0, images * (trial.reads or phase.epochs > 0) + fitted + new_tests + asked
    epochs, rest = divmod(done, batches)
    shown = epochs * images + rest * (images // batches) + min(rest, images % batches)  # the first batches are larger by one
    return steps, images * phase.epochs - shown, images * trial.reads + sum(tests) + asked


def second_passes(session: Session, index: int, trial: Trial) -> tuple[int, int, int]:
    """Count what is left of a task's second stage: steps, images that go forwards in them, and those before the first."""
    images, phase, position = session.features.image_count(index), trial.second, session.position
    if phase is None:
        return 0, 0, 0
    batches = -(-images // phase.batch_size)
    done = position.step if index == position.task and position.stage else 0
    epochs, rest = divmod(done, batches)
    shown = epochs * images + rest * (images // batches) + min(rest, images % batches)
    left = images * phase.epochs - shown
    return batches * phase.epochs - done, round(left * trial.second_passed), round(images * trial.second_once)


def _kept_features(session: Session, left: range) -> int:
    """Return the bytes of all test features, and of the largest task's training features, as far as they are kept."""
    features, method = session.features, session.method
    tests = sum(session.stream.counts(index)[1] for index in range(len(session.stream))) * features.keeps_tests
    frozen = (task for task in map(session.task, left) if not method.trains_network(method.phase(task)))
    kept = (features.image_count(task.index) for task in frozen if not features.streams(task))
    return 4 * session.network.dim * (tests + max(kept, default=0))


# ---- timing ----------------------------------------------------------------------------------------------------------


def measure(session: Session) -> tuple[float, list[Trial]]:
    """Return the seconds of a forward pass per image, and what a first and a later task cost."""
    with torch.random.fork_rng(devices=[]):
        trial, network, hyper = copy.copy(session), copy.deepcopy(session.network), session.config.hyper
        trial.processes, trial.position, trial.checkpoints = _OneProcess(session), Position(), Checkpoints(trial)
        images: Counter[bool] = Counter()  # that went through the network or its copies with gradients (True) and without
        network.register_forward_hook(lambda module, inputs, out: images.update({out.requires_grad: len(out)}))
        trial.method = type(session.method)(hyper, network, session.processes.device)
        trial.features = _RandomImages(trial, FORWARD)
        found = trial.features.training_images(Task(0, range(1)))
        if network.needs_fit:
            network.fit(found, preprocess=session.augment.plain, generator=torch.Generator().manual_seed(0))
        passing = min(_seconds(lambda: list(trial.features.extract(found))) for _ in range(STEPS))
        if network.dim > WIDE and not (hyper.first.epochs or hyper.later.epochs):
            trial.method = type(session.method)(hyper, Vectors(WIDE), session.processes.device)
        trials = [_measure_task(trial, session, index, images) for index in range(min(len(session.stream), 2))]
    return passing / FORWARD / session.processes.count, trials


def _measure_task(trial: Session, session: Session, index: int, images: Counter[bool]) -> Trial:
    """Take the trial session through its first task (index 0) or a later one (index 1)."""
    method, stream, classes = trial.method, session.stream, len(session.stream.class_names)
    half = max(1, classes // 2) if len(stream) > 1 else classes
    method.task = task = Task(1, range(half, min(half + stream.sizes[1], classes))) if index else Task(0, range(half))
    method.begin(task, torch.Generator().manual_seed(0))
    steps = _measure_steps(trial, session, task, images) if method.phase(task).epochs else (0.0, 1.0, 0.0, 1.0)
    timed, whole = method.network.dim, session.network.dim
    seconds = _measure_second(trial, session, task, images) if timed == whole else {}
    few = _CountedImages(_RandomImages(trial, COLLECTED), task)
    if isinstance(method, CollectsFromImages) and timed == whole:
        few.seconds = _seconds(lambda: method.collect(task, few, torch.Generator().manual_seed(0)))
    seconds |= few.costs(session.processes.count)

    def end(method: Method[Any], features: Features) -> float:
        return _seconds(lambda: method.end(task, features, torch.Generator().manual_seed(0)))

    features = _random_features(method, task, ROWS)
    less = end(copy.deepcopy(method), features)  # warms up
    less = min(less, end(copy.deepcopy(method), _random_features(method, task, ROWS)))
    row = max(0.0, end(method, _random_features(method, task, 2 * ROWS)) - less) / ROWS
    # With more features than were timed, a solve takes their cube, an update of a covariance their square, and a tensor grows
    # along each axis of features, or of the pairs of a triangle.
    growth = {timed: whole / timed, timed * (timed + 1) // 2: whole * (whole + 1) / (timed * (timed + 1))}
    sizes = (t.nbytes * math.prod(growth.get(axis, 1.0) for axis in t.shape) for t in pack(method.state())[1].values())
    checkpoint = round(sum(sizes) * classes / len(task.seen)) + 2 * sum(p.nbytes for p in method.network.parameters())
    ending, row = max(0.0, less - row * ROWS) * (whole / timed) ** 3, row * (whole / timed) ** 2
    reads = next(iter(features), None) is None
    return Trial(*steps, end=ending, row=row, reads=reads, checkpoint=checkpoint, **seconds)


def _measure_steps(trial: Session, session: Session, task: Task, images: Counter[bool]) -> tuple[float, float, float, float]:
    """Make a few steps of the training loop. Return the first four fields of `Trial`."""
    method, phase, trains = trial.method, trial.method.phase(task), trial.method.trains_network()
    batch = min(phase.batch_size, session.features.image_count(task.index))
    share = session.processes.share(batch)
    count = max(1, share.stop - share.start) if trains else max(1, batch // len(task.new)) * len(task.new)
    trial.features = _RandomImages(trial, count)
    trainer = Trainer(trial, task, phase)
    if isinstance(method, BeginsEpochs):
        method.begin_epoch()
    images.clear()
    times: list[float] = []
    while not times or (len(times) < STEPS and sum(times) < PATIENCE):
        times.append(_seconds(lambda: trainer.step(next(trainer.batches(0, 0)))))
    step, shown = min(times), len(times) * count  # the shortest: the first step warms up
    if trains:
        return step, images[True] / shown, images[False] / shown, 1.0
    return step, 1.0, 0.0, len(trainer) / count


def _measure_second(trial: Session, session: Session, task: Task, images: Counter[bool]) -> dict[str, Any]:
    """Make a step of the second stage, if there is one. Return the fields of `Trial` about it."""
    method, phase = trial.method, second_phase(trial.method, task)
    if phase is None:
        return {}
    assert isinstance(method, TrainsTwice)
    batch = min(phase.batch_size, session.features.image_count(task.index), FORWARD)
    trial.features = few = _RandomImages(trial, batch)
    method.network.eval()
    method.begin_second(task, ImagesOfTask(few, task), torch.Generator().manual_seed(0))
    trainer = Trainer(trial, task, phase, stage=1)
    images.clear()
    trainer.step(next(trainer.batches(0, 0)))  # warms up; without augmentation it also computes all features
    first = images[False] / batch
    images.clear()
    step = _seconds(lambda: trainer.step(next(trainer.batches(0, 0)))) * min(phase.batch_size, COSTLY) / batch
    passed = images[False] / batch
    once = 0.0 if passed else 1 + first  # the network's own features, and those of others
    return {"second": phase, "second_step": step, "second_passed": passed, "second_once": once}


def _random_features(method: Method[Any], task: Task, rows: int) -> Features:
    """Yield one batch of about `rows` features, with the same number for each new class."""
    labels = torch.tensor(task.new, device=method.device).repeat_interleave(max(2, rows // len(task.new)))
    features = torch.rand(len(labels), method.network.dim, generator=torch.Generator().manual_seed(2))
    yield features.to(method.device), labels


def _seconds(action: Callable[[], Any]) -> float:
    start = clock()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


class _RandomImages(FeatureSource):
    """Random images, or features, in place of every task's training images."""

    def __init__(self, session: Session, count: int) -> None:
        super().__init__(session)
        self.cache = None
        shape, drawing = (count, *session.stream.shape), torch.Generator().manual_seed(1)
        self._samples: Tensor = torch.rand(shape, generator=drawing)
        if len(shape) > 2:
            self._samples = (256 * self._samples).to(torch.uint8)

    def training_images(self, task: Task) -> Images:
        labels = torch.tensor(task.new)
        return Images.of(self._samples, labels.repeat(-(-len(self._samples) // len(labels)))[: len(self._samples)])


class _CountedImages(ImagesOfTask):
    """Random images, and how many of them were read."""

    seconds = 0.0

    def __init__(self, source: FeatureSource, task: Task) -> None:
        super().__init__(source, task)
        self.count: Counter[str] = Counter()

    def batches(self, *arguments: Any, **options: Any) -> Iterator[tuple[Tensor, Tensor]]:
        self.count["read"] += 1
        return super().batches(*arguments, **options)

    def take(self, numbers: Tensor) -> Tensor:
        self.count["picked"] = max(self.count["picked"], len(numbers))
        return super().take(numbers)

    def features(self, network: nn.Module) -> Tensor:
        self.count["asked"] += 1
        return super().features(network)

    def costs(self, processes: int) -> dict[str, Any]:
        """Return the fields of `Trial` about `Method.collect`."""
        picked = self.count["picked"]
        each = self.seconds / (picked or len(self.labels)) / processes
        kind = "picked" if picked else "collect"
        return {kind: each, "collected": float(self.count["read"]), "asked": float(self.count["asked"])}


class _OneProcess(Processes):
    """This process alone: the others do not take part in an estimate."""

    def __init__(self, session: Session) -> None:
        self.fabric, device = session.processes.fabric, session.processes.device
        if session.processes.count > 1:
            devices = 1 if device.index is None else [device.index]
            self.fabric = Fabric(accelerator=device.type, devices=devices, precision=session.config.machine.precision)
