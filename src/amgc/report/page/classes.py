"""Numbers per class, of one run: another seed has another order of arrival, and who is old decides who is confused."""

from __future__ import annotations

from dataclasses import dataclass

from amgc.report.page.entries import Entry
from amgc.runs import RunRecord
from amgc.runs.observed import Margins, Plane


@dataclass(frozen=True)
class Confusion:
    """Counts of (true, predicted) after the run's last task; classes by number, in order of arrival."""

    run: RunRecord
    counts: dict[tuple[int, int], int]
    totals: tuple[int, ...]  # test images of each class

    @property
    def shares(self) -> dict[tuple[int, int], float]:
        return {cell: count / self.totals[cell[0]] for cell, count in self.counts.items()}

    def pairs(self, most: int) -> list[tuple[str, str, int, float]]:
        """The most frequent mistakes: class, what it was taken for, how often, and the share of the class's images."""
        wrong = [(cell, count) for cell, count in self.counts.items() if cell[0] != cell[1]]
        ranked = sorted(wrong, key=lambda pair: (-pair[1], pair[0]))[:most]
        names = self.run.class_names
        return [(names[i], names[j], count, count / self.totals[i]) for (i, j), count in ranked]

    def rows(self) -> list[tuple[str, float, str, float]]:
        """Of each class: its accuracy, what else it was taken for most often, and how often, as shares."""
        worst: dict[int, tuple[int, int]] = {}  # count and minus the other class, so that the earliest wins a tie
        for (true, predicted), count in self.counts.items():
            if true != predicted:
                worst[true] = max(worst.get(true, (0, 0)), (count, -predicted))
        rows = []
        for true, images in enumerate(self.totals):
            count, other = worst.get(true, (0, 0))
            name = self.run.class_names[-other] if count else ""
            rows.append((self.run.class_names[true], self.counts.get((true, true), 0) / images, name, count / images))
        return rows


def confusion(entry: Entry) -> Confusion | None:
    """Of the first run that kept it."""
    for run, observed in entry.watched:
        counts = {(true, predicted): count for true, predicted, count in observed[-1].confusion}
        return Confusion(run, counts, tuple(run.metrics.total[observed[-1].task]))
    return None


def class_margins(entry: Entry) -> tuple[RunRecord, Margins] | None:
    """Of the first run that has a margin above zero after its last task."""
    for run, observed in entry.watched:
        if (margins := observed[-1].margins) is not None and any(margins.own):
            return run, margins
    return None


def planes(entry: Entry) -> tuple[RunRecord, list[tuple[int, Plane]]] | None:
    """Of the first run that kept them: the task, from 0, and the two classes' features after it."""
    for run, observed in entry.watched:
        kept = [(seen.task, seen.plane) for seen in observed if seen.plane is not None]
        if kept:
            return run, kept
    return None
