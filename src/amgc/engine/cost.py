"""What a run will cost, measured before it starts: a few steps of each phase, on noise, with copies of network and method.

The later tasks are rehearsed with half of all classes behind them, their number on average, so that a loss over all old
classes weighs in as it will.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amgc.data import Images
from amgc.engine.checkpoint import pack
from amgc.engine.from_config import Vectors
from amgc.engine.session import Session
from amgc.engine.training import Learner, make_optimizer, prepare, total
from amgc.features.extractor import Extractor
from amgc.methods.contract import Batch, Method, Phase, Plain, Task
from amgc.text import byte_size, duration

PATIENCE = 1.0  # seconds of measuring per phase, after a first step that warms up
STUDIED = 8  # images on which `Method.study` is measured
WIDE = 2039  # features with which the end of a task is measured where there are more; a prime, so that no other size equals it


@dataclass(frozen=True)
class Cost:
    """What is left to do from where a run is."""

    trained: int  # images through the network forwards and backwards: all views of them, and those that are studied
    passed: int  # forwards only, through old networks too
    seconds: float
    disk: int  # bytes in the run's folder, one checkpoint being written while the last one is still there
    memory: int  # bytes at the peak
    tasks: tuple[float, ...] = ()  # seconds of each task that is left

    def __str__(self) -> str:
        return (
            f"{self.trained + self.passed:,} image passes ({self.trained:,} of them training), about "
            f"{duration(self.seconds)}, {byte_size(self.disk)} of disk, {byte_size(self.memory)} of memory"
        )


@dataclass(frozen=True)
class Rehearsal:
    """What a phase takes."""

    trains: bool  # whether the network is trained
    step: float  # seconds of an optimiser step
    views: float  # images that the network sees for each image of a batch
    asked: float  # of these, how many another network is asked about as well
    repeats: float  # how often an epoch uses each image
    study: float  # seconds in which the method studies one image
    studied: float  # how often it looks at each
    ending: float  # seconds in which the method remembers
    reads: bool  # whether it looks at the features of the task's images then
    checkpoint: int  # bytes after the last task


def estimate(session: Session) -> Cost:
    """Measure a few steps and add up. Neither the session's network nor any real image is touched."""
    network = _ready(session)
    per_image = _inference_seconds(session, network)
    trained, passed, checkpoint = 0, 0, 0
    rehearsals: dict[int, Rehearsal] = {}
    tasks: list[float] = []
    for index in range(session.position.task, len(session.stream)):
        kind = min(index, 1)  # the first task, or a later one
        rehearsal = rehearsals[kind] = rehearsals.get(kind) or _rehearse(session, kind, network)
        steps, shown, forwards = passes(session, index, rehearsal)
        images = session.image_count(index)
        trained += round(shown * rehearsal.views + images * rehearsal.studied)
        passed += forwards + round(shown * rehearsal.asked)
        checkpoint = rehearsal.checkpoint
        studying = images * rehearsal.study
        tasks.append(steps * rehearsal.step + forwards * per_image + studying + rehearsal.ending)  # views are in the step
    weights = sum(tensor.nbytes for tensor in session.network.state_dict().values())
    memory = peak_memory() + session.stream.bytes_to_read() + checkpoint + _kept_features(session, rehearsals)
    return Cost(trained, passed, sum(tasks), 2 * checkpoint + weights, memory, tuple(tasks))


def _kept_features(session: Session, rehearsals: dict[int, Rehearsal]) -> int:
    """Bytes of all test images' features, and of the largest task's where they are kept."""
    left = range(session.position.task, len(session.stream))
    tests = sum(session.stream.counts(index)[1] for index in range(len(session.stream))) * session.keeps_tests
    kept = [
        session.image_count(index)
        for index in left
        if not rehearsals[min(index, 1)].trains and not session.streams(session.task(index))
    ]
    return 4 * session.network.dim * (tests + max(kept, default=0))


def peak_memory() -> int:
    """Bytes that this process has needed at most so far; 0 where the system does not say."""
    if sys.platform == "win32":
        return 0
    import resource  # there is none on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def passes(session: Session, index: int, rehearsal: Rehearsal) -> tuple[int, int, int]:
    """What is left of a task: steps, images that they train the network on, and images that go forwards only afterwards."""
    position, reads, images = session.position, rehearsal.reads, session.image_count(index)
    phase, is_next = session.method.phase(session.task(index)), index == position.task
    tests = [session.stream.counts(earlier)[1] for earlier in range(index + 1)]
    batches = -(-round(images * rehearsal.repeats) // phase.batch_size)
    done = position.step if is_next else 0
    steps = max(0, batches * phase.epochs - done)
    if index == 0 and not done and session.starts_elsewhere:
        return 0, 0, images * reads + sum(tests)
    if not rehearsal.trains:
        new_tests = sum(tests) if is_next or not session.keeps_tests else tests[-1]  # the others' features are known
        fitted = min(images, session.network.fit_images) * (index == 0 and session.network.needs_fit)
        return steps, 0, images * (reads or phase.epochs > 0) + fitted + new_tests  # once, for training and memory
    epochs, rest = divmod(done, batches)
    shown = epochs * images + rest * (images // batches) + min(rest, images % batches)  # the first batches are larger by one
    return steps, images * phase.epochs - shown, images * reads + sum(tests)


def _ready(session: Session) -> Extractor:
    """A copy of the network that can pass images; one that is still to be fitted is, on noise."""
    network = copy.deepcopy(session.network)
    if network.needs_fit:
        noise = Images.of(_noise(session, STUDIED).cpu(), torch.zeros(STUDIED))
        network.fit(noise, preprocess=session.augment.plain, generator=torch.Generator().manual_seed(0))
    return network


def _rehearse(session: Session, index: int, ready: Extractor) -> Rehearsal:
    """The first task (0) or a later one (1), with a network and a method of its own."""
    network = copy.deepcopy(ready)
    kind, solved = type(session.method), not session.method.phase(session.task(index)).epochs
    wide = network.dim > WIDE and solved and not kind.rehearsal_rows and kind.study is Method.study
    method, task, drawing = _begun(session, index, network, remembering=not wide)
    phase = method.phase(task)
    trains = any(parameter.requires_grad for parameter in prepare(method, phase).parameters())
    step = _measure_steps(session, method, phase, task, drawing, trains) if phase.epochs else (0.0, 1.0, 0.0)
    repeats = _repeats(method, task) if phase.epochs and not trains else 1.0
    looks: list[int] = []
    study = _seconds(lambda: method.study(task, _noise_images(session, method, task, looks)), repeat=False)
    if wide:
        method, task, drawing = _begun(session, index, Vectors(WIDE), remembering=True)
    ending, reads = _end_seconds(session, method, task, network.dim)
    kept = _kept_bytes(session, method, task, network.dim)
    trained = sum(parameter.nbytes for parameter in network.parameters())
    study /= STUDIED * session.processes.count
    return Rehearsal(trains, *step, repeats, study, sum(looks) / STUDIED, ending, reads, kept + 2 * trained)


def _begun(session: Session, index: int, network: Extractor, *, remembering: bool) -> tuple[Method[Any], Task, torch.Generator]:
    """A method that has begun the first task or a later one, with what it remembers of half of all classes."""
    method: Method[Any] = type(session.method)(session.config.hyper, network, session.processes.device)
    drawing, everything = torch.Generator().manual_seed(0), len(session.stream.class_names)
    task = Task(0, session.stream.classes(0))
    if index:
        half = max(1, everything // 2)
        before, task = Task(0, range(half)), Task(1, range(half, min(half + session.stream.sizes[1], everything)))
        method.task = before
        method.begin(before, drawing)
        if remembering:
            method.study(before, _noise_images(session, method, before, []))
            method.end(before, _noise_features(method, before))
    method.task = task
    method.begin(task, drawing)
    return method, task, drawing


def _kept_bytes(session: Session, method: Method[Any], task: Task, dim: int) -> int:
    """What a checkpoint holds of the method at the end; of a method with fewer features, as much more as there are more."""
    narrow, classes = method.network.dim, len(session.stream.class_names) / max(1, len(task.seen))
    larger = {narrow: dim / narrow, narrow * (narrow + 1) // 2: dim * (dim + 1) / (narrow * (narrow + 1))}  # rows, triangles
    tensors = pack(method.state())[1].values()
    return int(classes * sum(t.nbytes * math.prod(larger.get(size, 1.0) for size in t.shape) for t in tensors))


def _repeats(method: Method[Any], task: Task) -> float:
    """How often an epoch uses a feature, on average."""
    features, labels = (torch.cat(parts).cpu() for parts in zip(*_noise_features(method, task), strict=True))
    repeats = method.repeats(features, labels)
    return 1.0 if repeats is None else float(repeats.double().mean())


def _end_seconds(session: Session, method: Method[Any], task: Task, dim: int) -> tuple[float, bool]:
    """The end of a task, and whether it reads features.

    Where it costs much per row, or `dim` features are more than the method was made for: of few rows and of three times as
    many, as if it grew in a line; each row as if it cost the square of the features, the rest, a solve, as if the cube.
    """
    wider = dim / method.network.dim
    if not method.rehearsal_rows and wider == 1:
        features = _noise_features(method, task)
        return _seconds(lambda: method.end(task, features), repeat=False), next(features, None) is None
    few, warm = copy.deepcopy(method), copy.deepcopy(method)
    features = _noise_features(few, task)
    seconds = _seconds(lambda: few.end(task, features), repeat=False)
    if wider > 1:  # what the first time costs more would be made much of
        seconds = min(seconds, _seconds(lambda: warm.end(task, _noise_features(warm, task)), repeat=False))
    more = _seconds(lambda: method.end(task, _noise_features(method, task, 3)), repeat=False)
    rows = _rows(method) * len(task.new)
    per_row = max(0.0, more - seconds) / (2 * rows)
    solving = max(0.0, seconds - per_row * rows)
    return solving * wider**3 + per_row * wider**2 * session.image_count(task.index), next(features, None) is None


def _measure_steps(
    session: Session, method: Method[Any], phase: Phase, task: Task, drawing: torch.Generator, trains: bool
) -> tuple[float, float, float]:
    """One optimiser step of this process's share of a batch, with a network that is prepared: seconds, and how many images
    go through the network, and through others, for each image of the batch."""
    device, count = session.processes.device, phase.batch_size
    share = session.processes.share(count)
    optimizer = make_optimizer(method.network, method.trainable(), phase)
    learner = Learner(method.network, method.trainable()).train()
    images = _noise(session, share.stop - share.start)
    count_of: Counter[str] = Counter()  # images: of the batches, what the network saw of them, what other networks did

    def batch() -> Batch:
        labels = torch.randint(task.new.start, task.new.stop, (count,), generator=drawing).to(device)
        if not trains:
            features = torch.rand(count, method.network.dim, generator=drawing).to(device)
            return Batch(*method.views(features, labels, drawing), drawing, lambda other: features)
        seen, own = method.views(session.augment(images, drawing), labels[: len(images)], drawing)
        seen = seen.contiguous(memory_format=torch.channels_last)
        rows = torch.arange(len(own) * count // len(images), device=device) % len(own)  # as many as all processes have
        count_of.update(shown=len(images), seen=len(seen))

        def through(other: torch.nn.Module) -> Tensor:
            count_of["asked"] += len(seen)
            with torch.no_grad(), session.processes.fabric.autocast():
                features: Tensor = other(seen).float()[rows]
            return features

        with session.processes.fabric.autocast():
            features = learner(seen).float()
        return Batch(features[rows], own[rows], drawing, through)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(total(method.loss(batch())))
        optimizer.step()

    method.begin_epoch()
    seconds, shown = _seconds(step), max(1, count_of["shown"])
    return seconds, count_of["seen"] / shown, count_of["asked"] / shown


def _inference_seconds(session: Session, network: Extractor) -> float:
    """A forward pass, per image."""
    images = _plain_noise(session, 64)
    network.eval()

    def forward() -> None:
        with torch.no_grad(), session.processes.fabric.autocast():
            network(images)

    return _seconds(forward) / len(images) / session.processes.count


def _noise(session: Session, count: int) -> Tensor:
    shape = (max(count, 1), *session.stream.shape)
    noise = torch.randint(256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return noise.to(session.processes.device)


def _plain_noise(session: Session, count: int) -> Tensor:
    images = session.augment.plain(_noise(session, count)).float()
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


def _noise_images(session: Session, method: Method[Any], task: Task, looks: list[int]) -> Plain:
    """A few images to study, the same number on each process; how many are looked at goes to `looks`."""
    method.network.eval()
    images = _plain_noise(session, STUDIED)
    labels = torch.tensor(task.new, device=images.device).repeat(-(-STUDIED // len(task.new)))[:STUDIED]

    def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, own in zip(torch.split(images, size), torch.split(labels, size), strict=True):
            looks.append(len(own))
            yield batch, own

    return Plain(batches, session.processes.sum)


def _noise_features(method: Method[Any], task: Task, times: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows for statistics that are as large and as regular as real ones, unless the method can do with fewer."""
    drawing, rows = torch.Generator().manual_seed(2), times * _rows(method)
    for label in task.new:
        features = torch.rand(rows, method.network.dim, generator=drawing)
        yield features.to(method.device), torch.full((rows,), label, device=method.device)


def _rows(method: Method[Any]) -> int:
    """How many of a class; of many features few, which all share a covariance or are trained on."""
    return method.rehearsal_rows or (min(2 * method.network.dim, 1024) if method.network.dim < WIDE else 32)


def _seconds(action: Callable[[], Any], repeat: bool = True) -> float:
    """The least time of a few repetitions; the first, which warms up, counts only if it takes long."""
    times: list[float] = []
    start = time.perf_counter()
    while not times or (repeat and len(times) < 5 and time.perf_counter() - start < PATIENCE):
        before = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - before)
    return min(times)
