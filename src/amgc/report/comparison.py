"""Runs that can be compared with each other, as the sections of the report page receive them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from amgc.report.groups import MethodRuns, Spread, describe_sizes, grouped, short_name
from amgc.report.paper import plan_figures
from amgc.runs import RunError, RunRecord
from amgc.runs.observed import load_observed


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
    """Sort finished methods first, then by LA or the latest accuracy."""
    latest = Spread.of([run.metrics.accuracy[-1] for run in group.counted])
    return not group.finished, -latest.mean if latest else 0.0
