"""What the page shows of each method: its runs over all seeds, taken together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from amgc.report.details import sizes_text
from amgc.report.groups import Group, Spread, grouped, short_name
from amgc.report.page.lines import Line
from amgc.report.plan import paper_figures
from amgc.runs import Metrics, RunError, RunRecord
from amgc.runs.observed import Observed, load_observed


@dataclass(frozen=True)
class Entry:
    """A method: `place` decides how it looks; `observed` has, of each run, what was seen after its tasks."""

    group: Group
    place: int
    observed: tuple[tuple[Observed, ...], ...]
    paper: dict[str, float]  # LA and AIA in percent

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return self.group.runs

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs that the figures are of: the finished ones, or if there is none, those that have finished a task."""
        return counted(self.group)

    @property
    def watched(self) -> list[tuple[RunRecord, tuple[Observed, ...]]]:
        """The counted runs that kept what was seen."""
        both = zip(self.runs, self.observed, strict=True)
        return [(run, observed) for run, observed in both if observed and run in self.counted]

    @property
    def done(self) -> int:
        """Tasks that all counted runs have finished."""
        return min((run.done for run in self.counted), default=0)

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def state(self) -> str:
        """How many runs, and how far they are."""
        whole, all_runs = len(self.group.finished), len(self.runs)
        if self.finished:
            return f"{all_runs} run{'s' * (all_runs > 1)}"
        if all_runs == 1:
            return f"{self.done} of {len(self.group.sizes)} tasks"
        return f"{whole} of {all_runs} runs finished"

    @property
    def seeds(self) -> list[str]:
        return [str(run.config.get("seed")) for run in self.runs]

    def at_end(self, number: Callable[[Metrics], float | None]) -> Spread | None:
        """Of the finished runs, as LA is."""
        return Spread.of([value for run in self.group.finished if (value := number(run.metrics)) is not None])

    def after(self, numbers: Callable[[Metrics], Sequence[float | None]]) -> list[Spread | None]:
        """After each task that all counted runs have finished."""
        columns = zip(*(numbers(run.metrics)[: self.done] for run in self.counted), strict=True)
        return [Spread.of([value for value in column if value is not None]) for column in columns]

    def line(self, place: int, name: str, numbers: Callable[[Metrics], Sequence[float | None]]) -> Line:
        """What is there of the numbers, against the classes seen."""
        seen = self.runs[0].metrics.seen
        kept = [(count, value) for count, value in zip(seen, self.after(numbers), strict=False) if value is not None]
        return Line(name, place, [count for count, _ in kept], [value for _, value in kept])

    @cached_property
    def matrix(self) -> list[list[float]]:
        """After each task (row) on the classes of each task up to it (column), mean over the runs."""
        runs = [run.metrics.matrix for run in self.counted]
        return [[sum(run[i][j] for run in runs) / len(runs) for j in range(i + 1)] for i in range(self.done)]

    @property
    def seconds(self) -> dict[str, float]:
        """By what was done, for a whole run so far; mean over the runs."""
        spent: Counter[str] = Counter()
        for run in self.counted:
            for task in run.seconds:
                spent.update(task)
        return {name: seconds / len(self.counted) for name, seconds in spent.items()}

    @property
    def peak(self) -> int | None:
        """Bytes of the process's memory at most, of any run; older runs do not tell."""
        return max((value for run in self.counted for value in run.peak_bytes if value is not None), default=None)

    @property
    def kept(self) -> tuple[float, float] | None:
        """Bytes in all and per class after the last finished task, mean over the runs."""
        ends = [(run.kept_bytes[-1], run.metrics.seen[run.done - 1]) for run in self.counted]
        if not ends:
            return None
        return sum(kept for kept, _ in ends) / len(ends), sum(kept / seen for kept, seen in ends) / len(ends)


@dataclass(frozen=True)
class Stream:
    """Methods on the same data in the same tasks: what can be compared. `number` counts the page's streams."""

    number: int
    data: str
    sizes: tuple[int, ...]
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> int:
        return sum(len(entry.runs) for entry in self.entries)

    @property
    def begun(self) -> tuple[Entry, ...]:
        """Those with a finished task."""
        return tuple(entry for entry in self.entries if entry.done)

    @property
    def tasks(self) -> str:
        return sizes_text(self.sizes)

    @property
    def several_seeds(self) -> bool:
        return any(len(entry.runs) > 1 for entry in self.entries)


def streams(runs: Sequence[tuple[str, RunRecord]], damaged: list[RunError]) -> list[Stream]:
    """The named runs by what they learn; the best method first. What was observed but cannot be read goes to `damaged`."""
    found: dict[tuple[str, tuple[int, ...]], list[Group]] = {}
    for group in grouped(runs):
        found.setdefault((group.data, group.sizes), []).append(group)
    return [
        Stream(
            number,
            short_name(data),
            sizes,
            tuple(_entry(g, place, damaged) for place, g in enumerate(sorted(groups, key=_worth))),
        )
        for number, ((data, sizes), groups) in enumerate(found.items(), 1)
    ]


def _entry(group: Group, place: int, damaged: list[RunError]) -> Entry:
    observed = []
    for run in group.runs:
        try:
            observed.append(tuple(load_observed(run)))
        except RunError as error:
            damaged.append(error)
            observed.append(())
    plans = [paper_figures(folder) for run in group.runs for folder in (run.path, run.path.parent)]
    theirs = next((plan[group.runs[0].method] for plan in plans if group.runs[0].method in plan), {})
    return Entry(group, place, tuple(observed), theirs)


def counted(group: Group) -> tuple[RunRecord, ...]:
    return group.finished or tuple(run for run in group.runs if run.done)


def _worth(group: Group) -> tuple[bool, float]:
    """Finished ones first; by LA, or the latest accuracy."""
    latest = Spread.of([run.metrics.accuracy[-1] for run in counted(group)])
    return not group.finished, -latest.mean if latest else 0.0
