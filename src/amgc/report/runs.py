"""Reading run folders: `run.json` says what was run, `metrics.jsonl` has a line per finished task."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amgc.report.metrics import Metrics

VERSION = 1  # of run.json
LOOKS = "A run folder holds run.json (what was run) and metrics.jsonl (a line per finished task), as `amgc run` writes them."


class RunError(ValueError):
    """A file of the run is damaged, incomplete or of a newer version."""


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder tells it."""

    path: Path
    config: dict[str, Any]
    class_names: tuple[str, ...]  # in order of arrival
    sizes: tuple[int, ...]  # classes per task
    metrics: Metrics
    seconds: tuple[dict[str, float], ...]  # per finished task: train, remember, evaluate
    kept_bytes: tuple[int, ...]  # per finished task: all that the method remembers
    versions: dict[str, str]  # of amgc and of what it stands on
    commit: str | None
    created: str  # ISO time
    command: tuple[str, ...]
    peak_bytes: tuple[int | None, ...] = ()  # per finished task: the process's memory at most by then; older runs: None

    @property
    def method(self) -> str:
        """Its name; of a method that came from a file, the file's."""
        name = str(self.config["method"])
        return Path(name).stem if name.endswith(".py") else name

    @property
    def done(self) -> int:
        """The number of finished tasks."""
        return self.metrics.done

    @property
    def finished(self) -> bool:
        return self.done == len(self.sizes)


def find_runs(path: str | os.PathLike[str], damaged: list[RunError] | None = None) -> list[RunRecord]:
    """The run at `path`, or the runs in its sub-folders and in theirs, in order of creation.

    A damaged run is an error; with a list `damaged`, the error is put there and the others are returned.
    """
    folder = _folder(path)
    inside = [folder]
    if not (folder / "run.json").exists():
        found = [file.parent for pattern in ("*/run.json", "*/*/run.json") for file in folder.glob(pattern)]
        inside = sorted(run for run in found if not any(part.startswith(".") for part in run.relative_to(folder).parts))
    if not inside:
        raise FileNotFoundError(f"neither {str(folder)!r} nor a folder in it, or in one of those, has a run.json. {LOOKS}")
    runs = []
    for run in inside:
        try:
            runs.append(load_run(run))
        except RunError as error:
            if damaged is None:
                raise
            damaged.append(error)
    return sorted(runs, key=lambda run: run.created)


def load_run(path: str | os.PathLike[str]) -> RunRecord:
    """The run in the folder `path`, finished or still going."""
    folder = _folder(path)
    file = folder / "run.json"
    if not file.is_file():
        raise FileNotFoundError(f"{str(folder)!r} has no run.json. {LOOKS}")
    try:
        about = json.loads(file.read_bytes().decode())
    except ValueError as error:
        raise RunError(f"{str(file)!r} is damaged ({error}); restore it from a copy, or run again.") from error
    if not isinstance(about, dict) or not isinstance(about.get("version"), int):
        raise RunError(f"{str(file)!r} was not written by amgc: it has no version number.")
    if about["version"] > VERSION:
        raise RunError(f"{str(file)!r} has version {about['version']}; this amgc reads up to {VERSION}: install a newer one.")
    config = _get(about, "config", dict, file)
    _get(config, "method", str, f"{file}: config")
    sizes = _list(about, "sizes", int, file)
    names = _list(about, "class_names", str, file)
    if len(names) != sum(sizes):
        raise RunError(f"{str(file)!r} names {len(names)} classes, but its task sizes {list(sizes)} sum to {sum(sizes)}.")
    lines = _lines(folder / "metrics.jsonl")
    try:
        metrics = Metrics(sizes, [line["correct"] for line in lines], [line["total"] for line in lines])
    except ValueError as error:
        raise RunError(f"the contents of {str(folder)!r} do not fit together: {error}") from error
    return RunRecord(
        path=folder,
        config=config,
        class_names=names,
        sizes=sizes,
        metrics=metrics,
        seconds=tuple(line["seconds"] for line in lines),
        kept_bytes=tuple(line["kept_bytes"] for line in lines),
        versions={"amgc": _get(about, "amgc", str, file), **_get(about, "versions", dict, file)},
        commit=_get(about, "commit", str | None, file),
        created=_get(about, "created", str, file),
        command=_list(about, "command", str, file),
        peak_bytes=tuple(line.get("peak_bytes") for line in lines),
    )


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """A short name for each run: its method; among runs of one method also the settings in which they differ, or the
    name of the folder if there is no such setting or they are many.
    """
    names = []
    for run in runs:
        alike = [_deciding(other.config) for other in runs if other.method == run.method]
        own = _deciding(run.config)
        differing = [key for key in own if any(other.get(key) != own[key] for other in alike)]
        settings = ", ".join(f"{key.removeprefix('hyper.')}={own[key]}" for key in differing)
        apart = settings if 0 < len(settings) <= 24 else run.path.name
        names.append(run.method if len(alike) == 1 else f"{run.method} ({apart})")
    count = Counter(names)
    return [name if count[name] == 1 else f"{run.method} ({run.path})" for name, run in zip(names, runs, strict=True)]


def _deciding(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide a run's result: where it computed, or took task 1's training from, tells nobody apart."""
    return flat({key: value for key, value in config.items() if key != "machine"})


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names, `hyper.margin`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if not folder.exists():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}.")
    if not folder.is_dir():
        raise NotADirectoryError(f"{str(folder)!r} is not a folder. {LOOKS}")
    return folder


def _lines(file: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl. A last line without its end is one that was being written when the run was killed."""
    if not file.exists():
        return []
    *whole, rest = file.read_bytes().split(b"\n")
    lines = [_line(text, task, file) for task, text in enumerate(whole)]
    try:
        json.loads(rest.decode())
    except ValueError:
        return lines
    return [*lines, _line(rest, len(lines), file)]  # cut between the line and its end


def _line(text: bytes, task: int, file: Path) -> dict[str, Any]:
    where = f"{file}, line {task + 1}"
    try:
        line = json.loads(text.decode())
    except ValueError as error:
        raise RunError(f"{where} is damaged ({error}); `amgc resume` writes the file anew.") from error
    if not isinstance(line, dict):
        raise RunError(f"{where} is not a JSON object.")
    if _get(line, "task", int, where) != task:
        raise RunError(f"{where} is of task {line['task']}, but that of task {task} is due (tasks are counted from 0).")
    for key, kind in (("correct", list), ("total", list), ("seconds", dict), ("kept_bytes", int)):
        _get(line, key, kind, where)
    if "peak_bytes" in line:
        _get(line, "peak_bytes", int, where)
    for name in line["seconds"]:
        _get(line["seconds"], name, int | float, where)
    return line


def _get(mapping: dict[str, Any], key: str, kind: Any, where: str | Path) -> Any:
    if key not in mapping:
        raise RunError(f"{where} lacks {key!r}; restore the file from a copy, or run again.")
    if not isinstance(mapping[key], kind):
        raise RunError(f"{where}: {key!r} is {mapping[key]!r}, not {getattr(kind, '__name__', kind)}.")
    return mapping[key]


def _list(mapping: dict[str, Any], key: str, kind: type, where: str | Path) -> tuple[Any, ...]:
    values = _get(mapping, key, list, where)
    if not all(isinstance(value, kind) for value in values):
        raise RunError(f"{where}: {key!r} must be a list of {kind.__name__} only.")
    return tuple(values)
