"""Reading `observed/task-N.json` of a run: who was taken for whom, the margins, and two classes' features in a plane."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from amgc.report.runs import RunError, RunRecord

FOLDER = "observed"
VERSION = 1  # of task-N.json
AGAIN = "restore the file from a copy, or run again"

Point: TypeAlias = tuple[float, float]
Matrix: TypeAlias = tuple[Point, Point]


@dataclass(frozen=True)
class Margins:
    """What the loss demands beyond being right: of old classes, which the method enlarges; 0 for new ones.

    own : m_k of each seen class, Eq. (margin): taken off its own score. In the gauge in which the head's rows sum to zero.
    pairs : row k, column j: by how much class k must beat class j, m_k + β_jk, whatever the gauge; None for many classes.
    """

    own: tuple[float, ...]
    pairs: tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True)
class Gaussian:
    """A class as the method remembers it, in the plane; `enlarged` is the covariance that an old class is given instead."""

    mean: Point
    covariance: Matrix
    enlarged: Matrix | None


@dataclass(frozen=True)
class Plane:
    """Test features of two classes in a plane that stays the same over the tasks: the paper's Figure 1.

    Both in the features' units, the origin midway between the two means when the plane was laid: x along their difference,
    y along the largest spread across it. `points` are the same images' after every task.
    """

    classes: tuple[int, int]  # in order of arrival
    points: tuple[tuple[Point, ...], tuple[Point, ...]]
    gaussians: tuple[Gaussian | None, Gaussian | None]


@dataclass(frozen=True)
class Observed:
    """What was seen after a task. Classes are numbers in order of arrival."""

    task: int  # from 0
    confusion: tuple[tuple[int, int, int], ...]  # (class, predicted as, test images), where there are any
    margins: Margins | None
    plane: Plane | None


def load_observed(run: RunRecord) -> list[Observed]:
    """One for each finished task that has its file: a run of an older amgc, or its first tasks, have none."""
    files = [(task, run.path / FOLDER / f"task-{task + 1}.json") for task in range(run.done)]
    return [_load(run, task, file) for task, file in files if file.exists()]


def _load(run: RunRecord, task: int, file: Path) -> Observed:
    try:
        about = json.loads(file.read_bytes().decode())
    except ValueError as error:
        raise RunError(f"{str(file)!r} is damaged ({error}); {AGAIN}.") from error
    if not isinstance(about, dict) or not isinstance(about.get("version"), int):
        raise RunError(f"{str(file)!r} was not written by amgc: it has no version number.")
    if about["version"] > VERSION:
        raise RunError(f"{str(file)!r} has version {about['version']}; this amgc reads up to {VERSION}: install a newer one.")
    try:
        if about["task"] != task:
            raise ValueError(f"it is of task {about['task']}, not of {task} (counted from 0)")
        seen = run.metrics.seen[task]
        observed = Observed(
            task, _confusion(about["confusion"]), _margins(about["margins"], seen), _plane(about["plane"], seen)
        )
        _agree(observed, run.metrics.correct[task], run.metrics.total[task])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(f"the contents of {str(file)!r} do not fit together: {reason}; {AGAIN}.") from error
    return observed


def _agree(observed: Observed, correct: Any, total: Any) -> None:
    """The matrix says of every class what metrics.jsonl says."""
    right, images = [0] * len(total), [0] * len(total)
    for true, predicted, count in observed.confusion:
        if not (0 <= true < len(total) and 0 <= predicted < len(total) and count > 0):
            raise ValueError(f"a cell of the confusion is {[true, predicted, count]}, with {len(total)} seen classes")
        right[true] += count * (true == predicted)
        images[true] += count
    if (tuple(right), tuple(images)) != (tuple(correct), tuple(total)):
        raise ValueError("its confusion does not sum to what metrics.jsonl has")


def _confusion(cells: Any) -> tuple[tuple[int, int, int], ...]:
    for cell in cells:
        if len(cell) != 3 or not all(type(value) is int for value in cell):
            raise ValueError(f"a cell of the confusion is {cell!r}, not three whole numbers")
    return tuple((true, predicted, count) for true, predicted, count in cells)


def _margins(given: Any, seen: int) -> Margins | None:
    if given is None:
        return None
    pairs = given["pairs"]
    if pairs is not None:
        pairs = tuple(_numbers(row, seen, "margins") for row in _whole(pairs, seen, "rows of margins"))
    return Margins(_numbers(given["own"], seen, "margins"), pairs)


def _plane(given: Any, seen: int) -> Plane | None:
    if given is None:
        return None
    one, two = given["classes"]
    if not (type(one) is int and type(two) is int and one != two and 0 <= min(one, two) <= max(one, two) < seen):
        raise ValueError(f"the plane's classes are {given['classes']!r}, with {seen} seen classes")
    first, second = (tuple(_point(point) for point in points) for points in _whole(given["points"], 2, "lists of points"))
    mine, other = (_gaussian(gaussian) for gaussian in _whole(given["gaussians"], 2, "Gaussians"))
    return Plane((one, two), (first, second), (mine, other))


def _gaussian(given: Any) -> Gaussian | None:
    if given is None:
        return None
    enlarged = given["enlarged"]
    return Gaussian(_point(given["mean"]), _matrix(given["covariance"]), None if enlarged is None else _matrix(enlarged))


def _matrix(given: Any) -> Matrix:
    first, second = (_point(row) for row in _whole(given, 2, "rows of a covariance"))
    return first, second


def _point(given: Any) -> Point:
    x, y = _numbers(given, 2, "coordinates")
    return x, y


def _numbers(given: Any, count: int, what: str) -> tuple[float, ...]:
    values = _whole(given, count, what)
    if wrong := [value for value in values if type(value) not in (int, float) or not isfinite(value)]:
        raise ValueError(f"{wrong[0]!r} stands among the {what}")
    return tuple(float(value) for value in values)


def _whole(given: Any, count: int, what: str) -> list[Any]:
    if not isinstance(given, list) or len(given) != count:
        raise ValueError(f"there must be {count} {what}, not {len(given) if isinstance(given, list) else repr(given)}")
    return given
