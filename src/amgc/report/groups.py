"""Group runs: those that differ only in their seeds, with mean and standard deviation, and methods that can be compared."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

from amgc.report.paper import plan_figures
from amgc.runs import Metrics, RunError, RunRecord, find_runs, flat
from amgc.runs.observed import Observed, load_observed
from amgc.text import percent, plural

T = TypeVar("T")
# Settings that do not influence the result: where the run computed and where its data were stored.
IRRELEVANT = ("machine.", "data_options.root")


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of `count` values; a single value has no deviation."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """Compute the spread of the values that are not None.

        >>> Spread.of([0.5, 0.7]), Spread.of([0.5, None]), Spread.of([])
        (Spread(mean=0.6, std=0.141421, count=2), Spread(mean=0.5, std=None, count=1), None)
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(fmean(known), stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method that differ only in their seeds, in order of the seeds.

    Numbers are computed from the `counted` runs. The last three fields are set for the report page only.
    """

    name: str  # the method's name, or the name that the user gave
    runs: tuple[RunRecord, ...]
    place: int = 0  # position on the page; determines colour and marker
    observed: tuple[tuple[Observed, ...], ...] = ()  # per run: what was recorded after its tasks
    paper: Mapping[str, float] = field(default_factory=dict)  # LA and AIA of the paper, in percent

    @property
    def data(self) -> str:
        return str(self.runs[0].config.get("data"))

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.runs[0].sizes

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        """The runs that have finished all their tasks; only these have an LA."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The finished runs; if there are none, those that have finished a task."""
        return self.finished or tuple(run for run in self.runs if run.done)

    @property
    def done(self) -> int:
        """Number of tasks that all counted runs have finished."""
        return min((run.done for run in self.counted), default=0)

    @property
    def state(self) -> str:
        """Number of runs and their progress."""
        if len(self.finished) == len(self.runs):
            return plural(len(self.runs), "run")
        if len(self.runs) == 1:
            return f"{self.done} of {len(self.sizes)} tasks"
        return f"{len(self.finished)} of {len(self.runs)} runs finished"

    @property
    def recorded(self) -> list[tuple[RunRecord, tuple[Observed, ...]]]:
        """The counted runs that have recorded confusions, margins and features, with their records."""
        both = zip(self.runs, self.observed, strict=True)
        return [(run, observed) for run, observed in both if observed and run in self.counted]

    def at_end(self, number: Callable[[Metrics], float | None]) -> Spread | None:
        """Return the spread of a metric over the finished runs."""
        return Spread.of([number(run.metrics) for run in self.finished])

    def after(self, numbers: Callable[[Metrics], Sequence[float | None]]) -> list[Spread | None]:
        """Return the spread of a metric after each task that all counted runs have finished."""
        columns = zip(*(numbers(run.metrics)[: self.done] for run in self.counted), strict=True)
        return [Spread.of(column) for column in columns]

    @property
    def last_accuracy(self) -> Spread | None:
        return self.at_end(lambda metrics: metrics.last_accuracy)

    @property
    def average_incremental_accuracy(self) -> Spread | None:
        return self.at_end(lambda metrics: metrics.average_incremental_accuracy)

    @cached_property
    def matrix(self) -> list[list[float]]:
        """Accuracy after each task (row) on the classes of each task so far (column), mean over the runs."""
        runs = [run.metrics.matrix for run in self.counted]
        return [[sum(run[i][j] for run in runs) / len(runs) for j in range(i + 1)] for i in range(self.done)]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of a run by phase (train, remember, evaluate), mean over the runs."""
        spent: Counter[str] = Counter()
        for run in self.counted:
            for task in run.seconds:
                spent.update(task)
        return {name: seconds / len(self.counted) for name, seconds in spent.items()}

    @property
    def peak_bytes(self) -> int | None:
        """Largest peak memory of any run; None for runs of versions that did not record it."""
        return max((value for run in self.counted for value in run.peak_bytes if value is not None), default=None)

    @property
    def kept_bytes(self) -> tuple[float, float]:
        """Bytes that the method keeps in total and per class after the last finished task, mean over the runs."""
        ends = [(run.kept_bytes[-1], run.metrics.seen[run.done - 1]) for run in self.counted]
        return sum(kept for kept, _ in ends) / len(ends), sum(kept / seen for kept, seen in ends) / len(ends)


def percent_spread(value: Spread | None) -> str:
    """
    >>> percent_spread(Spread(0.5, 0.0123, 3)), percent_spread(Spread(0.5, None, 1)), percent_spread(None)
    ('50.0 ± 1.2', '50.0', '–')
    """
    if value is None:
        return percent(None)
    return percent(value.mean) + (f" ± {percent(value.std)}" if value.std is not None else "")


def short_name(data: str) -> str:
    """Return the name of a data source for headings; a path is cut to its last part.

    >>> short_name("folder:/home/me/photos"), short_name("cifar100")
    ('folder:photos', 'cifar100')
    """
    kind, _, path = data.partition(":")
    return f"{kind}:{Path(path).name}" if path else data


def sum_of_sizes(sizes: Sequence[int]) -> str:
    """Write task sizes as a sum.

    >>> sum_of_sizes((50, 10, 10, 5)), sum_of_sizes((10, 10))
    ('50 + 2 × 10 + 5', '2 × 10')
    """
    pieces = [(size, len(list(alike))) for size, alike in groupby(sizes)]
    return " + ".join(f"{count} × {size}" if count > 1 else str(size) for size, count in pieces)


def describe_sizes(sizes: Sequence[int]) -> str:
    """
    >>> describe_sizes((10, 10)), describe_sizes((50, 10, 10, 5)), describe_sizes((10,))
    ('20 classes in 2 tasks of 10', '75 classes in 4 tasks (50 + 2 × 10 + 5)', '10 classes in 1 task')
    """
    start = f"{plural(sum(sizes), 'class')} in {plural(len(sizes), 'task')}"
    if len(sizes) == 1:
        return start
    return f"{start} of {sizes[0]}" if len(set(sizes)) == 1 else f"{start} ({sum_of_sizes(sizes)})"


def named_runs(
    arguments: Sequence[str | os.PathLike[str]], damaged: list[RunError] | None = None
) -> list[tuple[str, RunRecord]]:
    """Read the runs in the given folders, each with the name of its row.

    An argument NAME=FOLDER sets the name; otherwise it is the method's. `damaged` is passed to `find_runs`.
    """
    found: dict[Path, tuple[str, RunRecord]] = {}
    for argument in map(str, arguments):
        name, equals, folder = ("", "", argument) if os.path.exists(argument) else argument.partition("=")
        for run in find_runs(folder if equals else argument, damaged):
            found.setdefault(run.path.resolve(), (name or run.method, run))  # a folder given twice counts once
    return list(found.values())


def grouped(runs: Sequence[tuple[str, RunRecord]]) -> list[MethodRuns]:
    """Group runs by name, data and tasks, in order of appearance.

    Raises RunError for runs of one group that differ in more than their seeds, or that are copies of each other.
    """
    groups: dict[tuple[Any, ...], list[RunRecord]] = {}
    for name, run in runs:
        groups.setdefault((name, run.config.get("data"), run.sizes), []).append(run)
    for (name, *_), members in groups.items():
        _check(name, members)
    return [MethodRuns(name, tuple(sorted(members, key=_seed))) for (name, *_), members in groups.items()]


def _settings(run: RunRecord) -> dict[str, Any]:
    """Return the settings, except the seed, that determine a run's result, with dotted names."""
    return {key: value for key, value in flat(run.config).items() if key != "seed" and not key.startswith(IRRELEVANT)}


def _check(name: str, members: Sequence[RunRecord]) -> None:
    first, *others = members
    for run in others:
        one, other = _settings(first), _settings(run)
        differing = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        if differing:
            shown = ", ".join(f"{key} {one.get(key)} and {other.get(key)}" for key in differing[:3])
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise RunError(
                f"{str(first.path)!r} and {str(run.path)!r} are both named {name!r} but have different settings: {shown}{more}."
                f" They cannot be averaged; omit one, or give one another name, such as other={run.path}."
            )
    seen: dict[Any, RunRecord] = {}
    for run in members:
        twin = seen.setdefault(run.config.get("seed"), run)
        if twin is not run:
            raise RunError(
                f"{str(twin.path)!r} and {str(run.path)!r} are the same run, {name!r} with seed {run.config.get('seed')}, which"
                " would count twice. Omit one."
            )


def _seed(run: RunRecord) -> tuple[int, str]:
    seed = run.config.get("seed")
    return (seed if isinstance(seed, int) else 0, run.created)


@dataclass(frozen=True)
class Comparison:
    """Methods on the same data with the same tasks, the best first. `number` counts the comparisons of a page from 1."""

    number: int
    data: str
    sizes: tuple[int, ...]
    methods: tuple[MethodRuns, ...]

    @property
    def begun(self) -> tuple[MethodRuns, ...]:
        """The methods with at least one finished task."""
        return tuple(method for method in self.methods if method.done)

    @property
    def tasks(self) -> str:
        """Description of the tasks: `20 classes in 2 tasks of 10`."""
        return describe_sizes(self.sizes)

    @property
    def several_seeds(self) -> bool:
        return any(len(method.runs) > 1 for method in self.methods)

    def recorded(self, pick: Callable[[Sequence[Observed]], T | None]) -> list[tuple[MethodRuns, RunRecord, T]]:
        """Return what `pick` finds in the records of each method, with the first run for which it is not None."""
        found = []
        for method in self.begun:
            picked = ((method, run, pick(observed)) for run, observed in method.recorded)
            found += [(method, run, value) for method, run, value in picked if value is not None][:1]
        return found

    def missing(self, shown: Sequence[MethodRuns]) -> list[str]:
        """Return the names of the begun methods that are not among the shown ones."""
        return [method.name for method in self.begun if not any(method is other for other in shown)]

    def identity(self, kind: str, method: MethodRuns | None = None) -> str:
        """Return an HTML id that is unique on the page."""
        return f"{kind}-{self.number}" + ("" if method is None else f"-{method.place}")


def comparisons(runs: Sequence[tuple[str, RunRecord]], damaged: list[RunError]) -> list[Comparison]:
    """Group the runs of `named_runs` by data and tasks. Errors of unreadable records are appended to `damaged`."""
    found: dict[tuple[str, tuple[int, ...]], list[MethodRuns]] = {}
    for group in grouped(runs):
        found.setdefault((group.data, group.sizes), []).append(group)
    return [
        Comparison(
            number,
            short_name(data),
            sizes,
            tuple(_with_records(group, place, damaged) for place, group in enumerate(sorted(groups, key=_quality))),
        )
        for number, ((data, sizes), groups) in enumerate(found.items(), 1)
    ]


def _with_records(group: MethodRuns, place: int, damaged: list[RunError]) -> MethodRuns:
    observed = []
    for run in group.runs:
        try:
            observed.append(tuple(load_observed(run)))
        except RunError as error:
            damaged.append(error)
            observed.append(())
    plans = [plan_figures(folder) for run in group.runs for folder in (run.path, run.path.parent)]
    paper = next((plan[group.runs[0].method] for plan in plans if group.runs[0].method in plan), {})
    return replace(group, place=place, observed=tuple(observed), paper=paper)


def _quality(group: MethodRuns) -> tuple[bool, float]:
    """Return a sort key: finished methods first, then by LA or the latest accuracy."""
    latest = Spread.of([run.metrics.accuracy[-1] for run in group.counted])
    return not group.finished, -latest.mean if latest else 0.0
