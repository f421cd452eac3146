"""How well an image fits a class at all: the share of the class's own images that lie farther from it.

Distances are squared Mahalanobis distances by the class's own mean and covariance, in `RANK` random directions that are the
same for every model: few enough that a class's images determine its covariance, and fixed, so that the distances to a class do
not change when others are learned or forgotten.

Where a class's other images lie is known from its training images: with an image x taken out of mean and covariance, its
distance follows in closed form from the one with x in (`left_out`). Of these distances some quantiles of their logarithm are
kept, per class, and no row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc.core.statistics import ClassStatistics

RANK = 64
PRIOR = 16.0  # samples' worth of uncorrelated features in each class's own covariance
FEW = 6  # images below which nothing is said: with 3 to 5, 4 to 30 % of a class's own new images would be rejected at 0.01
ROWS = 2000  # of a class whose distances are looked at
LEVELS = np.array([0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001])  # shares farther away
TAIL = 10  # of the farthest images, from which the share of those farther still is extrapolated


@dataclass(frozen=True)
class Fits:
    """Mean, covariance and quantiles per class. Never changed: `learned`, `merged` and `without` give another."""

    dim: int
    statistics: ClassStatistics
    quantiles: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # log distances at LEVELS; NaN: nothing is known

    @classmethod
    def empty(cls, dim: int) -> Fits:
        return cls(dim, blank(dim))

    def learned(self, more: ClassStatistics, rows: Mapping[str, Tensor]) -> Fits:
        """With the classes of `more`, of whose projected images `rows` are a random part.

        A class that was known keeps what was found then, mixed with what the new images say: the old ones' distances to
        the mean and covariance as they are now could not be had without the images.
        """
        statistics = _both(self.statistics, more)
        quantiles = dict(self.quantiles)
        for label, own in rows.items():
            now = _quantiles(left_out(own, statistics, label))
            before = self.statistics.count[self.statistics.index(label)].item() if label in self.statistics else 0
            fresh = more.count[more.index(label)].item()
            quantiles[label] = mixed(quantiles[label], now, before / (before + fresh)) if before else now
        return Fits(self.dim, statistics, quantiles)

    def merged(self, other: Fits) -> Fits:
        """With what another model knows; of a class that both know, the mixture."""
        quantiles = dict(self.quantiles)
        for label, theirs in other.quantiles.items():
            if label in quantiles:
                mine, more = (int(one.statistics.count[one.statistics.index(label)]) for one in (self, other))
                theirs = mixed(quantiles[label], theirs, mine / (mine + more))
            quantiles[label] = theirs
        return Fits(self.dim, _both(self.statistics, other.statistics), quantiles)

    def without(self, label: str) -> Fits:
        statistics = _both(self.statistics, blank(self.dim)).remove(label)
        return Fits(self.dim, statistics, {name: kept for name, kept in self.quantiles.items() if name != label})

    def of(self, features: Tensor, labels: list[str]) -> NDArray[np.float64]:
        """The fit (n,) of features (n, d) to the class named for each: 1 is as near as its images can be, 0 is far off."""
        rows, result = project(features), np.ones(len(features))
        for label in set(labels):
            chosen = [number for number, name in enumerate(labels) if name == label]
            distance = _distance(rows[chosen], self.statistics, label)
            result[chosen] = farther(np.log(np.maximum(distance, 1e-300)), self.quantiles[label])
        return result

    def header(self) -> dict[str, Any]:
        return {"dim": self.dim, "statistics": self.statistics.header()}

    def tensors(self) -> dict[str, Tensor]:
        rows = [self.quantiles[str(label)] for label in self.statistics.classes]
        quantiles = torch.from_numpy(np.array(rows).reshape(len(rows), len(LEVELS)))
        return {"quantiles": quantiles} | self.statistics.tensors()

    @classmethod
    def from_file(cls, header: dict[str, Any], tensors: dict[str, Tensor]) -> Fits:
        statistics = ClassStatistics.from_file(header["statistics"], tensors)
        quantiles = tensors["quantiles"].numpy()
        if quantiles.shape != (len(statistics), len(LEVELS)) or statistics.dim != rank(header["dim"]):
            raise ValueError(f"quantiles of shape {quantiles.shape} for {len(statistics)} classes")
        return cls(header["dim"], statistics, dict(zip(map(str, statistics.classes), quantiles, strict=True)))


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

    With M = S + m T, S the sum of squares of n images and T what it is drawn to by m = `PRIOR`, Σ is M / (n - 1 + m). Without x
    the mean is c = n / (n - 1) times as far from x, and M is smaller by c (x - μ)(x - μ)ᵀ: by Sherman and Morrison the distance
    is c² (n - 2 + m) g / (1 - c g), g = (x - μ)ᵀ M⁻¹ (x - μ). T is left as it is: that x is in its variances is forgotten.
    """
    count = int(statistics.count[statistics.index(label)])
    if count < FEW:
        return np.full(len(rows), np.nan)
    c, g = count / (count - 1), _distance(rows, statistics, label) / (count - 1 + PRIOR)
    return c**2 * (count - 2 + PRIOR) * g / np.maximum(1 - c * g, 1e-6)


def farther(log_distance: NDArray[np.float64], quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of a class's images at more than these distances; 1 where nothing is known of them."""
    if np.isnan(quantiles).any():
        return np.ones_like(log_distance)
    slope = (np.log(LEVELS[-1]) - np.log(LEVELS[-3])) / max(quantiles[-1] - quantiles[-3], 1e-12)
    near = np.interp(log_distance, quantiles, np.log(LEVELS), left=0.0)
    beyond = np.log(LEVELS[-1]) + slope * (log_distance - quantiles[-1])
    shares: NDArray[np.float64] = np.exp(np.where(log_distance > quantiles[-1], beyond, near))
    return shares


def mixed(one: NDArray[np.float64], two: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """The quantiles of a mixture, `share` of which is `one`'s."""
    if np.isnan(one).any() or np.isnan(two).any():
        return two if np.isnan(one).any() else one
    points = np.union1d(one, two)
    shares = share * farther(points, one) + (1 - share) * farther(points, two)
    found: NDArray[np.float64] = np.interp(-LEVELS, -shares, points)
    return found


def _quantiles(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log distances that the shares LEVELS exceed. Beyond the farthest few, the tail is taken to be exponential."""
    if not len(distances) or np.isnan(distances).any():
        return np.full(len(LEVELS), np.nan)
    logs, count = np.sort(np.log(np.maximum(distances, 1e-300))), len(distances)
    start = min(max(TAIL / count, 0.02), 0.5)  # the share from which on the tail is extrapolated
    edge = np.quantile(logs, 1 - start)
    reach = max(float((logs[logs >= edge] - edge).mean()), 1e-6)
    found: NDArray[np.float64] = np.quantile(logs, 1 - LEVELS)
    tail = start > LEVELS
    found[tail] = edge + reach * np.log(start / LEVELS[tail])
    return found


def _distance(rows: Tensor, statistics: ClassStatistics, label: str) -> NDArray[np.float64]:
    """Squared Mahalanobis distances (n,) of projected rows to a class."""
    index = statistics.index(label)
    spread, count = statistics.covariances.full[index].double(), int(statistics.count[index])  # type: ignore[index]
    variances = spread.diagonal()
    level = variances.mean() if bool(variances.any()) else torch.ones(())
    regular = (count - 1) * spread
    regular.diagonal().add_(PRIOR * (variances + level) / 2)  # no direction in which a class did not vary is forbidden
    lower = torch.linalg.cholesky(regular / (count - 1 + PRIOR))
    white = torch.linalg.solve_triangular(lower, (rows - statistics.mean[index]).T, upper=False)
    squares: NDArray[np.float64] = white.square().sum(0).numpy()
    return squares


def _both(one: ClassStatistics, two: ClassStatistics) -> ClassStatistics:
    """A third that has what both have."""
    return ClassStatistics(one.dim, dtype=torch.float64).merge(one).merge(two)
