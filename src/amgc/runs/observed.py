"""What the engine observes after each task, for the report: `observed/task-N.json`.

{"version": 1, "task": index from 0,
 "confusion": [[true, predicted, count], …],          cells that are not 0; classes in order of arrival
 "margins": null | {"own": [m_k, …], "pairs": [[…], …] | null},
 "plane": null | {"classes": [a, b], "points": [[[x, y], …], [[x, y], …]], "gaussians": [g, g]}}
                 g: null | {"mean": [x, y], "covariance": 2 × 2, "enlarged": 2 × 2 | null}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from amgc.files import write_text
from amgc.options import decode
from amgc.runs.folder import AGAIN, VERSION, RunError, RunFolder, read_object
from amgc.runs.record import RunRecord

Point: TypeAlias = tuple[float, float]
Matrix: TypeAlias = tuple[Point, Point]


@dataclass(frozen=True)
class Margins:
    """Margins that the loss demands: for old classes, whose covariance the method enlarges; 0 for new ones.

    own : m_k of each seen class, Eq. (margin), which is subtracted from its own score. The head's rows are shifted so that
        they sum to zero.
    pairs : in row k and column j, m_k + β_jk: by how much class k must beat class j. It does not depend on that shift. None
        for many classes.
    """

    own: tuple[float, ...]
    pairs: tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True)
class Gaussian:
    """The stored Gaussian of a class in the plane; `enlarged` is the covariance that replaces that of an old class."""

    mean: Point
    covariance: Matrix
    enlarged: Matrix | None


@dataclass(frozen=True)
class Plane:
    """Test features of two classes in a plane that stays the same over the tasks: the paper's Figure 1.

    The axes have the features' units. The origin is midway between the two means when the plane was chosen, x points along
    their difference, y along the largest variance orthogonal to it. `points` shows the same images after every task.
    """

    classes: tuple[int, int]  # in order of arrival
    points: tuple[tuple[Point, ...], tuple[Point, ...]]
    gaussians: tuple[Gaussian | None, Gaussian | None]


@dataclass(frozen=True)
class Observed:
    """What was observed after a task. Classes are numbered in order of arrival."""

    task: int  # from 0
    confusion: tuple[tuple[int, int, int], ...]  # (true class, predicted class, test images), none of them 0
    margins: Margins | None
    plane: Plane | None


def write_observed(folder: RunFolder, observed: Observed) -> None:
    """Write what was observed after a task."""
    write_text(folder.observed(observed.task), json.dumps({"version": VERSION} | asdict(observed), allow_nan=False))


def load_observed(run: RunRecord) -> list[Observed]:
    """Return what was observed after each finished task. Runs of older versions have no such files, or not for all tasks."""
    folder = RunFolder(run.path)
    return [_load(run, task, folder.observed(task)) for task in range(run.done) if folder.observed(task).exists()]


def _load(run: RunRecord, task: int, file: Path) -> Observed:
    content = read_object(file, finite=True)
    try:
        observed: Observed = decode(Observed, content)
        if observed.task != task:
            raise ValueError(f"it is of task {observed.task}, not of {task} (counted from 0).")
        _check_confusion(observed, run.metrics.correct[task], run.metrics.total[task])
        _check_margins(observed.margins, run.metrics.seen[task])
        _check_plane(observed.plane, run.metrics.seen[task])
    except ValueError as error:
        raise RunError(f"the contents of {str(file)!r} do not fit together: {error} Please {AGAIN}.") from error
    return observed


def _check_confusion(observed: Observed, correct: Any, total: Any) -> None:
    """Check that the confusions agree with metrics.jsonl for every class."""
    right, images = [0] * len(total), [0] * len(total)
    for true, predicted, count in observed.confusion:
        if not (0 <= true < len(total) and 0 <= predicted < len(total) and count > 0):
            raise ValueError(f"a cell of the confusion is {[true, predicted, count]}, with {len(total)} seen classes.")
        right[true] += count * (true == predicted)
        images[true] += count
    if (tuple(right), tuple(images)) != (tuple(correct), tuple(total)):
        raise ValueError("the sums of its confusion are not the numbers of metrics.jsonl.")


def _check_margins(margins: Margins | None, seen: int) -> None:
    if margins is not None:
        for row in (margins.own, *([margins.pairs, *margins.pairs] if margins.pairs is not None else [])):
            if len(row) != seen:
                raise ValueError(f"there must be {seen} margins, not {len(row)}.")


def _check_plane(plane: Plane | None, seen: int) -> None:
    if plane is not None and not (plane.classes[0] != plane.classes[1] and all(0 <= label < seen for label in plane.classes)):
        raise ValueError(f"the plane's classes are {list(plane.classes)}, with {seen} seen classes.")
