"""Estimate the cost of a run before it starts: timed steps times the passes that are left.

A few steps of a first and of a later task are timed in the real training loop, with a copy of the network and noise for images.
The first task gets half of all classes, the average number of old ones. Neither the session nor any image is touched.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from amgc.data import Images
from amgc.engine import first_task
from amgc.engine.checkpoint import Checkpoints, Position, pack
from amgc.engine.features import FeatureSource
from amgc.engine.from_config import Vectors
from amgc.engine.processes import Processes, peak_memory
from amgc.engine.session import Session
from amgc.engine.training import Meter, train
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Features, Method, PlainImages, Task
from amgc.methods.optional import CollectsFromImages, RepeatsFeatures
from amgc.text import byte_size, duration

STEPS, PATIENCE = 3, 1.0  # steps that are timed, but no further one after so many seconds
COLLECTED = 8  # images on which `Method.collect` is timed
ROWS = 512  # features on which `Method.end` is timed, and then on twice as many
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

    trains: bool  # whether the network is trained
    step: float  # time of an optimiser step
    trained: float  # images that train the network, for each image of a batch
    passed: float  # images that go forwards only, for each image of a batch
    repeats: float  # how often an epoch uses each image
    collect: float  # time of `Method.collect` per image
    collected: float  # how often it uses each image
    end: float  # time of `Method.end` for no rows
    row: float  # time of `Method.end` per row of features
    reads: bool  # whether `Method.end` reads the features
    checkpoint: int  # bytes of a checkpoint after the last task


def estimate(session: Session) -> Cost:
    """Return what is left to do from the session's position."""
    left = range(session.position.task, len(session.stream))
    with torch.random.fork_rng(devices=[]):
        trial_session, per_image = _trial_session(session)
        trials = [_measure(trial_session, session, kind) for kind in range(min(left.stop, 2) if left else 0)]
    trained, passed, tasks = 0, 0, []
    for index in left:
        trial, images = trials[min(index, 1)], session.features.image_count(index)
        steps, shown, forwards = passes(session, index, trial)
        trained += round(shown * trial.trained + images * trial.collected)
        passed += round(shown * trial.passed) + forwards
        seconds = steps * trial.step + forwards * per_image + images * (trial.collect + trial.row)
        tasks.append(seconds + trial.end)
    checkpoint = trials[-1].checkpoint if trials else 0
    weights = sum(tensor.nbytes for tensor in session.network.state_dict().values())
    memory = peak_memory() + session.stream.bytes_to_read() + checkpoint + _kept_features(session, left, trials)
    return Cost(trained, passed, sum(tasks), 2 * checkpoint + weights, memory, tuple(tasks))


def passes(session: Session, index: int, trial: Trial) -> tuple[int, int, int]:
    """Count what is left of a task: steps, images that they train the network on, and images that go forwards only."""
    features, position, images = session.features, session.position, session.features.image_count(index)
    phase, is_next = session.method.phase(session.task(index)), index == position.task
    tests = [session.stream.counts(earlier)[1] for earlier in range(index + 1)]
    batches = -(-round(images * trial.repeats) // phase.batch_size)
    done = position.step if is_next else 0
    steps = max(0, batches * phase.epochs - done)
    if index == 0 and not done and first_task.is_reused(session):
        return 0, 0, images * trial.reads + sum(tests)
    if not trial.trains:
        new_tests = sum(tests) if is_next or not features.keeps_tests else tests[-1]  # the features of the others are kept
        fitted = min(images, session.network.fit_images) * (index == 0 and session.network.needs_fit)
        return steps, 0, images * (trial.reads or phase.epochs > 0) + fitted + new_tests
    epochs, rest = divmod(done, batches)
    shown = epochs * images + rest * (images // batches) + min(rest, images % batches)  # the first batches are larger by one
    return steps, images * phase.epochs - shown, images * trial.reads + sum(tests)


def _kept_features(session: Session, left: range, trials: list[Trial]) -> int:
    """Return the bytes of all test features, and of the largest task's training features, as far as they are kept."""
    features = session.features
    tests = sum(session.stream.counts(index)[1] for index in range(len(session.stream))) * features.keeps_tests
    frozen = (index for index in left if not trials[min(index, 1)].trains and not features.streams(session.task(index)))
    return 4 * session.network.dim * (tests + max(map(features.image_count, frozen), default=0))


# ---- timing ----------------------------------------------------------------------------------------------------------


def _trial_session(session: Session) -> tuple[Session, float]:
    """Return a copy of the session whose images are noise, and the seconds of a forward pass per image."""
    network, hyper, count = copy.deepcopy(session.network), session.config.hyper, session.processes.count
    if network.needs_fit:
        images = Images.of(_noise(session, COLLECTED), torch.zeros(COLLECTED))
        network.fit(images, preprocess=session.augment.plain, generator=torch.Generator().manual_seed(0))
    first, later = (replace(phase, epochs=min(phase.epochs, STEPS)) for phase in (hyper.first, hyper.later))
    trial, device = copy.copy(session), session.processes.device
    trial.processes, trial.watch = _OneProcess(session), _Timer(network)
    trial.method = type(session.method)(replace(hyper, first=first, later=later), network, device)
    images = _Noise(trial, 64).training_images(Task(0, range(1)))
    per_image = min(_seconds(lambda: list(_Noise(trial, 64).extract(images))) for _ in range(STEPS)) / len(images) / count
    if network.dim > WIDE and not any(trial.method.phase(Task(index, range(1))).epochs for index in (0, 1)):
        network = Vectors(WIDE)
        trial.method = type(session.method)(trial.method.hyper, network, device)
    trial.network = network
    trial.checkpoints = _NoCheckpoints(trial)
    return trial, per_image


def _measure(trial: Session, session: Session, kind: int) -> Trial:
    """Take the trial session through its first task (kind 0) or a later one (kind 1)."""
    method, classes, wider = trial.method, len(session.stream.class_names), session.network.dim / trial.network.dim
    half = max(1, classes // 2) if len(session.stream) > 1 else classes
    task = Task(1, range(half, min(half + session.stream.sizes[1], classes))) if kind else Task(0, range(half))
    method.task = task
    method.begin(task, torch.Generator().manual_seed(0))
    trains, step, trained, passed, repeats = _measure_steps(trial, session, task)
    collect, collected = _measure_collect(trial, task) if wider == 1 else (0.0, 0.0)
    end, row, reads = _measure_end(method, task)
    few, all_ = trial.network.dim, session.network.dim
    # With more features than were timed, a tensor grows along each axis of features, or of the pairs of a triangle.
    growth = {few: all_ / few, few * (few + 1) // 2: all_ * (all_ + 1) / (few * (few + 1))}
    sizes = (t.nbytes * math.prod(growth.get(axis, 1.0) for axis in t.shape) for t in pack(method.state())[1].values())
    kept = sum(sizes) * classes / len(task.seen)
    checkpoint = round(kept) + 2 * sum(parameter.nbytes for parameter in trial.network.parameters())
    # With more features than were timed, a solve takes their cube, an update of a covariance their square.
    end, row, collect = end * wider**3, row * wider**2, collect / session.processes.count
    return Trial(trains, step, trained, passed, repeats, collect, collected, end, row, reads, checkpoint)


def _measure_steps(trial: Session, session: Session, task: Task) -> tuple[bool, float, float, float, float]:
    """Run the training loop for a few steps. Return the first five fields of `Trial`."""
    method, timer, phase, trains = trial.method, trial.watch, trial.method.phase(task), trial.method.trains_network()
    if not phase.epochs:
        return False, 0.0, 1.0, 0.0, 1.0
    count = min(phase.batch_size, session.features.image_count(task.index))
    share = session.processes.share(count) if trains else slice(0, count)
    trial.position, trial.meter = Position(), Meter()
    trial.features = _Noise(trial, max(1, share.stop - share.start))
    with suppress(Stopped):
        train(trial, task)
    assert isinstance(timer, _Timer)
    if trains:
        shown = timer.steps * len(trial.features.training_images(task))
        return True, timer.seconds, timer.images[True] / shown, timer.images[False] / shown, 1.0
    repeats = None
    if isinstance(method, RepeatsFeatures):
        ((features, labels),) = _random_features(method, task, ROWS)
        repeats = method.repeats(features.cpu(), labels.cpu())
    return False, timer.seconds, 1.0, 0.0, 1.0 if repeats is None else float(repeats.double().mean())


def _measure_collect(trial: Session, task: Task) -> tuple[float, float]:
    """Return the time of `Method.collect` per image, and how often it uses each."""
    method, source, used = trial.method, _Noise(trial, COLLECTED), 0

    def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal used
        for images, labels in source.batches(source.training_images(task), size):
            used += len(labels)
            yield images, labels

    if not isinstance(method, CollectsFromImages):
        return 0.0, 0.0
    seconds = _seconds(lambda: method.collect(task, PlainImages(batches, lambda tensor: tensor)))
    return seconds / COLLECTED, used / COLLECTED


def _measure_end(method: Method[Any], task: Task) -> tuple[float, float, bool]:
    """Return the time of `Method.end` for no rows and per row, and whether it reads features."""

    def timed(method: Method[Any], features: Features) -> float:
        return _seconds(lambda: method.end(task, features))

    copies, features = [copy.deepcopy(method) for _ in range(2)], _random_features(method, task, ROWS)
    less = min(timed(copies[0], features), timed(copies[1], _random_features(method, task, ROWS)))  # the first one warms up
    row = max(0.0, timed(method, _random_features(method, task, 2 * ROWS)) - less) / ROWS
    return max(0.0, less - row * ROWS), row, next(iter(features), None) is None


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


def _noise(session: Session, count: int) -> Tensor:
    shape, drawing = (count, *session.stream.shape), torch.Generator().manual_seed(1)
    if len(shape) == 2:  # features
        return torch.rand(shape, generator=drawing)
    return torch.randint(256, shape, generator=drawing, dtype=torch.uint8)


class _Noise(FeatureSource):
    """Noise in place of every task's training images."""

    def __init__(self, session: Session, count: int) -> None:
        super().__init__(session.stream, session.method, session.augment, session.processes, None, lambda: False)
        self._noise = _noise(session, count)

    def training_images(self, task: Task) -> Images:
        labels = torch.tensor(task.new)
        return Images.of(self._noise, labels.repeat(-(-len(self._noise) // len(labels)))[: len(self._noise)])


class _OneProcess(Processes):
    """This process alone: the others do not take part in an estimate."""

    def __init__(self, session: Session) -> None:
        self.fabric, device = session.processes.fabric, session.processes.device
        if session.processes.count > 1:
            devices = 1 if device.index is None else [device.index]
            self.fabric = Fabric(accelerator=device.type, devices=devices, precision=session.config.machine.precision)


class _NoCheckpoints(Checkpoints):
    def save_if_due(self, optimizer: Any, *, last: bool) -> None:
        pass

    def restore_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        pass


class _Timer(Watch):
    """Times steps, and counts the images through the network and its copies, with gradients (True) and without."""

    def __init__(self, network: torch.nn.Module) -> None:
        network.register_forward_hook(lambda module, inputs, out: self.images.update({out.requires_grad: len(out)}))
        self.images: Counter[bool] = Counter()

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.seconds, self.steps, self.images = float("inf"), 0, Counter()
        self.begun = self.last = clock()

    def wants_progress(self) -> bool:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = clock()
        self.seconds = min(self.seconds, now - self.last)  # the shortest: the first step warms up
        self.steps, self.last = self.steps + 1, now
        if now - self.begun > PATIENCE:
            raise Stopped
        return False
