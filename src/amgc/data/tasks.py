"""The order of classes, their split into tasks, and the part of a data set that each task may see.

Orders and task sizes are PyCIL's, so that numbers compare: `np.random.seed(seed); np.random.permutation(count)`, labels
are positions in that order, and a remainder makes a shorter last task.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from amgc.data.decode import CorruptImageError
from amgc.data.image_files import Files
from amgc.data.images import Dataset, Images, InMemory

SEED = 1993  # the class order that PyCIL, and everything compared with it, reports


def class_order(count: int, seed: int | None = SEED) -> tuple[int, ...]:
    """Return a permutation of `count` classes by numpy's legacy generator; None keeps the natural order. No global state.

    >>> class_order(100)[:5], class_order(200)[:5], class_order(3, None)
    ((68, 56, 78, 8, 23), (168, 136, 51, 9, 183), (0, 1, 2))
    """
    if count < 1:
        raise ValueError(f"there must be at least one class, not {count}.")
    if seed is None:
        return tuple(range(count))
    return tuple(np.random.RandomState(seed).permutation(count).tolist())


def order_of(names: Sequence[str], class_names: Sequence[str]) -> tuple[int, ...]:
    """Return the order that lists these classes by name. Classes may be left out.

    >>> order_of(["dog", "cat"], ["bird", "cat", "dog"])
    (2, 1)
    """
    index = {name: label for label, name in enumerate(class_names)}
    unknown = [name for name in names if name not in index]
    if unknown:
        known = ", ".join(class_names[:8]) + (", …" if len(class_names) > 8 else "")
        raise ValueError(f"no class is called {unknown[0]!r}; the data set has {known}")
    return tuple(index[name] for name in names)


def split_tasks(
    count: int,
    *,
    tasks: int | None = None,
    first: int | None = None,
    increment: int | None = None,
    sizes: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the classes per task: `tasks` equal ones; `first` classes, then `increment` at a time; or the given `sizes`.

    `tasks` must divide the classes. `first` defaults to `increment`; what is left at the end makes a shorter last task.

    >>> split_tasks(100, tasks=4), split_tasks(100, first=50, increment=20), split_tasks(10, sizes=[7, 3])
    ((25, 25, 25, 25), (50, 20, 20, 10), (7, 3))
    """
    ways = [tasks is not None, first is not None or increment is not None, sizes is not None]
    if sum(ways) != 1:
        raise ValueError(
            "specify the split of the classes in exactly one way: tasks=, or first= and increment=, or sizes= (amgc run: "
            "--tasks, or --first-classes and --increment, or --sizes)."
        )
    if count < 1:
        raise ValueError(f"there must be at least one class, not {count}.")
    if tasks is not None:
        return _equal(count, tasks)
    if sizes is not None:
        if any(size < 1 for size in sizes):
            raise ValueError(f"every task needs at least one class; sizes are {list(sizes)}.")
        if sum(sizes) != count:
            raise ValueError(f"the task sizes {list(sizes)} sum to {sum(sizes)}, but there are {count} classes.")
        return tuple(sizes)
    if increment is None:
        if first != count:
            raise ValueError(
                f"{first} classes in task 1 leave {count - (first or 0)} of {count}: say how many come in each later task, "
                "with increment= (amgc run: --increment)."
            )
        return (count,)
    if first is None:
        first = min(increment, count)
    if first < 1 or increment < 1:
        raise ValueError(f"first and increment (--first-classes, --increment) must be at least 1, not {first} and {increment}.")
    if first > count:
        raise ValueError(f"task 1 cannot have {first} classes (first=, --first-classes): there are only {count}.")
    whole, rest = divmod(count - first, increment)
    return (first, *[increment] * whole, *([rest] if rest else []))


def _equal(count: int, tasks: int) -> tuple[int, ...]:
    if tasks < 1:
        raise ValueError(f"there must be at least one task, not {tasks}.")
    if tasks > count:
        raise ValueError(
            f"{tasks} tasks need at least {tasks} classes, and there are {count}; choose {count} or fewer, "
            "with tasks= (amgc run: --tasks)."
        )
    if count % tasks:
        fewer = next(t for t in range(tasks, 0, -1) if count % t == 0)
        more = next(t for t in range(tasks, count + 1) if count % t == 0)
        step = -(-count // tasks)
        raise ValueError(
            f"{count} classes do not divide into {tasks} equal tasks; into {fewer} and into {more} they do, "
            f"with tasks= (amgc run: --tasks), or take increment={step} (--increment {step}), which makes "
            f"{-(-count // step)} tasks with a shorter last one."
        )
    return (count // tasks,) * tasks


class TaskStream:
    """A data set, task after task. Labels are positions in the class order, so task t has the next `sizes[t]` numbers.

    `train(t)`, `train_seen(t)` and `test(t)` return the images of those classes only: a copy, a list of those files, or, for a
    cache on disk that does not fit into memory, row numbers. Future classes cannot be reached through them.

    Parameters
    ----------
    dataset : where images and names come from.
    order : the classes to learn, as labels of the data set; it may leave classes out.
    sizes : classes per task; they sum to the length of the order.
    """

    def __init__(self, dataset: Dataset, order: Sequence[int], sizes: Sequence[int]) -> None:
        order = tuple(int(label) for label in order)
        known = len(dataset.class_names)
        wrong = [label for label in order if not 0 <= label < known]
        if wrong:
            raise ValueError(f"the class order names class {wrong[0]}, but {dataset.name} has classes 0 to {known - 1}.")
        if len(set(order)) != len(order):
            twice = next(label for place, label in enumerate(order) if label in order[:place])
            raise ValueError(f"the class order names class {twice} twice.")
        self.order = order
        self.sizes = split_tasks(len(order), sizes=sizes)
        self.class_names = tuple(dataset.class_names[label] for label in order)
        self._dataset = dataset
        self._ends = np.cumsum(self.sizes).tolist()
        # position[label] is the label's place in the order, or -1: one lookup for all samples
        self._position = torch.full((known,), -1, dtype=torch.int64)
        self._position[torch.tensor(order)] = torch.arange(len(order))
        # how many training, and how many test images each class has, in the order of arrival
        splits = (torch.bincount(images.labels, minlength=known).tolist() for images in (dataset.train, dataset.test))
        self.class_counts: tuple[list[int], ...] = tuple([counts[label] for label in order] for counts in splits)

    def __len__(self) -> int:
        return len(self.sizes)

    def classes(self, task: int) -> range:
        """Return the labels that are new in this task."""
        self._check(task)
        return range(self._ends[task] - self.sizes[task], self._ends[task])

    def seen(self, task: int) -> int:
        """Return how many classes have been seen after this task."""
        self._check(task)
        return int(self._ends[task])

    def train(self, task: int) -> Images:
        """Return the training images of the task's new classes."""
        return self._dataset.train.subset(*self._rows(self._dataset.train.labels, self.classes(task)))

    def train_seen(self, task: int) -> Images:
        """Return the training images of all classes seen so far. Only the upper bound `joint` trains on them again.

        An exemplar-free method must not call this.
        """
        return self._dataset.train.subset(*self._rows(self._dataset.train.labels, range(self.seen(task))))

    def test(self, task: int) -> Images:
        """Return the test images of all classes seen so far."""
        return self._dataset.test.subset(*self._rows(self._dataset.test.labels, range(self.seen(task))))

    def test_new(self, task: int) -> Images:
        """Return the test images of the task's new classes."""
        return self._dataset.test.subset(*self._rows(self._dataset.test.labels, self.classes(task)))

    def counts(self, task: int) -> tuple[int, int]:
        """Return how many training and test images the task's new classes have. No image is read."""
        new = self.classes(task)
        train, test = (sum(counts[new.start : new.stop]) for counts in self.class_counts)
        return train, test

    def sample(self, classes: range, count: int) -> Images:
        """Return `count` training images of these classes, as many of each as possible. No others are read.

        Unreadable files are left out. If there are fewer images, they are repeated.
        """
        images = self._dataset.train
        labels = self._position[images.labels]
        rows = torch.cat([(labels == label).nonzero().squeeze(1)[:count] for label in classes])
        rank = torch.cat([torch.arange(min(count, self.class_counts[0][label])) for label in classes])
        rows = rows[rank.argsort(stable=True)][:count]  # the first image of each class, then the second, …
        if isinstance(images.pixels, Files):
            found = images.pixels.each(rows.tolist())
            readable = torch.tensor([not isinstance(pixels, CorruptImageError) for pixels in found])
            rows = rows[readable] if bool(readable.any()) else rows  # if none is readable, `subset` says why
        rows = rows[torch.arange(count) % len(rows)]
        return images.subset(rows, labels[rows], self._dataset.memory)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample. No image is read."""
        return self._dataset.train.shape

    def bytes_to_read(self) -> int:
        """Return the bytes of samples that will be read into memory: all, if they fit, and a copy of the largest task."""
        sample = int(np.prod(self.shape)) * self._dataset.train.pixels.dtype.itemsize
        whole = sample * (len(self._dataset.train) + len(self._dataset.test))
        task = sample * max(self.counts(task)[0] for task in range(len(self)))
        there = isinstance(self._dataset.train.pixels, InMemory)
        return sum(size for size in (0 if there else whole, task) if size <= self._dataset.memory)

    def _rows(self, labels: Tensor, classes: range) -> tuple[Tensor, Tensor, int]:
        """Return the rows of these classes' images, their labels, and the bytes of images that may be kept in memory.

        labels : those of the data set, of all images.
        """
        labels = self._position[labels]
        rows = ((labels >= classes.start) & (labels < classes.stop)).nonzero().squeeze(1)
        return rows, labels[rows], self._dataset.memory

    def _check(self, task: int) -> None:
        if not 0 <= task < len(self):
            raise IndexError(f"there is no task {task}; tasks are 0 to {len(self) - 1}.")
