"""Novelty detection: the fit of an image to a class, that is, the share of the class's own images that are farther from it.

The distance is the squared Mahalanobis distance with the class's own mean and covariance, in `RANK` random directions that are
the same for every model. Few directions let the images of one class determine its covariance; fixed ones keep the distances to
a class unchanged when other classes are learned or forgotten.

The distances of unseen images of a class are estimated by leave-one-out on its training images (`leave_one_out`). Count, mean
and sum of squares of their logarithms are stored per class; they add up over calls of `learn` and over merged models. A new
image's log-distance is compared with Student's t distribution, widened by `TAIL`.
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
PRIOR = 16.0  # weight, in images, of a diagonal covariance towards which each class's covariance is shrunk
FEW = 3  # minimum number of images before a distance is used, and of distances before an image can be rejected
ROWS = 2000  # maximum number of images per class and call of `learn` whose leave-one-out distances are computed
# Distances of real images have longer tails than Student's distribution, so the standard deviation is multiplied by this. On
# digits, their patches and CIFAR-100, classes of 3 to 250 images then reject 0 to 1.1 % of their held-out images at 0.01, and
# 0.5 to 5.4 % at 0.05.
TAIL = 1.15


@dataclass(frozen=True)
class Distances:
    """Logarithms of leave-one-out distances: their number, mean, and sum of squared deviations from the mean."""

    images: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, distances: NDArray[np.float64]) -> Distances:
        if not len(distances):
            return cls()
        logs = np.log(np.maximum(distances, 1e-300))
        return cls(len(logs), float(logs.mean()), float(np.square(logs - logs.mean()).sum()))

    def merge(self, other: Distances) -> Distances:
        """Return the statistics of both sets of distances."""
        total = self.images + other.images
        if not total:
            return self
        step = other.mean - self.mean
        moved = self.images * other.images / total * step**2
        return Distances(total, self.mean + step * other.images / total, self.squares + other.squares + moved)

    def farther(self, distances: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of the class's images that are farther away; 1 if the class has too few distances."""
        if self.images < FEW:
            return np.ones_like(distances)
        freedom = self.images - 1
        deviation = TAIL * math.sqrt(max(self.squares / freedom, 1e-12) * (1 + 1 / self.images))
        shares: NDArray[np.float64] = stdtr(freedom, (self.mean - np.log(np.maximum(distances, 1e-300))) / deviation)
        return shares


@dataclass(frozen=True)
class Fits:
    """Mean, covariance and distances of each class. Immutable: `learned`, `merged` and `without` return a new object."""

    dim: int
    statistics: ClassStatistics
    distances: dict[str, Distances] = field(default_factory=dict)

    @classmethod
    def empty(cls, dim: int) -> Fits:
        return cls(dim, empty_statistics(dim))

    def learned(self, more: ClassStatistics, rows: Mapping[str, Tensor]) -> Fits:
        """Add the projected images with the statistics `more`; `rows` is a random sample of them.

        Distances of a known class's earlier images are not updated to its new mean and covariance: the images are gone.
        """
        statistics = _sum(self.statistics, more)
        fresh = {label: Distances.of(leave_one_out(own, statistics, label)) for label, own in rows.items()}
        return Fits(self.dim, statistics, self._with(fresh))

    def merged(self, other: Fits) -> Fits:
        """Add the classes of another model."""
        return Fits(self.dim, _sum(self.statistics, other.statistics), self._with(other.distances))

    def _with(self, more: Mapping[str, Distances]) -> dict[str, Distances]:
        return self.distances | {label: self.distances.get(label, Distances()).merge(own) for label, own in more.items()}

    def without(self, label: str) -> Fits:
        """Remove a class."""
        statistics = _sum(self.statistics, empty_statistics(self.dim)).remove(label)
        return Fits(self.dim, statistics, {name: kept for name, kept in self.distances.items() if name != label})

    def of(self, features: Tensor, labels: list[str]) -> NDArray[np.float64]:
        """Return the fit (n,) of each row of features (n, d) to its class in `labels`, from 0 (far away) to 1 (at the mean)."""
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
        fitting = found.shape == (len(statistics), 3) and statistics.dim == min(header["dim"], RANK)
        if not fitting or not bool(found.isfinite().all()):
            raise ValueError(f"distances of shape {tuple(found.shape)} for {len(statistics)} classes, or not finite")
        kept = [Distances(int(images), mean, squares) for images, mean, squares in found.tolist()]
        return cls(header["dim"], statistics, dict(zip(map(str, statistics.classes), kept, strict=True)))


def empty_statistics(dim: int) -> ClassStatistics:
    """Return statistics without classes for features of `dim` dimensions after `project`."""
    return ClassStatistics(min(dim, RANK), dtype=torch.float64)


def project(features: Tensor) -> Tensor:
    """Project features (n, d) to at most `RANK` dimensions, in float64, by a matrix of random signs.

    The signs are raw bits of PCG64, which numpy guarantees never to change, so that every model uses the same ones.
    """
    return features.double() if features.shape[1] <= RANK else features.double() @ _directions(features.shape[1])


@lru_cache(maxsize=4)
def _directions(dim: int) -> Tensor:
    words = np.random.PCG64(0).random_raw(dim * RANK // 64 + 1)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[: dim * RANK].reshape(dim, RANK)
    signs: Tensor = torch.from_numpy(bits).double() * 2 - 1
    return signs / math.sqrt(dim)


def leave_one_out(rows: Tensor, statistics: ClassStatistics, label: str) -> NDArray[np.float64]:
    """Return the squared distance of each row to its class, with mean and covariance of the other images of the class.

    Without x, one of n images, the mean is c = n / (n - 1) times as far from x, and the scatter matrix is smaller by
    c (x - μ)(x - μ)ᵀ. The other images are not needed.
    """
    mean, scatter, count = _sums(statistics, label)
    if count < FEW:
        return np.empty(0)
    c, found = count / (count - 1), []
    for away in torch.split(rows - mean, 256):  # each row needs a matrix
        without = scatter - c * away[:, :, None] * away[:, None, :]
        white = torch.linalg.solve_triangular(_root(without, count - 1), c * away[:, :, None], upper=False)
        found.append(white.square().sum((1, 2)).numpy())
    distances: NDArray[np.float64] = np.concatenate(found)
    return distances


def _distance(rows: Tensor, statistics: ClassStatistics, label: str) -> NDArray[np.float64]:
    """Return the squared Mahalanobis distances (n,) of projected rows to a class."""
    mean, scatter, count = _sums(statistics, label)
    white = torch.linalg.solve_triangular(_root(scatter, count), (rows - mean).T, upper=False)
    squares: NDArray[np.float64] = white.square().sum(0).numpy()
    return squares


def _sums(statistics: ClassStatistics, label: str) -> tuple[Tensor, Tensor, int]:
    """Return mean, scatter matrix and number of images of a class."""
    index = statistics.index(label)
    count = int(statistics.count[index])
    return statistics.mean[index], (count - 1) * statistics.covariances.full[index].double(), count  # type: ignore[index]


def _root(scatter: Tensor, count: int) -> Tensor:
    """Return the Cholesky factor of the covariance (…, r, r) of `count` images with this scatter matrix.

    The covariance is shrunk towards a diagonal one with the weight of `PRIOR` images, so that it is regular even in directions
    in which the class does not vary.
    """
    variances = scatter.diagonal(dim1=-2, dim2=-1).clamp_min(0) / max(count - 1, 1)
    level = variances.mean(-1, keepdim=True)
    regular = scatter.clone()
    regular.diagonal(dim1=-2, dim2=-1).add_(PRIOR * (variances + torch.where(level > 0, level, 1.0)) / 2)
    root: Tensor = torch.linalg.cholesky(regular / (count - 1 + PRIOR))
    return root


def _sum(one: ClassStatistics, two: ClassStatistics) -> ClassStatistics:
    """Return new statistics of all images of both."""
    return ClassStatistics(one.dim, dtype=torch.float64).merge(one).merge(two)
