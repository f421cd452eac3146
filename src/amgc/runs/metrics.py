"""Metrics of a run, computed from the number of correctly classified test images of each class after each task.

Task boundaries are those of the run. Plain Python without numpy, so that reports start quickly.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

# One-line definitions, shown with every metric.
DEFINITIONS = {
    "Tn": "accuracy after task n on the test images of all classes seen by then",
    "LA": "last accuracy, on the test images of all seen classes after the last task",
    "AIA": "average incremental accuracy, mean of the accuracy after each task, the first included",
    "forgetting": "best earlier accuracy on a task minus that at the end, mean of all tasks but the last",
    "BWT": "backward transfer, end accuracy minus that just after a task, mean of all but the last",
    "first task": "accuracy on the classes of task 1 after the last task",
    "old": "accuracy on the classes of the earlier tasks",
    "new": "accuracy on the classes of the latest task",
    "matrix": "rows: after each task; columns: on the classes of each task, among all seen classes",
    "per class": "accuracy on the test images of one class after the last task",
}


@dataclass(frozen=True)
class Metrics:
    """Accuracies of a run, finished or not, as fractions of images. Undefined metrics are None.

    Parameters
    ----------
    sizes : classes per task, of all tasks of the run.
    correct : a row per finished task: for each class seen so far, in order of arrival, the number of its test images that
        were classified correctly among all seen classes.
    total : rows of the same lengths: the number of test images of each class.

    In a run that is not finished, "last" means the last finished task. `DEFINITIONS` defines each metric.

    >>> metrics = Metrics([2, 1], correct=[[9, 7], [8, 3, 5]], total=[[10, 10], [10, 10, 5]])
    >>> metrics.accuracy, metrics.last_accuracy, metrics.average_incremental_accuracy
    ((0.8, 0.64), 0.64, 0.72)
    >>> metrics.matrix
    ((0.8, nan), (0.55, 1.0))
    >>> metrics.forgetting, metrics.backward_transfer
    (0.25, -0.25)
    """

    sizes: Sequence[int]
    correct: Sequence[Sequence[int]]
    total: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        sizes = tuple(_whole(size, f"size of task {task}") for task, size in enumerate(self.sizes, 1))
        if not sizes or min(sizes) < 1:
            raise ValueError(f"a run has at least one task and a task at least one class; the sizes are {list(sizes)}.")
        if not len(self.correct) == len(self.total) <= len(sizes):
            raise ValueError(
                f"there are {len(self.correct)} rows of correct, {len(self.total)} rows of total and {len(sizes)} tasks; "
                "each finished task has one row of both."
            )
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "correct", tuple(self._row("correct", task, row) for task, row in enumerate(self.correct)))
        object.__setattr__(self, "total", tuple(self._row("total", task, row) for task, row in enumerate(self.total)))
        for task in range(self.done):
            self._check_row(task)

    def _row(self, name: str, task: int, row: Sequence[Any]) -> tuple[int, ...]:
        seen = self.seen[task]
        if len(row) != seen:
            raise ValueError(
                f"{name} after task {task + 1} has {len(row)} numbers, but {seen} classes have been seen by then "
                f"(task sizes {list(self.sizes[: task + 1])}); give one number per seen class."
            )
        return tuple(_whole(value, f"{name} of class {label} after task {task + 1}") for label, value in enumerate(row))

    def _check_row(self, task: int) -> None:
        for label, (correct, total) in enumerate(zip(self.correct[task], self.total[task], strict=True)):
            where = f"class {label} (counted from 0 in order of arrival) after task {task + 1}"
            if total < 1:
                raise ValueError(f"{where} has {total} test images, so it has no accuracy; leave it out or add some.")
            if not 0 <= correct <= total:
                raise ValueError(f"{where} has {correct} of {total} test images right; correct must be from 0 to total.")
            if task and label < self.seen[task - 1] and total != self.total[task - 1][label]:
                raise ValueError(
                    f"{where} has {total} test images, but {self.total[task - 1][label]} after the task before; "
                    "accuracies compare on the same test images only."
                )

    # ---- classes -----------------------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """Number of finished tasks."""
        return len(self.correct)

    @cached_property
    def seen(self) -> tuple[int, ...]:
        """Number of classes seen after each task, for all tasks of the run."""
        return tuple(accumulate(self.sizes))

    def _classes(self, task: int) -> slice:
        return slice(self.seen[task] - self.sizes[task], self.seen[task])

    def _share(self, task: int, classes: slice) -> float:
        """Return the accuracy on the test images of `classes` after `task`."""
        return sum(self.correct[task][classes]) / sum(self.total[task][classes])

    # ---- a number per task -------------------------------------------------------------------------------------------

    @cached_property
    def accuracy(self) -> tuple[float, ...]:
        """Accuracy on all seen classes after each task; every image has the same weight."""
        return tuple(self._share(task, slice(None)) for task in range(self.done))

    @property
    def old_accuracy(self) -> tuple[float | None, ...]:
        """Accuracy on the classes of earlier tasks, after each task; None after the first."""
        return tuple(self._share(t, slice(self.seen[t - 1])) if t else None for t in range(self.done))

    @property
    def new_accuracy(self) -> tuple[float, ...]:
        """Accuracy on the classes of the latest task, after each task."""
        return tuple(self._share(task, self._classes(task)) for task in range(self.done))

    @property
    def first_task_accuracy(self) -> tuple[float, ...]:
        """Accuracy on the classes of task 1, after each task."""
        return tuple(self._share(task, self._classes(0)) for task in range(self.done))

    @cached_property
    def matrix(self) -> tuple[tuple[float, ...], ...]:
        """Accuracy after task i (row) on the classes of task j (column); nan for j > i."""
        return tuple(
            tuple(self._share(row, self._classes(column)) if column <= row else math.nan for column in range(self.done))
            for row in range(self.done)
        )

    @property
    def per_class(self) -> tuple[float, ...]:
        """Accuracy on each seen class, in order of arrival, after the last task."""
        if not self.done:
            return ()
        return tuple(correct / total for correct, total in zip(self.correct[-1], self.total[-1], strict=True))

    # ---- one number per run ------------------------------------------------------------------------------------------

    @property
    def last_accuracy(self) -> float | None:
        """LA; None before the first task is finished."""
        return self.accuracy[-1] if self.done else None

    @property
    def average_incremental_accuracy(self) -> float | None:
        """AIA; None before the first task is finished."""
        return _mean(iter(self.accuracy))

    @property
    def forgetting(self) -> float | None:
        """Chaudhry et al. 2018 ("Riemannian walk"); None before the second task is finished."""
        earlier = range(self.done - 1)
        return _mean(max(row[task] for row in self.matrix[task:-1]) - self.matrix[-1][task] for task in earlier)

    @property
    def backward_transfer(self) -> float | None:
        """Lopez-Paz and Ranzato 2017 ("Gradient episodic memory"); None before the second task is finished."""
        return _mean(self.matrix[-1][task] - self.matrix[task][task] for task in range(self.done - 1))


def _mean(values: Iterator[float]) -> float | None:
    kept = list(values)
    return math.fsum(kept) / len(kept) if kept else None


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"the {name} is {value!r}; it must be a whole number.")
    return operator.index(value)
