"""How well an image fits a class at all: the share of the class's own images that lie farther from it.

Distances are squared Mahalanobis distances by the class's own mean and covariance, in `RANK` random directions that are the
same for every model: few enough that a class's images determine its covariance, and fixed, so that the distances to a class do
not change when others are learned or forgotten.

Where a class's other images lie is known from its training images: each is taken out of mean and covariance, for which no other
image is needed (`left_out`), and its distance is measured. Of these distances' logarithms number, mean and squares are kept,
per class, which add up over lessons and sites; a new image's is then Student's t, but for `TAIL`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr
from torch import Tensor

from amgc.core.statistics import ClassStatistics

RANK = 64
PRIOR = 16.0  # samples' worth of uncorrelated features in each class's own covariance
FEW = 3  # images of a class before a distance counts, and distances before anything is rejected
ROWS = 2000  # of a class whose distances are looked at, in a lesson
# Real images' distances have a longer tail than Student's: deviations are taken this much larger. On digits, their patches and
# CIFAR-100, classes of 3 to 250 images then reject 0 to 1.1 % of their held-out images at 0.01, and 0.5 to 5.4 % at 0.05.
TAIL = 1.15


@dataclass(frozen=True)
class Distances:
    """Logarithms of distances, of images that were left out: how many, their mean, and the sum of squares about it."""

    images: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, distances: NDArray[np.float64]) -> Distances:
        if not len(distances):
            return cls()
        logs = np.log(np.maximum(distances, 1e-300))
        return cls(len(logs), float(logs.mean()), float(np.square(logs - logs.mean()).sum()))

    def with_more(self, other: Distances) -> Distances:
        total = self.images + other.images
        if not total:
            return self
        step = other.mean - self.mean
        moved = self.images * other.images / total * step**2
        return Distances(total, self.mean + step * other.images / total, self.squares + other.squares + moved)

    def farther(self, distances: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of a class's images at more than these distances; 1 where too little is known of them."""
        if self.images < FEW:
            return np.ones_like(distances)
        freedom = self.images - 1
        deviation = TAIL * math.sqrt(max(self.squares / freedom, 1e-12) * (1 + 1 / self.images))
        shares: NDArray[np.float64] = stdtr(freedom, (self.mean - np.log(np.maximum(distances, 1e-300))) / deviation)
        return shares


@dataclass(frozen=True)
class Fits:
    """Mean, covariance and distances per class. Never changed: `learned`, `merged` and `without` give another."""

    dim: int
    statistics: ClassStatistics
    distances: dict[str, Distances] = field(default_factory=dict)

    @classmethod
    def empty(cls, dim: int) -> Fits:
        return cls(dim, blank(dim))

    def learned(self, more: ClassStatistics, rows: Mapping[str, Tensor]) -> Fits:
        """With the classes of `more`, of whose projected images `rows` are a random part.

        Of a class that was known the earlier images' distances stay as they were found then: those to mean and covariance as
        they are now could not be had without the images.
        """
        statistics = _both(self.statistics, more)
        fresh = {label: Distances.of(left_out(own, statistics, label)) for label, own in rows.items()}
        return Fits(self.dim, statistics, self._with(fresh))

    def merged(self, other: Fits) -> Fits:
        """With what another model knows."""
        return Fits(self.dim, _both(self.statistics, other.statistics), self._with(other.distances))

    def _with(self, more: Mapping[str, Distances]) -> dict[str, Distances]:
        return self.distances | {label: self.distances.get(label, Distances()).with_more(own) for label, own in more.items()}

    def without(self, label: str) -> Fits:
        statistics = _both(self.statistics, blank(self.dim)).remove(label)
        return Fits(self.dim, statistics, {name: kept for name, kept in self.distances.items() if name != label})

    def of(self, features: Tensor, labels: list[str]) -> NDArray[np.float64]:
        """The fit (n,) of features (n, d) to the class named for each: 1 is as near as its images can be, 0 is far off."""
        rows, result = project(features), np.ones(len(features))
        for label in set(labels):
            chosen = [number for number, name in enumerate(labels) if name == label]
            result[chosen] = self.distances[label].farther(_distance(rows[chosen], self.statistics, label))
        return result

    def header(self) -> dict[str, Any]:
        return {"dim": self.dim, "statistics": self.statistics.header()}

    def tensors(self) -> dict[str, Tensor]:
        rows = [astuple(self.distances[str(label)]) for label in self.statistics.classes]
        return {"distances": torch.tensor(rows, dtype=torch.float64).view(-1, 3)} | self.statistics.tensors()

    @classmethod
    def from_file(cls, header: dict[str, Any], tensors: dict[str, Tensor]) -> Fits:
        statistics, found = ClassStatistics.from_file(header["statistics"], tensors), tensors["distances"]
        if found.shape != (len(statistics), 3) or statistics.dim != rank(header["dim"]) or not bool(found.isfinite().all()):
            raise ValueError(f"distances of shape {tuple(found.shape)} for {len(statistics)} classes, or not finite")
        kept = [Distances(int(images), mean, squares) for images, mean, squares in found.tolist()]
        return cls(header["dim"], statistics, dict(zip(map(str, statistics.classes), kept, strict=True)))


def rank(dim: int) -> int:
    return min(dim, RANK)


def blank(dim: int) -> ClassStatistics:
    """No class yet, in the directions that `project` has."""
    return ClassStatistics(rank(dim), dtype=torch.float64)


def project(features: Tensor) -> Tensor:
    """Features (n, d) in the few directions, (n, rank), float64: by random signs, which are the same everywhere.

    They come from PCG64's raw bits, which numpy promises never to change.
    """
    return features.double() if features.shape[1] <= RANK else features.double() @ _directions(features.shape[1])


@lru_cache(maxsize=4)
def _directions(dim: int) -> Tensor:
    words = np.random.PCG64(0).random_raw(dim * RANK // 64 + 1)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[: dim * RANK].reshape(dim, RANK)
    signs: Tensor = torch.from_numpy(bits).double() * 2 - 1
    return signs / math.sqrt(dim)


def left_out(rows: Tensor, statistics: ClassStatistics, label: str) -> NDArray[np.float64]:
    """Squared distances of a class's own images, as if each had not been among those that mean and covariance come from.

    Without x, one of n images, the mean is c = n / (n - 1) times as far from x, and the sum of squares is smaller by
    c (x - μ)(x - μ)ᵀ: no other image is needed for it.
    """
    mean, scatter, count = _sums(statistics, label)
    if count < FEW:
        return np.empty(0)
    c, found = count / (count - 1), []
    for away in torch.split(rows - mean, 256):  # a matrix each
        without = scatter - c * away[:, :, None] * away[:, None, :]
        white = torch.linalg.solve_triangular(_root(without, count - 1), c * away[:, :, None], upper=False)
        found.append(white.square().sum((1, 2)).numpy())
    distances: NDArray[np.float64] = np.concatenate(found)
    return distances


def _distance(rows: Tensor, statistics: ClassStatistics, label: str) -> NDArray[np.float64]:
    """Squared Mahalanobis distances (n,) of projected rows to a class."""
    mean, scatter, count = _sums(statistics, label)
    white = torch.linalg.solve_triangular(_root(scatter, count), (rows - mean).T, upper=False)
    squares: NDArray[np.float64] = white.square().sum(0).numpy()
    return squares


def _sums(statistics: ClassStatistics, label: str) -> tuple[Tensor, Tensor, int]:
    """Mean, sum of squares about it and number of a class's images."""
    index = statistics.index(label)
    count = int(statistics.count[index])
    return statistics.mean[index], (count - 1) * statistics.covariances.full[index].double(), count  # type: ignore[index]


def _root(scatter: Tensor, count: int) -> Tensor:
    """The Cholesky factor of the covariance (…, r, r) of `count` images with these sums of squares, drawn to uncorrelated
    features by `PRIOR` images' worth: no direction in which a class did not vary is forbidden.
    """
    variances = scatter.diagonal(dim1=-2, dim2=-1).clamp_min(0) / max(count - 1, 1)
    level = variances.mean(-1, keepdim=True)
    regular = scatter.clone()
    regular.diagonal(dim1=-2, dim2=-1).add_(PRIOR * (variances + torch.where(level > 0, level, 1.0)) / 2)
    root: Tensor = torch.linalg.cholesky(regular / (count - 1 + PRIOR))
    return root


def _both(one: ClassStatistics, two: ClassStatistics) -> ClassStatistics:
    """A third that has what both have."""
    return ClassStatistics(one.dim, dtype=torch.float64).merge(one).merge(two)
