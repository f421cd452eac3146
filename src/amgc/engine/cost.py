"""What a run will cost, measured before it starts: a few steps of each phase, on noise, with copies of network and method.

The later tasks are rehearsed with half of all classes behind them, their number on average, so that a loss over all old
classes weighs in as it will.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amgc.engine.checkpoint import pack
from amgc.engine.session import Session
from amgc.engine.training import Learner, make_optimizer, prepare, total
from amgc.methods.contract import Batch, Method, Phase, Task

PATIENCE = 1.0  # seconds of measuring per phase, after a first step that warms up


@dataclass(frozen=True)
class Cost:
    """What is left to do from where a run is."""

    trained: int  # images through the network forwards and backwards
    passed: int  # forwards only
    seconds: float
    disk: int  # bytes in the run's folder, one checkpoint being written while the last one is still there
    memory: int  # bytes at the peak
    tasks: tuple[float, ...] = ()  # seconds of each task that is left

    def __str__(self) -> str:
        return (
            f"{self.trained + self.passed:,} image passes ({self.trained:,} of them training), about "
            f"{duration(self.seconds)}, {size(self.disk)} of disk, {size(self.memory)} of memory"
        )


def estimate(session: Session) -> Cost:
    """Measure a few steps and add up. Neither the session's network nor any real image is touched."""
    per_image = _inference_seconds(session)
    seconds, trained, passed, checkpoint = 0.0, 0, 0, 0
    phases = [
        index for index in (0, 1) if session.position.task <= index < len(session.stream) or index == 1 < len(session.stream)
    ]
    measured = {index: _rehearse(session, index) for index in phases}
    tasks: list[float] = []
    for index in range(session.position.task, len(session.stream)):
        task = session.task(index)
        phase = session.method.phase(task)
        step, ending, checkpoint = measured[min(index, 1)]
        images, tests = len(session.training_images(task)), len(session.stream.test(index))
        steps = -(-images // phase.batch_size) * phase.epochs
        if index == session.position.task:
            steps = max(0, steps - session.position.step)
        if task.is_first and session.config.machine.start and session.method.common_start:
            steps = 0  # its training is taken over
        trains = phase.extractor_lr > 0 and phase.epochs > 0
        trained += min(steps * phase.batch_size, images * phase.epochs) if trains else 0
        forward = images + (tests if trains else tests // (index + 1))  # a frozen network sees old test images no more
        passed += forward
        tasks.append(steps * step + forward * per_image + ending)
        seconds += tasks[-1]
    network = sum(tensor.nbytes for tensor in session.network.state_dict().values())
    return Cost(trained, passed, seconds, 2 * checkpoint + network, _peak_memory() + checkpoint, tuple(tasks))


def _peak_memory() -> int:
    """Bytes that this process has needed at most so far."""
    if sys.platform == "win32":
        return 0
    import resource  # there is none on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _rehearse(session: Session, index: int) -> tuple[float, float, int]:
    """Seconds per step and per end of a task (first, or later), and bytes of a checkpoint after the last one."""
    everything = len(session.stream.class_names)
    network = copy.deepcopy(session.network)
    method: Method[Any] = type(session.method)(session.config.hyper, network, session.processes.device)
    drawing = torch.Generator().manual_seed(0)
    task = Task(0, session.stream.classes(0))
    if index:
        half = max(1, everything // 2)
        before, task = Task(0, range(half)), Task(1, range(half, min(half + session.stream.sizes[1], everything)))
        method.task = before
        method.begin(before, drawing)
        method.end(before, _noise_features(method, before))
    method.task = task
    method.begin(task, drawing)
    phase = method.phase(task)
    step = _step_seconds(session, method, phase, task, drawing) if phase.epochs else 0.0
    if phase.epochs and not phase.extractor_lr:
        features, labels = (torch.cat(parts).cpu() for parts in zip(*_noise_features(method, task), strict=True))
        repeats = method.repeats(features, labels)
        step *= 1.0 if repeats is None else float(repeats.double().mean())  # so many steps per pass over the images
    ending = _end_seconds(session, method, task) if index or len(session.stream) == 1 else 0.0
    kept = sum(tensor.nbytes for tensor in pack(method.state())[1].values()) * everything / max(1, len(task.seen))
    trained = sum(parameter.nbytes for parameter in network.parameters())
    return step, ending, int(kept) + 2 * trained


def _end_seconds(session: Session, method: Method[Any], task: Task) -> float:
    """The end of a task; where it costs much per row, of few rows and of three times as many, as if it grew in a line."""
    few = copy.deepcopy(method) if method.rehearsal_rows else method
    seconds = _seconds(lambda: few.end(task, _noise_features(few, task)), repeat=False)
    if not method.rehearsal_rows:
        return seconds
    more = _seconds(lambda: method.end(task, _noise_features(method, task, 3)), repeat=False)
    rows = method.rehearsal_rows * len(task.new)
    real = len(session.training_images(session.task(task.index)))
    return seconds + max(0.0, more - seconds) / (2 * rows) * max(0, real - rows)


def _step_seconds(session: Session, method: Method[Any], phase: Phase, task: Task, drawing: torch.Generator) -> float:
    """One optimiser step of this process's share of a batch."""
    device, count = session.processes.device, phase.batch_size
    network = prepare(method, phase)
    share = session.processes.share(count)
    labels = torch.randint(task.new.start, task.new.stop, (count,), generator=drawing).to(device)
    optimizer = make_optimizer(network, method.trainable(), phase)
    trains = any(parameter.requires_grad for parameter in network.parameters())
    learner = Learner(network, method.trainable()).train()
    images = _noise(session, share.stop - share.start)

    def forward() -> Tensor:
        if not trains:
            return torch.rand(count, method.network.dim, generator=drawing).to(device)
        seen, _ = method.views(session.augment(images, drawing), labels[: len(images)])
        seen = seen.contiguous(memory_format=torch.channels_last)
        with session.processes.fabric.autocast():
            features: Tensor = learner(seen).float()
        return features if len(features) >= count else features.repeat(-(-count // len(features)), 1)[:count]

    def step() -> None:
        optimizer.zero_grad()
        features = forward()
        batch = Batch(
            features, labels.repeat(-(-len(features) // count))[: len(features)], drawing, lambda other: features.detach()
        )
        session.processes.fabric.backward(total(method.loss(batch)))
        optimizer.step()

    method.begin_epoch()
    return _seconds(step)


def _inference_seconds(session: Session) -> float:
    """A forward pass, per image."""
    images = session.augment.plain(_noise(session, 64)).float()
    images = images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images
    network = copy.deepcopy(session.network).eval()

    def forward() -> None:
        with torch.no_grad(), session.processes.fabric.autocast():
            network(images)

    return _seconds(forward) / len(images) / session.processes.count


def _noise(session: Session, count: int) -> Tensor:
    shape = (max(count, 1), *session.stream.train(0).shape)
    noise = torch.randint(256, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return noise.to(session.processes.device)


def _noise_features(method: Method[Any], task: Task, times: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows for statistics that are as large and as regular as real ones, unless the method can do with fewer."""
    drawing, rows = torch.Generator().manual_seed(2), times * method.rehearsal_rows or min(2 * method.network.dim, 1024)
    for label in task.new:
        features = torch.rand(rows, method.network.dim, generator=drawing)
        yield features.to(method.device), torch.full((rows,), label, device=method.device)


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


def duration(seconds: float) -> str:
    """Time for people.

    >>> duration(42), duration(150), duration(4000), duration(3e5)
    ('42 s', '2.5 minutes', '1.1 hours', '3.5 days')
    """
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "minutes"), (172800, 3600, "hours")):
        if seconds < limit:
            return f"{seconds / unit:.0f} s" if unit == 1 else f"{seconds / unit:.1f} {name}"
    return f"{seconds / 86400:.1f} days"


def size(count: float) -> str:
    """Bytes for people.

    >>> size(500), size(2_500_000), size(3e9)
    ('1 KB', '2.5 MB', '3.0 GB')
    """
    for limit, unit, name in ((1e6, 1e3, "KB"), (1e9, 1e6, "MB")):
        if count < limit:
            return f"{max(count / unit, 1):.0f} {name}" if name == "KB" else f"{count / unit:.1f} {name}"
    return f"{count / 1e9:.1f} GB"
