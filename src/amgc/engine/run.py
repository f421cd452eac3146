"""Run a method on all tasks of a stream. `amgc.runs.folder` lists the files that a run writes."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import amgc
from amgc.data import Dataset
from amgc.engine import loggers, sharing
from amgc.engine.checkpoint import Position, pack
from amgc.engine.config import Config, read_config
from amgc.engine.cost import estimate
from amgc.engine.features import ImagesOfTask, TaskFeatures
from amgc.engine.observer import Observer
from amgc.engine.processes import peak_memory
from amgc.engine.seeding import generator
from amgc.engine.session import Session
from amgc.engine.training import train
from amgc.engine.watch import Stopped, TrainingError, TrainingProgress, Watch
from amgc.methods.contract import Task
from amgc.methods.optional import CollectsFromImages
from amgc.options import decode
from amgc.runs.folder import COMMAND, RUN, RunError, RunExistsError, RunFolder, is_first_process
from amgc.text import listing

SPLITS = ("training", "test")  # whose images run.json counts
SKIPPED = 20  # how many unreadable images run.json names; it counts all of them
FEW = 3  # how many changes of the data a message lists


def run(
    config: Config, folder: Path, watch: Watch | None = None, dataset: Dataset | None = None, *, dry_run: bool = False
) -> list[dict[str, Any]]:
    """Start a new run in `folder`, which must not contain one, and return the lines of metrics.jsonl.

    With `dry_run`, return when the cost is known, before anything is written.
    """
    if RunFolder(folder).exists and is_first_process():
        raise RunExistsError(f"{str(folder)!r} already contains a run; resume it, or choose another folder.")
    loggers.check(config.machine.log)
    session = Session(config, folder, watch or Watch(), dataset)
    session.watch.begin_run(session.stream.class_names, session.stream.sizes, lambda: estimate(session))
    if dry_run:
        return []
    if session.processes.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        with session.folder.locked():
            session.folder.create(describe(session))
            return complete(session)
    return complete(session)


def resume(folder: Path, watch: Watch | None = None, dataset: Dataset | None = None, **machine: Any) -> list[dict[str, Any]]:
    """Continue the run in `folder` from its last checkpoint; `machine` replaces settings of the machine."""
    config = read_config(folder, machine)
    loggers.check(config.machine.log)
    with RunFolder(folder).locked():
        session = Session(config, folder, watch or Watch(), dataset)
        check_data(session)
        session.checkpoints.restore()
        session.watch.begin_run(session.stream.class_names, session.stream.sizes, lambda: estimate(session))
        return complete(session)


def complete(session: Session) -> list[dict[str, Any]]:
    """Run all tasks that are left."""
    folder, position, first = session.folder, session.position, session.processes.is_first
    if first:
        folder.remove_partial()
        folder.log(f"from task {position.task + 1}, step {position.step}; pid {os.getpid()}; {' '.join(sys.argv)}")
        folder.write_metrics(session.lines)
    with loggers.logged(session):
        session.stopwatch.start()
        for index in range(position.task, len(session.stream)):
            learn(session, session.task(index))
            if first:
                folder.log(f"task {index + 1}: {json.dumps(session.lines[-1])}")
    if first:
        folder.log("finished")
    return session.lines


def learn(session: Session, task: Task) -> None:
    """Run one task: begin, train, remember, evaluate, save."""
    method, stopwatch = session.method, session.stopwatch
    method.task = task
    if not session.position.begun:
        if task.is_first and not sharing.reuses(session, 0):
            fit_network(session)
        method.begin(task, generator(session.config.seed, "begin", task.index))
        session.position.begun = True
    untouched = session.position.step == session.position.stage == 0
    taken = untouched and sharing.reuses(session, task.index)
    if taken:
        sharing.load(session, task.index)
    train(session, task, taken)
    if isinstance(method, CollectsFromImages):
        drawing = generator(session.config.seed, "collect", task.index)
        method.collect(task, ImagesOfTask(session.features, task), drawing)
    method.end(task, TaskFeatures(session.features, task), generator(session.config.seed, "end", task.index))
    stopwatch.count("remember")
    observer = Observer(session, task)
    confusion = evaluate(session, task, observer.see)
    observer.write(confusion)
    stopwatch.count("evaluate")
    session.lines.append(task_line(session, task, confusion))
    session.position = Position(task.index + 1)
    stopwatch.reset()
    session.meter.reset()
    if session.processes.is_first:
        session.folder.write_metrics(session.lines)
    session.checkpoints.save()
    session.watch.end_task(task, session.lines[-1])


def fit_network(session: Session) -> None:
    """Fit an extractor to the images of task 1. If that is interrupted, it begins anew."""
    network, watch, task = session.network, session.watch, session.task(0)
    if not network.needs_fit:
        return

    def report(step: int, steps: int, loss: Tensor) -> None:
        if watch.stop and session.processes.count == 1:  # several processes cannot agree here
            raise Stopped
        if step == 1:
            watch.begin_task(task, len(session.stream), steps, 0)
        if watch.wants_progress():
            watch.progress(TrainingProgress(0, 1, step, steps, {"loss of the network": float(loss)}, math.nan))

    network.report = report  # type: ignore[method-assign]
    images, drawing = session.features.training_images(task), generator(session.config.seed, "fit")
    try:
        network.fit(images, preprocess=session.augment.plain, generator=drawing)
    finally:
        del network.report
    session.processes.take_from_first(network.buffers())  # different CPUs round differently


def evaluate(session: Session, task: Task, see: Callable[[Tensor, Tensor], None]) -> Tensor:
    """Return the confusion matrix (K, K): true class, predicted class. `see` is called with all test features and labels."""
    seen = len(task.seen)
    confusion = torch.zeros(seen * seen, dtype=torch.int64)
    for index in range(task.index + 1):
        for features, labels in session.features.test_batches(index):
            with torch.no_grad():
                scores = session.method.scores(features.to(session.processes.device)).cpu()
            if scores.shape[1] != seen or not bool(torch.isfinite(scores).all()):
                raise TrainingError(
                    f"after task {task.index + 1} {session.config.method} returned scores of shape {tuple(scores.shape)}, or "
                    f"scores that are not finite; it must return a finite score for each of {seen} classes."
                )
            confusion += torch.bincount(seen * labels + scores.argmax(1), minlength=seen * seen)
            see(features, labels)
    return confusion.view(seen, seen)


def task_line(session: Session, task: Task, confusion: Tensor) -> dict[str, Any]:
    """Return the task's line of metrics.jsonl; only `seconds` and `peak_bytes` differ between identical runs."""
    state = pack(session.method.state())[1]
    return {
        "task": task.index,
        "correct": confusion.diagonal().tolist(),
        "total": confusion.sum(1).tolist(),
        "seconds": session.stopwatch.seconds,
        "peak_bytes": peak_memory(),
        "steps": session.position.earlier + session.position.step,
        "kept_bytes": sum(tensor.nbytes for name, tensor in state.items() if not name.startswith("head.")),
        "losses": session.meter.means(),
    }


def check_data(session: Session) -> None:
    """Check that the data set has the classes, and as many images of each, as when the run began.

    Another class would change the order of all classes.
    """
    before, names = session.folder.read(), list(session.stream.class_names)
    known = list(session.folder.info().class_names)
    changes = [] if known == names else [f"it had the classes {listing(known)}, and has {listing(names)}"]
    if not changes and "class_counts" in before:  # runs of older versions lack it
        try:
            had = decode(dict[str, tuple[int, ...]], before["class_counts"], "class_counts")
            changes = [
                f"class {name!r} had {old} {split} images, and has {new}"
                for split, counts in zip(SPLITS, session.stream.class_counts, strict=True)
                for name, old, new in zip(names, had[split], counts, strict=True)
                if old != new
            ]
        except (ValueError, KeyError) as error:
            raise RunError(f"{str(session.folder / RUN)!r} cannot be read: class_counts: {error}") from error
    if changes:
        listed = "; ".join(changes[:FEW]) + (f"; and {len(changes) - FEW} more" if len(changes) > FEW else "")
        raise ValueError(
            f"the data set has changed since the run in {str(session.folder.path)!r} began: {listed}. "
            "Restore the data, or begin a new run."
        )


def describe(session: Session) -> dict[str, Any]:
    """Return the contents of run.json."""
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "scikit-learn", "lightning-fabric")}
    images = None  # how the network sees images, for a model that is made from the run; None if it sees features
    if session.image_side:
        augment, shape = session.augment, session.network.image_shape
        images = {"shape": shape, "mean": augment.mean, "std": augment.std, "scale": session.image_side}
    return {
        "amgc": amgc.__version__,
        "versions": {"python": platform.python_version(), **versions},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {session.processes.device.type}",
        "commit": commit(),
        "command": ["amgc", *(json.loads(os.environ[COMMAND]) if COMMAND in os.environ else sys.argv[1:])],
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "config": session.config.to_json(),
        "images": images,
        "class_names": list(session.stream.class_names),
        "class_counts": dict(zip(SPLITS, session.stream.class_counts, strict=True)),
        "sizes": list(session.stream.sizes),
        "skipped": {"count": len(session.skipped), "names": list(session.skipped[:SKIPPED])},
    }


def commit() -> str | None:
    """Return the commit of amgc's source, if it runs from a git tree."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
