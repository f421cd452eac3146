"""Labelled images: int64 labels and a source of uint8 pixels, in memory when they fit a stated budget.

There are three sources of pixels: `InMemory`, one tensor; `Mapped`, rows of a decoded cache on disk; and
`amgc.data.image_files.Files`, image files that are decoded when they are needed. A data set of features has float32 vectors
instead of pixels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc.data.registry import MEMORY
from amgc.text import visible


class Pixels(Protocol):
    """A source of samples; `shape` and `dtype` are those of one sample."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int: ...

    def take(self, rows: Tensor) -> Tensor:
        """Return the samples (n, …) of these rows, in their order; rows (n,) int64."""

    def subset(self, rows: Tensor) -> Pixels:
        """Return a source with these rows only."""


class InMemory:
    """All samples in one tensor (n, …)."""

    def __init__(self, samples: Tensor) -> None:
        self.samples = samples

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.samples.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self.samples.dtype

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, rows: Tensor) -> Tensor:
        return self.samples.index_select(0, rows)

    def subset(self, rows: Tensor) -> InMemory:
        """Return a copy, not a view, so that the other rows are not accessible."""
        return InMemory(self.take(rows))


class Mapped:
    """Rows of an array on disk, read when they are needed."""

    def __init__(self, array: NDArray[np.uint8], rows: Tensor | None = None) -> None:
        self._array = array
        self._rows = torch.arange(len(array)) if rows is None else rows

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: Tensor) -> Tensor:
        chosen = self._rows[rows].numpy()
        order = np.argsort(chosen, kind="stable")  # ascending: faster to read
        result = np.empty((len(chosen), *self.shape), dtype=np.uint8)
        result[order] = self._array[chosen[order]]
        return torch.from_numpy(result)

    def subset(self, rows: Tensor) -> Mapped:
        return Mapped(self._array, self._rows[rows])


def in_memory(pixels: Pixels, budget: int = MEMORY, chunk: int = 1024) -> Pixels:
    """Return the samples in one tensor if they need no more than `budget` bytes, else `pixels` unchanged."""
    if isinstance(pixels, InMemory) or size_in_bytes(pixels) > budget:
        return pixels
    samples = torch.empty((len(pixels), *pixels.shape), dtype=pixels.dtype)
    for start in range(0, len(pixels), chunk):  # in chunks, so that no second copy of everything exists
        rows = torch.arange(start, min(start + chunk, len(pixels)))
        samples[start : start + len(rows)] = pixels.take(rows)
    return InMemory(samples)


def size_in_bytes(pixels: Pixels) -> int:
    return len(pixels) * int(np.prod(pixels.shape)) * pixels.dtype.itemsize


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Labels (n,) int64 and the samples that they belong to: uint8 pixels (n, c, h, w), or float32 features (n, d).

    >>> images = Images.of(np.zeros((3, 1, 8, 8), np.uint8), [0, 1, 1])
    >>> len(images), images.shape, images.take([2, 0]).shape
    (3, (1, 8, 8), torch.Size([2, 1, 8, 8]))
    """

    labels: Tensor
    pixels: Pixels

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            raise ValueError(f"labels must be int64 of shape (n,), not {self.labels.dtype} {tuple(self.labels.shape)}.")
        if len(self.labels) != len(self.pixels):
            raise ValueError(f"{len(self.labels)} labels for {len(self.pixels)} images; every image needs one label.")

    @classmethod
    def of(cls, samples: Any, labels: Any) -> Images:
        """Return images from arrays or tensors. Their memory is shared where possible."""
        return cls(torch.as_tensor(labels).to(torch.int64), InMemory(torch.as_tensor(samples)))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Images({len(self)} of shape {self.shape}, {type(self.pixels).__name__})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (c, h, w), or (d,) for features."""
        return self.pixels.shape

    def take(self, indices: Any) -> Tensor:
        """Return the samples with these indices, (n, c, h, w), in their order and with repetitions."""
        return self.pixels.take(checked(indices, len(self)))

    def batches(self, batches: Iterable[Any], ahead: int = 2) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (samples, labels) of each batch of indices.

        What is not in memory is read or decoded by a thread, at most `ahead` batches in advance. Memory stays bounded
        however slow the consumer is, and an error is raised at the batch that it belongs to.
        """
        if isinstance(self.pixels, InMemory):
            for indices in batches:
                rows = checked(indices, len(self))
                yield self.pixels.take(rows), self.labels[rows]
            return
        waiting: deque[tuple[Future[Tensor], Tensor]] = deque()
        pool = ThreadPoolExecutor(1, thread_name_prefix="amgc-prefetch")
        try:
            for indices in batches:
                rows = checked(indices, len(self))
                waiting.append((pool.submit(self.pixels.take, rows), rows))
                if len(waiting) > ahead:
                    future, rows = waiting.popleft()
                    yield future.result(), self.labels[rows]
            while waiting:
                future, rows = waiting.popleft()
                yield future.result(), self.labels[rows]
        finally:  # also when the consumer stops early
            pool.shutdown(wait=True, cancel_futures=True)

    def subset(self, indices: Any, labels: Tensor | None = None, budget: int = MEMORY) -> Images:
        """Return the samples with these indices only, in memory if they fit `budget`. `labels` replaces their labels."""
        rows = checked(indices, len(self))
        pixels = self.pixels
        if len(rows) != len(self) or not torch.equal(rows, torch.arange(len(self))):
            pixels = pixels.subset(rows)
        return Images(self.labels[rows] if labels is None else labels, in_memory(pixels, budget))


def checked(indices: Any, count: int) -> Tensor:
    """Return indices of `count` images as int64 (n,); raise an error if some are not."""
    rows = torch.as_tensor(indices)
    if rows.ndim != 1 or (len(rows) and (rows.dtype == torch.bool or rows.is_floating_point())):
        raise ValueError(f"indices must be whole numbers of shape (n,), not {rows.dtype} {tuple(rows.shape)}.")
    rows = rows.to(torch.int64)
    wrong = rows[(rows < 0) | (rows >= count)]
    if len(wrong):
        raise IndexError(f"index {int(wrong[0])} is outside of the {count} images; indices are 0 to {count - 1}.")
    return rows


class Augmentation(TypedDict, total=False):
    """How training images are augmented: fields of `amgc.data.Augment` that differ from their defaults."""

    size: int
    padding: int
    flip: bool
    brightness: float
    resized: bool


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test images of the same classes; label k is the class `class_names[k]`.

    mean, std : per channel, of pixel values scaled to [0, 1]; what `Augment` normalises with. Empty for features.
    skipped : unreadable image files that were left out (`on_corrupt="skip"`).
    memory : bytes; a task that needs no more may be kept in memory.
    augmentation : how `Augment.of` changes training images; None for its general rule.
    """

    train: Images
    test: Images
    class_names: tuple[str, ...]
    name: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    skipped: tuple[str, ...] = ()
    memory: int = MEMORY
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        for split, images in (("train", self.train), ("test", self.test)):
            if not len(images):
                raise ValueError(f"{self.name}: there are no {split} images at all; both splits need some of each class.")
            count = torch.bincount(images.labels, minlength=len(self.class_names))
            if len(count) != len(self.class_names):
                raise ValueError(f"{self.name}: {split} labels go up to {len(count) - 1} for {len(self.class_names)} classes.")
            if not bool((count > 0).all()):
                empty = self.class_names[int((count == 0).nonzero()[0])]
                raise ValueError(f"{self.name}: class {empty!r} has no {split} images; add some or leave the class out.")
        if self.train.shape != self.test.shape:
            raise ValueError(f"{self.name}: training images are {self.train.shape}, test images {self.test.shape}.")
        for name in self.class_names:
            if not visible(name):
                raise ValueError(f"{self.name}: the class name {name!a} is empty or cannot be seen; rename it.")
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError(f"{self.name}: two classes have the same name; results by name would be ambiguous.")

    @property
    def is_features(self) -> bool:
        """Whether the samples are feature vectors (d,) and not images."""
        return len(self.train.shape) == 1

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self.class_names)} classes, {len(self.train)} training and "
            f"{len(self.test)} test samples of shape {self.train.shape})"
        )
