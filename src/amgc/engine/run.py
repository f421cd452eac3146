"""A run from its first task to its last, in a folder of its own.

folder/run.json              the resolved config, versions, classes in order of arrival and their images, task sizes
folder/metrics.jsonl         a line per finished task
folder/checkpoint.safetensors  where the run is; `resume` goes on from there
folder/task-1.safetensors    network and head after task 1's training, for other methods to start from
folder/observed/             after each task, for the report: see engine.observed
folder/log.txt               what happened when
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import amgc
from amgc import files, locking
from amgc.core.inputs import listing
from amgc.data import Dataset
from amgc.engine import loggers
from amgc.engine.chance import generator
from amgc.engine.checkpoint import pack
from amgc.engine.config import Config
from amgc.engine.cost import estimate, peak_memory
from amgc.engine.observed import FOLDER as OBSERVED
from amgc.engine.observed import Observer
from amgc.engine.session import Position, Session
from amgc.engine.training import train
from amgc.engine.watch import Watch

RUN, METRICS, LOG = "run.json", "metrics.jsonl", "log.txt"
COMMAND = "AMGC_COMMAND"  # tells a run the command that it is part of, as a JSON list, if it is not the process's own
VERSION = 1  # of run.json
SPLITS = ("training", "test")  # whose images run.json counts
SKIPPED = 20  # unreadable images that run.json names; it counts them all
FEW = 3  # changes of the data that a message tells


class RunExistsError(ValueError):
    """There is a run in the folder already."""


def run(
    config: Config, folder: Path, watch: Watch | None = None, dataset: Dataset | None = None, *, dry_run: bool = False
) -> list[dict[str, Any]]:
    """A new run in `folder`, which must not hold one yet. Returns the lines of metrics.jsonl.

    `dry_run` stops when the cost is known, before anything is written.
    """
    if (folder / RUN).exists() and not _is_child():
        raise RunExistsError(f"{str(folder)!r} holds a run already; resume it, or choose another folder.")
    loggers.check(config.machine.log)
    session = Session(config, folder, watch or Watch(), dataset)
    session.watch.begin_run(session.stream.class_names, session.stream.sizes, lambda: estimate(session))
    if dry_run:
        return []
    if session.processes.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            write_json(folder / RUN, describe(session))
            return complete(session)
    return complete(session)


def resume(folder: Path, watch: Watch | None = None, dataset: Dataset | None = None, **machine: Any) -> list[dict[str, Any]]:
    """Go on with the run in `folder` from its last checkpoint; `machine` replaces settings of where it computes."""
    config = read_config(folder, machine)
    loggers.check(config.machine.log)
    with locked(folder):
        session = Session(config, folder, watch or Watch(), dataset)
        check_data(session)
        session.resume()
        session.watch.begin_run(session.stream.class_names, session.stream.sizes, lambda: estimate(session))
        return complete(session)


def check_data(session: Session) -> None:
    """A run goes on with the classes that it began with, since one more or less would give all of them another order, and
    with as many images of each.
    """
    about, names = json.loads((session.folder / RUN).read_text()), list(session.stream.class_names)
    before = about.get("class_names")
    changes = [] if before == names else [f"it had the classes {listing(before)}, and has {listing(names)}"]
    if not changes and "class_counts" in about:  # older runs have none
        changes = [
            f"class {name!r} had {old} {split} images, and has {new}"
            for split, counts in zip(SPLITS, session.stream.class_counts, strict=True)
            for name, old, new in zip(names, about["class_counts"][split], counts, strict=True)
            if old != new
        ]
    if changes:
        told = "; ".join(changes[:FEW]) + (f"; and {len(changes) - FEW} more" if len(changes) > FEW else "")
        raise ValueError(
            f"the data set has changed since the run in {str(session.folder)!r} began: {told}. "
            "Restore the data, or begin a new run."
        )


def complete(session: Session) -> list[dict[str, Any]]:
    """All tasks from where the session is."""
    if session.processes.is_first:
        remove_unfinished(session.folder)
    log = Log(session)
    log(f"from task {session.position.task + 1}, step {session.position.step}; pid {os.getpid()}; {' '.join(sys.argv)}")
    write_metrics(session)
    with loggers.logged(session):
        session.start_clock()
        for index in range(session.position.task, len(session.stream)):
            learn(session, index)
            log(f"task {index + 1}: {json.dumps(session.lines[-1])}")
    log("finished")
    return session.lines


def remove_unfinished(folder: Path) -> None:
    """What a process that was killed while it wrote a file has left of it."""
    for leftover in (*folder.glob(".*.partial"), *(folder / OBSERVED).glob(".*.partial")):
        leftover.unlink(missing_ok=True)


def learn(session: Session, index: int) -> None:
    """One task: begin (fit the network before the first), train, study, remember, evaluate."""
    method, task = session.method, session.task(index)
    method.task = task
    if not session.position.begun:
        if task.is_first:
            session.fit_network()
        method.begin(task, generator(session.config.seed, "begin", index))
        session.position.begun = True
    taken = task.is_first and session.position.step == 0 and session.take_first_task()
    if not taken:
        train(session, task)
        session.count_seconds("train")
        if task.is_first:
            session.save_first_task()
    method.study(task, session.plain_images(task))
    method.end(task, session.final_features(task))
    session.count_seconds("remember")
    observer = Observer(session, task)
    confusion = session.evaluate(task, observer.see)
    observer.write(confusion)
    session.count_seconds("evaluate")
    line = {"task": index, "correct": confusion.diagonal().tolist(), "total": confusion.sum(1).tolist()}
    line |= {"seconds": session.seconds, "peak_bytes": peak_memory()}  # these two differ from run to run
    line["steps"] = session.position.step
    session.lines.append(line | {"kept_bytes": kept_bytes(session), "losses": session.meter.means()})
    session.position = Position(index + 1)
    session.seconds = dict.fromkeys(session.seconds, 0.0)
    session.meter.reset()
    write_metrics(session)
    session.checkpoint()
    session.watch.end_task(task, session.lines[-1])


def kept_bytes(session: Session) -> int:
    """What the method remembers beside network and head."""
    return sum(tensor.nbytes for name, tensor in pack(session.method.state())[1].items() if not name.startswith("head."))


def read_config(folder: Path, machine: dict[str, Any]) -> Config:
    """The config of the run in `folder`, some settings of the machine replaced."""
    path = folder / RUN
    if not path.is_file():
        raise FileNotFoundError(f"there is no run in {str(folder)!r}: it has no {RUN}.")
    try:
        about = json.loads(path.read_text())
        values = about["config"]
        if about["version"] != VERSION:
            raise files.FileFormatError(f"{str(path)!r} has version {about['version']}; this amgc reads version {VERSION}.")
        values["machine"] |= machine
        return Config.from_json(values)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise files.FileFormatError(f"{str(path)!r} is damaged, or not a run's ({error!r}).") from error


def describe(session: Session) -> dict[str, Any]:
    """run.json."""
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "scikit-learn", "lightning-fabric")}
    return {
        "version": VERSION,
        "amgc": amgc.__version__,
        "versions": {"python": platform.python_version(), **versions},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {session.processes.device.type}",
        "commit": commit(),
        "command": ["amgc", *(json.loads(os.environ[COMMAND]) if COMMAND in os.environ else sys.argv[1:])],
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "config": session.config.to_json(),
        "images": images(session),
        "class_names": list(session.stream.class_names),
        "class_counts": dict(zip(SPLITS, session.stream.class_counts, strict=True)),
        "sizes": list(session.stream.sizes),
        "skipped": {"count": len(session.skipped), "names": list(session.skipped[:SKIPPED])},
    }


def images(session: Session) -> dict[str, Any] | None:
    """How the network sees images, for a model that is made from the run; None if it sees features."""
    if not session.image_side:
        return None
    augment, shape = session.augment, session.network.image_shape
    return {"shape": shape, "mean": augment.mean, "std": augment.std, "scale": session.image_side}


def commit() -> str | None:
    """The commit of amgc's source, if it runs from a git tree."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def write_json(path: Path, content: Any) -> None:
    with files.atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False))


def write_metrics(session: Session) -> None:
    if session.processes.is_first:
        with files.atomic(session.folder / METRICS) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in session.lines))


class Log:
    """Lines with a time in log.txt, from the first process."""

    def __init__(self, session: Session) -> None:
        self.path = session.folder / LOG if session.processes.is_first else None

    def __call__(self, text: str) -> None:
        if self.path:
            with self.path.open("a") as file:
                file.write(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {text}\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time works on a run: the first one of those that share it."""
    if _is_child():
        yield
        return
    try:
        with locking.locked(folder):
            yield
    except locking.FolderBusyError as error:
        raise RunExistsError(f"another process is working on {str(folder)!r} ({error}); let it, or stop it first.") from error


def _is_child() -> bool:
    """Whether this process is not the first one of its run: torchrun says RANK, Fabric's launcher LOCAL_RANK."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) > 0
