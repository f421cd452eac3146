"""Read runs from their folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amgc.runs.folder import LOOKS, RUN, RunError, RunFolder, RunInfo, TaskLine
from amgc.runs.metrics import Metrics


@dataclass(frozen=True)
class RunRecord(RunInfo):
    """A run, as read from its folder: run.json, the lines of metrics.jsonl, and the metrics that follow from both."""

    path: Path
    metrics: Metrics
    lines: tuple[TaskLine, ...]  # of the finished tasks

    @property
    def method(self) -> str:
        """The method's name; for a method from a file, the file's name."""
        name = str(self.config["method"])
        return Path(name).stem if name.endswith(".py") else name

    @property
    def done(self) -> int:
        """Number of finished tasks."""
        return self.metrics.done

    @property
    def finished(self) -> bool:
        return self.done == len(self.sizes)

    @property
    def seconds(self) -> tuple[dict[str, float], ...]:
        """Per finished task: time for train, remember and evaluate."""
        return tuple(line.seconds for line in self.lines)

    @property
    def kept_bytes(self) -> tuple[int, ...]:
        """Per finished task: what the method remembers."""
        return tuple(line.kept_bytes for line in self.lines)

    @property
    def peak_bytes(self) -> tuple[int | None, ...]:
        """Per finished task: peak memory of the process so far; None in older runs."""
        return tuple(line.peak_bytes for line in self.lines)


def find_runs(path: str | os.PathLike[str], damaged: list[RunError] | None = None) -> list[RunRecord]:
    """Return the run at `path`, or the runs in its sub-folders down to two levels, in order of creation.

    A damaged run raises an error. If a list `damaged` is given, its error is appended there and the others are returned.
    """
    folder = _folder(path)
    inside = [folder]
    if not (folder / RUN).exists():
        found = [file.parent for pattern in (f"*/{RUN}", f"*/*/{RUN}") for file in folder.glob(pattern)]
        inside = sorted(run for run in found if not any(part.startswith(".") for part in run.relative_to(folder).parts))
    if not inside:
        raise FileNotFoundError(f"neither {str(folder)!r} nor a folder in it, or in one of those, has a {RUN}. {LOOKS}")
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
    """Return the run in the folder `path`, finished or still running."""
    folder = RunFolder(_folder(path))
    if not folder.exists:
        raise FileNotFoundError(f"{str(folder.path)!r} has no {RUN}. {LOOKS}")
    info, lines = folder.info(), folder.metrics()
    try:
        metrics = Metrics(info.sizes, [line.correct for line in lines], [line.total for line in lines])
    except ValueError as error:
        raise RunError(f"the contents of {str(folder.path)!r} do not fit together: {error}") from error
    fields = vars(info) | {"versions": {"amgc": info.amgc, **info.versions}}
    return RunRecord(**fields, path=folder.path, metrics=metrics, lines=tuple(lines))


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """Return a short name for each run: its method.

    Runs of one method also get the settings in which they differ, or the folder's name if there are none or too many.
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
    """Return the settings that determine a run's result: all but those of the machine."""
    return flat({key: value for key, value in config.items() if key != "machine"})


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names, such as `hyper.margin`."""
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
