"""The files of a run.

run.json                     the resolved config, versions, classes in order of arrival, their image counts, task sizes
metrics.jsonl                one line per finished task, see `TaskLine`
checkpoint.safetensors       the state from which `resume` continues
task-1.safetensors           network and head after the training of task 1, for other methods to start from
task-N.safetensors           the same of a later task, with `--keep-tasks`
observed/task-N.json         for the report: confusions, margins and two classes in a plane, see `amgc.runs.observed`
observed/plane.safetensors   the axes of that plane
log.txt                      a line with a time for each event
.lock                        held while a process works on the run
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from amgc import files, locking
from amgc.options import decode

RUN, METRICS, LOG = "run.json", "metrics.jsonl", "log.txt"
CHECKPOINT, TRAINED = "checkpoint.safetensors", "task-{}.safetensors"
FIRST_TASK = TRAINED.format(1)
OBSERVED, PLANE = "observed", "plane.safetensors"
PLAN = "plan.json"  # of a folder with runs of several methods: what `amgc run` was asked for
COMMAND = "AMGC_COMMAND"  # environment variable: the command that a run is part of, as a JSON list, if not the process's own
VERSION = 1  # of run.json and of observed/task-N.json
LOOKS = "A run folder holds run.json (what was run) and metrics.jsonl (a line per finished task), as `amgc run` writes them."
AGAIN = "restore the file from a copy, or run again"


class RunError(files.FileFormatError):
    """A file of the run is damaged, incomplete or of a newer version."""


class RunExistsError(ValueError):
    """The folder already holds a run, or another process is working on it."""


def is_first_process() -> bool:
    """Return whether this is the first of the processes that compute a run together. Only the first writes and prints.

    torchrun sets RANK, Fabric's launcher LOCAL_RANK.
    """
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0


@dataclass(frozen=True)
class RunInfo:
    """The fields of run.json that every version has."""

    config: dict[str, Any]
    class_names: tuple[str, ...]  # in order of arrival
    sizes: tuple[int, ...]  # classes per task
    amgc: str
    versions: dict[str, str]
    commit: str | None
    created: str  # ISO time
    command: tuple[str, ...]


@dataclass(frozen=True)
class TaskLine:
    """The fields of a line of metrics.jsonl. `correct` and `total` have a number of test images for each seen class."""

    task: int  # from 0
    correct: tuple[int, ...]
    total: tuple[int, ...]
    seconds: dict[str, float]  # train, remember, evaluate
    kept_bytes: int  # what the method stores, besides network and head
    peak_bytes: int | None = None  # memory of the process at most so far; older runs have none


@dataclass(frozen=True)
class RunFolder:
    """Reads and writes the files of the run in the folder `path`. Everything is written atomically."""

    path: Path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def exists(self) -> bool:
        """Whether there is a run in the folder."""
        return (self / RUN).is_file()

    @property
    def checkpoint(self) -> Path:
        return self / CHECKPOINT

    def trained(self, task: int) -> Path:
        """Return the path of network and head after the training of `task`, counted from 0."""
        return self / TRAINED.format(task + 1)

    @property
    def plane(self) -> Path:
        return self / OBSERVED / PLANE

    def observed(self, task: int) -> Path:
        """Return the path of what was observed after `task`, counted from 0."""
        return self / OBSERVED / f"task-{task + 1}.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock. The processes that compute a run together count as one."""
        if not is_first_process():
            yield
            return
        if (self / OBSERVED).is_symlink():
            raise RunError(f"{str(self / OBSERVED)!r} is a link, so nothing is written to it; remove it.")
        try:
            with locking.locked(self.path):
                yield
        except locking.FolderBusyError as error:
            name = str(self.path)
            raise RunExistsError(f"another process is working on {name!r} ({error}); wait for it, or stop it first.") from error

    # ---- writing -------------------------------------------------------------------------------------------------

    def create(self, info: dict[str, Any]) -> None:
        """Write run.json."""
        files.write_json(self / RUN, {"version": VERSION} | info)

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write metrics.jsonl."""
        files.write_text(self / METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def log(self, text: str) -> None:
        """Append a line with the time to log.txt."""
        files.check_own(self / LOG)
        with (self / LOG).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {text}\n")

    def remove_partial(self) -> None:
        """Remove what a killed process left of the file that it was writing."""
        files.remove_partial(self.path)
        files.remove_partial(self / OBSERVED)

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        """Return all of run.json; `info` checks the fields that every version has."""
        if not self.exists:
            raise FileNotFoundError(f"there is no run in {str(self.path)!r}: it has no {RUN}.")
        return read_object(self / RUN)

    def info(self) -> RunInfo:
        """Return run.json, checked."""
        path, content = self / RUN, self.read()
        try:
            info: RunInfo = decode(RunInfo, content)
            decode(str, info.config.get("method"), "config.method")
        except ValueError as error:
            raise RunError(f"{str(path)!r} cannot be read: {error} Please {AGAIN}.") from error
        if len(info.class_names) != sum(info.sizes):
            raise RunError(
                f"{str(path)!r} names {len(info.class_names)} classes, but its task sizes {list(info.sizes)} sum to "
                f"{sum(info.sizes)}."
            )
        return info

    def metrics(self) -> list[TaskLine]:
        """Return the lines of metrics.jsonl. A last line that is incomplete was cut when the run was killed: it is ignored."""
        file = self / METRICS
        if not file.exists():
            return []
        *whole, rest = files.read_bytes(file, files.MOST_JSON).split(b"\n")
        lines = [_line(text, task, file) for task, text in enumerate(whole)]
        try:
            files.parse_json(rest)
        except ValueError:
            return lines
        return [*lines, _line(rest, len(lines), file)]  # only the end of the line is missing


def _line(text: bytes, task: int, file: Path) -> TaskLine:
    where = f"{file}, line {task + 1}"
    try:
        content = files.parse_json(text, finite=True)
    except ValueError as error:
        raise RunError(f"{where} is damaged ({error}); `amgc resume` rewrites the file.") from error
    try:
        line: TaskLine = decode(TaskLine, content)
    except ValueError as error:
        raise RunError(f"{where}: {error} Please {AGAIN}.") from error
    if line.task != task:
        raise RunError(f"{where} is of task {line.task}, but task {task} is expected (tasks are counted from 0).")
    return line


def read_object(path: Path, *, finite: bool = False) -> dict[str, Any]:
    """Return the JSON object in `path`, whose version must be one that this amgc reads; `finite` rejects NaN and infinity."""
    try:
        content = files.read_json(path, finite=finite)
    except files.FileFormatError as error:
        raise RunError(f"{error} Otherwise run again.") from error
    if not isinstance(content, dict) or not isinstance(content.get("version"), int):
        raise RunError(f"{str(path)!r} was not written by amgc: it has no version number.")
    if content["version"] > VERSION:
        found = content["version"]
        raise RunError(f"{str(path)!r} has version {found}; this amgc reads up to {VERSION}: install a newer one.")
    return content
