"""Estimate the cost of a run before it starts: timed steps times counted passes.

A copy of the session goes through a first and a later task with a few of the run's own images. Each kind of step is timed, and
hooks count the images that pass through networks in it. `parts` lists these steps with the number of times that the rest of
the run makes them. Neither the session nor its folder changes.
"""

from __future__ import annotations

import copy
import functools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from amgc.data import Images
from amgc.engine.checkpoint import Checkpoints, Position, pack
from amgc.engine.features import FeatureSource, ImagesOfTask
from amgc.engine.processes import OneProcess, peak_memory
from amgc.engine.session import Identity, Session
from amgc.engine.sharing import reuses
from amgc.engine.training import Trainer, second_phase, steps_left
from amgc.features.extractor import Extractor, Preprocess
from amgc.methods.contract import Method, Phase, Task
from amgc.methods.optional import CollectsFromImages, TrainsTwice
from amgc.text import byte_size, duration

STEPS, PATIENCE = 3, 1.0  # number of timed steps; after PATIENCE seconds no further step is timed
FORWARD, COLLECTED, ROWS = 64, 8, 512  # images through the network, for `Method.collect`, and rows for `Method.end`
PICKED = 100  # images of an old class that a method picks with `TaskImages.take`, as ADC does
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
class Part:
    """A kind of step: its seconds, how many of it are left, and how many images go through networks in all of them."""

    what: str
    step: float
    count: float
    trained: float = 0
    passed: float = 0


@dataclass(frozen=True)
class Stage:
    """A stage of a task's training, as it was timed."""

    phase: Phase
    step: float = 0.0  # seconds of an optimiser step
    trained: float = 0.0  # passes with gradients for each image of a batch
    passed: float = 0.0  # passes without gradients for each image of a batch
    once: float = 0.0  # passes for each image of the task, before the first step
    repeats: float = 1.0  # how often an epoch uses each image


@dataclass(frozen=True)
class Trial:
    """A first or a later task, as it was timed."""

    stages: list[Stage]
    fit_step: float  # seconds of a step of the extractor's `fit`
    forward: float  # seconds of an image through the network
    collect: float  # seconds of `Method.collect` for each image
    collected: ImagesOfTask  # the images that it got
    row: float  # seconds of `Method.end` for each image
    solve: float  # seconds of `Method.end` beside these
    reads: bool  # whether `Method.end` reads the features
    checkpoint: int  # bytes of a checkpoint after the last task


def estimate(session: Session) -> Cost:
    """Return what is left to do from the session's position."""
    left = range(session.position.task, len(session.stream))
    trials = measure(session) if left else []
    tasks = [list(parts(session, index, trials[min(index, 1)])) for index in left]
    seconds = [sum(part.step * part.count for part in own) for own in tasks]
    trained, passed = (round(sum(getattr(part, kind) for own in tasks for part in own)) for kind in ("trained", "passed"))
    checkpoint = trials[-1].checkpoint if trials else 0
    weights = sum(tensor.nbytes for tensor in session.network.state_dict().values())
    memory = peak_memory() + session.stream.bytes_to_read() + checkpoint + session.features.kept_bytes(left)
    return Cost(trained, passed, sum(seconds), 2 * checkpoint + weights, memory, tuple(seconds))


def parts(session: Session, index: int, trial: Trial) -> Iterator[Part]:
    """Yield the steps of a task that are left."""
    network, features, images = session.network, session.features, session.features.image_count(index)
    resumed = index == session.position.task
    reused = not (resumed and any(session.position.done(index))) and reuses(session, index)
    plain = features.passes(index, reads=trial.reads, new_network=reused, resumed=resumed)
    if index == 0 and network.needs_fit and not reused:
        plain += min(images, network.fit_images)
        yield Part("step of the extractor's fit", trial.fit_step, network.fit_steps)
    for number, (stage, done) in enumerate(zip(trial.stages, session.position.done(index), strict=False)):
        if number or not reused:
            steps, used = steps_left(stage.phase, round(images * stage.repeats), done)
            yield Part("optimiser step", stage.step, steps, round(used * stage.trained), round(used * stage.passed))
            plain += round(images * stage.once)
    yield Part("image through the network", trial.forward, plain, passed=plain)
    shown = trial.collected
    given = min(images, PICKED) if shown.picked else images
    yield Part("image of Method.collect", trial.collect, given, images * shown.passes[True], images * shown.passes[False])
    yield Part("row of Method.end", trial.row, images)
    yield Part("rest of Method.end", trial.solve, 1)


# ---- timing ----------------------------------------------------------------------------------------------------------


def measure(session: Session) -> list[Trial]:
    """Time a first and a later task."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that repeated features have singular covariances says nothing about the run
        trial, network, hyper = copy.copy(session), copy.deepcopy(session.network), session.config.hyper
        trial.network, trial.position, trial.checkpoints = network, Position(), Checkpoints(trial)
        trial.processes = OneProcess(session.processes, session.config.machine.precision)
        counted: Counter[bool] = Counter()  # images through the network or its copies, with gradients (True) and without
        network.register_forward_hook(lambda module, inputs, out: counted.update({out.requires_grad: len(out)}))
        trial.method = type(session.method)(hyper, network, session.processes.device)
        trial.features = few = FewImages(trial, session.processes.count)
        images = few.sample(range(len(session.stream.class_names)), FORWARD)
        fit_step = measure_fit(network, images, session.augment.plain) if network.needs_fit else 0.0
        forward = min(seconds_of(lambda: list(few.extract(images))) for _ in range(STEPS)) / FORWARD / few.parts
        if network.dim > WIDE and not (hyper.first.epochs or hyper.later.epochs):
            trial.method = type(session.method)(hyper, Identity(WIDE), session.processes.device)
        return [measure_task(trial, few, fit_step, forward, index, counted) for index in range(min(len(session.stream), 2))]


def measure_fit(network: Extractor, images: Images, plain: Preprocess) -> float:
    """Fit a network in few steps, and return the seconds of one step; 0 if it makes none."""
    network.fit_steps, times = min(network.fit_steps, STEPS + 1), [clock()]
    network.report = lambda *_: times.append(clock())  # type: ignore[method-assign]
    network.fit(images, preprocess=plain, generator=torch.Generator().manual_seed(0))
    return min((after - before for before, after in pairwise(times[1:])), default=0.0)


def measure_task(trial: Session, few: FewImages, fit_step: float, forward: float, index: int, counted: Counter[bool]) -> Trial:
    """Take the trial session through its first task (index 0), which gets half of all classes, or a later one (index 1)."""
    method, classes, random = trial.method, len(trial.stream.class_names), torch.Generator().manual_seed
    half = max(1, classes // 2) if len(trial.stream) > 1 else classes
    method.task = task = Task(1, range(half, min(half + trial.stream.sizes[1], classes))) if index else Task(0, range(half))
    method.begin(task, random(0))
    timed, whole = method.network.dim, trial.network.dim
    phases = [method.phase(task), second_phase(method, task) if timed == whole else None]
    batch = min(max(phase.batch_size for phase in phases if phase), few.image_count(index))
    few.count = -(-batch // few.parts) if method.trains_network() else max(1, batch // len(task.new)) * len(task.new)
    stages = [measure_stage(trial, few, phase, number, counted) for number, phase in enumerate(phases) if phase]
    few.count, collecting = COLLECTED, 0.0
    shown = ImagesOfTask(few, task)
    if isinstance(method, CollectsFromImages) and timed == whole:
        collecting = seconds_of(lambda: method.collect(task, shown, random(0))) / (shown.picked or COLLECTED) / few.parts
    few.count = max(FORWARD, 2 * len(task.new))
    images = few.sample(task.new, few.count)
    found = torch.cat([rows for rows, _ in few.extract(images, trial.network)])[:, :timed]
    labels, copies = images.labels.to(found.device), -(-ROWS // len(images))

    def end(copies: int, on: Method[Any]) -> tuple[float, bool]:
        """Return the seconds of `Method.end` with this number of copies of the features, and whether it reads them."""
        batches = iter([(found.repeat(copies, 1), labels.repeat(copies))])
        return seconds_of(lambda: on.end(task, batches, random(0))), next(batches, None) is None

    less = min(end(copies, copy.deepcopy(method))[0] for _ in range(2))  # the first warms up
    more, reads = end(2 * copies, method)
    # With more features than were timed, an update of a covariance takes their square, and a solve from 2,048 to 12,800 about
    # their power of 2.5: in the end their cube, but large products are faster.
    row = max(0.0, more - less) / (copies * len(images)) * (whole / timed) ** 2
    solve = max(0.0, 2 * less - more) * (whole / timed) ** 2.5
    powers = {timed: 1, timed * (timed + 1) // 2: 2}  # axes of features, and of the pairs of a triangle
    state = pack(method.state())[1].values()
    sizes = (t.nbytes * (whole / timed) ** sum(powers.get(axis, 0) for axis in t.shape) for t in state)
    checkpoint = round(sum(sizes) * classes / len(task.seen)) + 2 * sum(p.nbytes for p in method.network.parameters())
    return Trial(stages, fit_step, forward, collecting, shown, row, solve, reads, checkpoint)


def measure_stage(trial: Session, few: FewImages, phase: Phase, number: int, counted: Counter[bool]) -> Stage:
    """Make a few steps of the training loop."""
    if not phase.epochs:
        return Stage(phase)
    method, task = trial.method, trial.method.task
    counted.clear()
    if isinstance(method, TrainsTwice) and number:
        method.network.eval()
        method.begin_second(task, ImagesOfTask(few, task), torch.Generator().manual_seed(0))
    trainer = Trainer(trial, task, phase, number)
    if hasattr(method, "begin_epoch") and not number:
        method.begin_epoch()
    if trainer.features is not None:
        trainer.step(next(trainer.batches(0, 0)))  # the first one also asks other networks for their features
    once = counted[False] / few.count
    times: list[float] = []
    counted.clear()
    while not times or (len(times) < STEPS and sum(times) < PATIENCE):
        times.append(seconds_of(lambda: trainer.step(next(trainer.batches(0, 0)))))
    used = len(times) * -(-len(trainer) // -(-len(trainer) // phase.batch_size))  # the first batch of an epoch each time
    return Stage(phase, min(times), counted[True] / used, counted[False] / used, once, len(trainer) / few.count)


def seconds_of(action: Callable[[], Any]) -> float:
    start = clock()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


class FewImages(FeatureSource):
    """Provides only `count` images of a task. The run has `parts` processes."""

    def __init__(self, session: Session, parts: int) -> None:
        super().__init__(session)
        self.cache, self.count, self.parts = None, FORWARD, parts
        self.sample = functools.cache(self.stream.sample)

    def training_images(self, task: Task) -> Images:
        return self.sample(task.seen if self.method.sees_old_data else task.new, self.count)
