"""Estimate the cost of a run before it starts: timed steps times the passes that are left.

A copy of the session trains a few steps of a first and of a later task, and remembers them, with a few of the run's own
images. Neither the session nor its folder changes. The first task gets half of all classes, the average number of old ones.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
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
from amgc.features.extractor import Extractor
from amgc.methods.contract import Method, Phase, Task
from amgc.methods.optional import BeginsEpochs, CollectsFromImages, TrainsTwice
from amgc.text import byte_size, duration

STEPS, PATIENCE = 3, 1.0  # steps that are timed, but no further one after so many seconds
FORWARD, COLLECTED, ROWS = 64, 8, 512  # images through the network, for `Method.collect`, and rows for `Method.end`
PICKED = 100  # images per old class that a method picks out with `TaskImages.take`, as ADC does
WIDE = 2048  # features with which `Method.end` is timed if there are more and nothing is trained
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
class Stage:
    """A stage of a task's training, as it was timed."""

    phase: Phase
    step: float = 0.0  # seconds of an optimiser step
    trained: float = 0.0  # passes with gradients for each image of a batch,
    passed: float = 0.0  # passes without them,
    once: float = 0.0  # and passes before the first step for each image of the task
    repeats: float = 1.0  # how often an epoch uses each image

    def left(self, images: int, done: int) -> tuple[int, int]:
        """Return how many steps are left, and how many images they use."""
        uses = round(images * self.repeats)
        batches = -(-uses // self.phase.batch_size)
        epochs, rest = divmod(min(done, batches * self.phase.epochs), batches)
        used = epochs * uses + rest * (uses // batches) + min(rest, uses % batches)  # the first batches are larger by one
        return batches * (self.phase.epochs - epochs) - rest, uses * self.phase.epochs - used


@dataclass(frozen=True)
class Trial:
    """A first or a later task, as it was timed."""

    stages: list[Stage]
    reads: bool  # whether `Method.end` reads the features
    remember: Callable[[int], float]  # seconds of `Method.collect` and `Method.end` for so many images
    collected: Counter[bool]  # passes of `collect` for each image, with gradients (True) and without
    checkpoint: int  # bytes of a checkpoint after the last task


def estimate(session: Session) -> Cost:
    """Return what is left to do from the session's position."""
    left = range(session.position.task, len(session.stream))
    forward, trials = measure(session) if left else (0.0, [])
    trained, passed, tasks = 0, 0, []
    for index in left:
        trial, images = trials[min(index, 1)], session.features.image_count(index)
        stages = stages_left(session, index, trial)
        forwards = plain_passes(session, index, trial) + sum(round(images * stage.once) for stage, _, _ in stages)
        trained += images * trial.collected[True] + sum(round(used * stage.trained) for stage, _, used in stages)
        passed += images * trial.collected[False] + sum(round(used * stage.passed) for stage, _, used in stages) + forwards
        training = sum(steps * stage.step for stage, steps, _ in stages)
        tasks.append(training + forwards * forward + trial.remember(images))
    checkpoint = trials[-1].checkpoint if trials else 0
    weights = sum(tensor.nbytes for tensor in session.network.state_dict().values())
    memory = peak_memory() + session.stream.bytes_to_read() + checkpoint + _kept_features(session, left)
    return Cost(trained, passed, sum(tasks), 2 * checkpoint + weights, memory, tuple(tasks))


def stages_left(session: Session, index: int, trial: Trial) -> list[tuple[Stage, int, int]]:
    """Return the stages of a task with their steps that are left, and the images that these use."""
    position, images = session.position, session.features.image_count(index)
    if index == position.task == position.step == 0 and reuses_first_task(session):
        return []
    done = [0, 0] if index > position.task else [position.step, 0] if not position.stage else [sys.maxsize, position.step]
    return [(stage, *stage.left(images, steps)) for stage, steps in zip(trial.stages, done, strict=False)]


def plain_passes(session: Session, index: int, trial: Trial) -> int:
    """Count the images that go through the network to fit it, for `Method.end` and for the evaluation."""
    features, network, is_next = session.features, session.network, index == session.position.task
    images, phase = features.image_count(index), session.method.phase(session.task(index))
    tests = [session.stream.counts(earlier)[1] for earlier in range(index + 1)]
    reused = index == session.position.step == 0 and reuses_first_task(session)
    if reused or session.method.trains_network(phase):
        return images * trial.reads + sum(tests)
    fitted = min(images, network.fit_images) * (index == 0 and network.needs_fit)
    new_tests = sum(tests) if is_next or not features.keeps_tests else tests[-1]  # the features of the others are kept
    return images * (trial.reads and not phase.epochs) + fitted + new_tests  # if it is trained on features, they are kept


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
        counted: Counter[bool] = Counter()  # images that went through the network or its copies with gradients (True), without
        network.register_forward_hook(lambda module, inputs, out: counted.update({out.requires_grad: len(out)}))
        trial.method = type(session.method)(hyper, network, session.processes.device)
        trial.features = few = _FewImages(trial, session.processes.count)
        images = few.sample(range(len(session.stream.class_names)), FORWARD)
        if network.needs_fit:
            network.fit(images, preprocess=session.augment.plain, generator=torch.Generator().manual_seed(0))
        passing = min(_seconds(lambda: list(few.extract(images))) for _ in range(STEPS))
        if network.dim > WIDE and not (hyper.first.epochs or hyper.later.epochs):
            trial.method = type(session.method)(hyper, Vectors(WIDE), session.processes.device)
        trials = [_measure_task(trial, few, network, index, counted) for index in range(min(len(session.stream), 2))]
    return passing / FORWARD / session.processes.count, trials


def _measure_task(trial: Session, source: _FewImages, network: Extractor, index: int, counted: Counter[bool]) -> Trial:
    """Take the trial session through its first task (index 0) or a later one (index 1)."""
    method, stream, classes = trial.method, trial.stream, len(trial.stream.class_names)
    half = max(1, classes // 2) if len(stream) > 1 else classes
    method.task = task = Task(1, range(half, min(half + stream.sizes[1], classes))) if index else Task(0, range(half))
    method.begin(task, torch.Generator().manual_seed(0))
    timed, whole = method.network.dim, network.dim
    phases = [method.phase(task), second_phase(method, task) if timed == whole else None]
    stages = [_measure_stage(trial, source, task, phase, number, counted) for number, phase in enumerate(phases) if phase]
    source.count, collecting = COLLECTED, 0.0
    few = _CountedImages(source, task)
    if isinstance(method, CollectsFromImages) and timed == whole:
        collecting = _seconds(lambda: method.collect(task, few, torch.Generator().manual_seed(0))) / (few.picked or COLLECTED)
    images = source.sample(task.new, max(FORWARD, 2 * len(task.new)))
    found = torch.cat([rows for rows, _ in source.extract(images, network)])[:, :timed]
    labels, copies = images.labels.to(found.device), -(-ROWS // len(images))

    def end(copies: int, on: Method[Any]) -> tuple[float, bool]:
        """Return the seconds of `Method.end` with so many copies of the features, and whether it reads them."""
        batches = iter([(found.repeat(copies, 1), labels.repeat(copies))])
        seconds = _seconds(lambda: on.end(task, batches, torch.Generator().manual_seed(0)))
        return seconds, next(batches, None) is None

    less = min(end(copies, copy.deepcopy(method))[0] for _ in range(2))  # the first warms up
    more, reads = end(2 * copies, method)
    # With more features than were timed, an update of a covariance takes their square, and a tensor grows along each axis of
    # features, or of the pairs of a triangle. A solve takes their cube in the end, but from 2,048 to 12,800 about their power
    # of 2.5: large products are faster.
    row = max(0.0, more - less) / (copies * len(images)) * (whole / timed) ** 2
    solve: float = max(0.0, 2 * less - more) * (whole / timed) ** 2.5
    growth = {timed: whole / timed, timed * (timed + 1) // 2: whole * (whole + 1) / (timed * (timed + 1))}
    sizes = (t.nbytes * math.prod(growth.get(axis, 1.0) for axis in t.shape) for t in pack(method.state())[1].values())
    checkpoint = round(sum(sizes) * classes / len(task.seen)) + 2 * sum(p.nbytes for p in method.network.parameters())

    def remember(count: int) -> float:
        return solve + row * count + collecting / source.parts * (min(count, PICKED) if few.picked else count)

    return Trial(stages, reads, remember, few.counted, checkpoint)


def _measure_stage(trial: Session, source: _FewImages, task: Task, phase: Phase, stage: int, counted: Counter[bool]) -> Stage:
    """Make a few steps of the training loop."""
    if not phase.epochs:
        return Stage(phase)
    method = trial.method
    trains = not stage and method.trains_network(phase)
    batch = min(phase.batch_size, source.image_count(task.index))
    source.count = -(-batch // source.parts) if trains else max(1, batch // len(task.new)) * len(task.new)
    kept, source._training = source._training is not None, None  # by the first stage, but of as many images as it needed
    counted.clear()
    if isinstance(method, TrainsTwice) and stage:
        method.network.eval()
        method.begin_second(task, ImagesOfTask(source, task), torch.Generator().manual_seed(0))
    trainer = Trainer(trial, task, phase, stage)
    if kept and stage and trainer.features is not None and not method.trains_network():
        counted[False] -= source.count
    if isinstance(method, BeginsEpochs) and not stage:
        method.begin_epoch()
    if trainer.features is not None:
        trainer.step(next(trainer.batches(0, 0)))  # the first one also asks other networks for their features
    once = counted[False] / source.count
    times: list[float] = []
    counted.clear()
    while not times or (len(times) < STEPS and sum(times) < PATIENCE):
        times.append(_seconds(lambda: trainer.step(next(trainer.batches(0, 0)))))
    used = len(times) * source.count
    return Stage(phase, min(times), counted[True] / used, counted[False] / used, once, len(trainer) / source.count)


def _seconds(action: Callable[[], Any]) -> float:
    start = clock()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


class _FewImages(FeatureSource):
    """Some images of a task in place of all: `count` of them. The run has `parts` processes."""

    def __init__(self, session: Session, parts: int) -> None:
        super().__init__(session)
        self.cache, self.count, self.parts = None, FORWARD, parts
        self.sample = functools.cache(self.stream.sample)

    def training_images(self, task: Task) -> Images:
        return self.sample(task.seen if self.method.sees_old_data else task.new, self.count)


class _CountedImages(ImagesOfTask):
    """A few images for `Method.collect`, and how often it reads them."""

    def __init__(self, source: FeatureSource, task: Task) -> None:
        super().__init__(source, task)
        self.counted: Counter[bool] = Counter()
        self.picked = 0

    def batches(self, *arguments: Any, **options: Any) -> Iterator[tuple[Tensor, Tensor]]:
        self.counted[True] += 1
        return super().batches(*arguments, **options)

    def take(self, numbers: Tensor) -> Tensor:
        self.picked = max(self.picked, len(numbers))
        return super().take(numbers)

    def features(self, network: nn.Module) -> Tensor:
        self.counted[False] += 1
        return super().features(network)


class _OneProcess(Processes):
    """This process alone: the others do not take part in an estimate."""

    def __init__(self, session: Session) -> None:
        self.fabric, device = session.processes.fabric, session.processes.device
        if session.processes.count > 1:
            devices = 1 if device.index is None else [device.index]
            self.fabric = Fabric(accelerator=device.type, devices=devices, precision=session.config.machine.precision)
