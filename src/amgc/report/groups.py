"""Runs that differ in nothing but their seed, taken together: mean and standard deviation. Others are never averaged."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amgc.runs import RunError, RunRecord, find_runs, flat

# Where and how a run computed, and where its data lay: no part of what was run.
ELSEWHERE = ("machine.", "data_options.root")


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) of `count` values; of a single value there is no deviation."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """
        >>> Spread.of([0.5, 0.7]), Spread.of([0.5]), Spread.of([])
        (Spread(mean=0.6, std=0.141421, count=2), Spread(mean=0.5, std=None, count=1), None)
        """
        if not values:
            return None
        mean = math.fsum(values) / len(values)
        squares = math.fsum((value - mean) ** 2 for value in values)
        return cls(mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Group:
    """The runs of one method, with one config, on one data set, with one split into tasks; in order of their seeds."""

    name: str  # the method's, or the one that the user gave
    runs: tuple[RunRecord, ...]

    @property
    def data(self) -> str:
        return str(self.runs[0].config.get("data"))

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.runs[0].sizes

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        """Those that count: half a run has no LA."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def last_accuracy(self) -> Spread | None:
        return Spread.of([value for run in self.finished if (value := run.metrics.last_accuracy) is not None])

    @property
    def average_incremental_accuracy(self) -> Spread | None:
        return Spread.of([value for run in self.finished if (value := run.metrics.average_incremental_accuracy) is not None])

    @property
    def accuracy(self) -> tuple[Spread, ...]:
        """After each task that all its runs have finished."""
        columns = zip(*(run.metrics.accuracy for run in self.runs), strict=False)  # as long as the shortest
        return tuple(found for column in columns if (found := Spread.of(column)) is not None)


def short_name(data: str) -> str:
    """A data source as it stands in headings: of a path its last part.

    >>> short_name("folder:/home/me/photos"), short_name("cifar100")
    ('folder:photos', 'cifar100')
    """
    kind, _, path = data.partition(":")
    return f"{kind}:{Path(path).name}" if path else data


def named_runs(
    arguments: Sequence[str | os.PathLike[str]], damaged: list[RunError] | None = None
) -> list[tuple[str, RunRecord]]:
    """The runs in the folders that were named, each with its row's name: NAME of an argument NAME=FOLDER, or the method's.

    `damaged` is that of `find_runs`.
    """
    found: dict[Path, tuple[str, RunRecord]] = {}
    for argument in map(str, arguments):
        name, equals, folder = ("", "", argument) if os.path.exists(argument) else argument.partition("=")
        for run in find_runs(folder if equals else argument, damaged):
            found.setdefault(run.path.resolve(), (name or run.method, run))  # a folder that is named twice counts once
    return list(found.values())


def grouped(runs: Sequence[tuple[str, RunRecord]]) -> list[Group]:
    """Groups by name, data and tasks, in order of appearance. Runs that must not be averaged are refused with the reason."""
    groups: dict[tuple[Any, ...], list[RunRecord]] = {}
    for name, run in runs:
        groups.setdefault((name, run.config.get("data"), run.sizes), []).append(run)
    for (name, *_), members in groups.items():
        _check(name, members)
    return [Group(name, tuple(sorted(members, key=_seed))) for (name, *_), members in groups.items()]


def settings(run: RunRecord) -> dict[str, Any]:
    """What decides a run's result beside its seed, with dotted names."""
    return {key: value for key, value in flat(run.config).items() if key != "seed" and not key.startswith(ELSEWHERE)}


def _check(name: str, members: Sequence[RunRecord]) -> None:
    first, *others = members
    for run in others:
        one, other = settings(first), settings(run)
        differing = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        if differing:
            shown = ", ".join(f"{key} {one.get(key)} and {other.get(key)}" for key in differing[:3])
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise RunError(
                f"{str(first.path)!r} and {str(run.path)!r} are both {name!r}, but not the same: {shown}{more}. They are not "
                f"averaged; leave one out, or give one another name, such as other={run.path}."
            )
    seen: dict[Any, RunRecord] = {}
    for run in members:
        twin = seen.setdefault(run.config.get("seed"), run)
        if twin is not run:
            raise RunError(
                f"{str(twin.path)!r} and {str(run.path)!r} are the same run, {name!r} with seed {run.config.get('seed')}; it "
                "would count twice. Leave one out."
            )


def _seed(run: RunRecord) -> tuple[int, str]:
    seed = run.config.get("seed")
    return (seed if isinstance(seed, int) else 0, run.created)
