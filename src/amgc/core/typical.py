"""How typical samples are of their classes, compared with what is expected of samples of the known classes.

`amgc.core.typicality` explains it, and computes what is expected. Importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from amgc.tensor_files import without

if TYPE_CHECKING:
    from torch import Tensor

TYPICAL = "typicality."  # prefix of the arrays in a file
Floats = NDArray[np.float64]
Numbers = TypeVar("Numbers", "Tensor", "NDArray[np.float64]")
CORRELATION = 0.6  # that is assumed of distance and direction, as normal deviates; 0.4 to 0.7 on the training photographs
# Weight of the distance relative to the direction. New classes among similar ones are found better with the second: on training
# photographs the area under the ROC curve is 0.015 larger. Other kinds are found better with the first.
ALIKE, SIMILAR = 1.0, 0.25
# Weight of the distance in the features that find samples of another kind, and its correlation with the other distance, as
# normal deviates: 0.64 to 0.89 on training photographs and CIFAR images with the features of lite0, 5 to 50 a class. The
# direction would find new classes, but hides other kinds.
FAR_WEIGHT, FAR_CORRELATION = 2.0, 0.8
FAR = 0.05  # below this, the two distances count. Above it the other questions do: they find new classes among similar ones.


@dataclass(frozen=True, eq=False)
class Distances:
    """Squared distances to class means, and what is expected of them.

    centre (d,) is subtracted from samples. whiten (d, d), upper triangular, makes their covariance the identity. means (d, K) :
    those of the classes, centred and whitened. expected (K,), or (1,) for all classes, and spread : mean and standard deviation
    of the logarithm of squared distances within a class.
    """

    centre: Floats
    whiten: Floats
    means: Floats
    expected: Floats
    spread: float

    @cached_property
    def lengths(self) -> Floats:
        """Squared lengths of the means, (K,)."""
        return np.square(self.means).sum(0)  # type: ignore[no-any-return]

    def products(self, features: Floats) -> tuple[Floats, Floats]:
        """Return the products of centred features (n, d) with the means (n, K), and with themselves (n,)."""
        white = (features - self.centre) @ self.whiten
        return white @ self.means, np.square(white).sum(1)

    def logs(self, to_means: Floats, own: Floats) -> Floats:
        """Return the logarithms of the squared distances to the means (n, K)."""
        distance = own[:, None] + self.lengths - 2 * to_means
        return np.log(distance.clip(1e-300))  # type: ignore[no-any-return]

    def farther(self, to_means: Floats, own: Floats) -> Floats:
        """Return the logarithms of the distances to the means (n, K), as normal deviates."""
        return (self.logs(to_means, own) - self.expected) / self.spread

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the contents of a file; of the triangular matrix only the upper part."""
        whiten = self.whiten[np.triu_indices(len(self.centre))]
        about = {"centre": self.centre, "means": self.means, "expected": self.expected, "spread": np.array([self.spread])}
        return about | {"whiten": whiten}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Distances:
        """Return the distances with these `arrays`. Raises ValueError or KeyError if they do not fit together."""
        centre, means, expected, spread = (arrays[name] for name in ("centre", "means", "expected", "spread"))
        dim, classes = means.shape
        whiten = np.zeros((dim, dim))
        whiten[np.triu_indices(dim)] = arrays["whiten"]
        if centre.shape != (dim,) or expected.shape not in ((1,), (classes,)) or spread.shape != (1,):
            raise ValueError(f"expected distances have shape {expected.shape} for {classes} classes of {dim} features")
        return cls(centre, whiten, means, expected, float(spread[0]))


@dataclass(frozen=True, eq=False)
class Typicality:
    """Compares distances and directions of samples with those of the known classes.

    near : distances in all features.
    drawn (C,) : rows of the classes that samples were drawn from. cosines (C, m) : those of the draws, sorted in each row.
    far : indices of the features that differ most in samples of another kind. apart : distances in these. nearest (2,) : mean
        and standard deviation of the logarithm of the distance to the nearest mean in all features. None if not known.
    directions (D, d) : samples of D features are projected to these first. None if they are not.
    """

    near: Distances
    drawn: NDArray[np.int64]
    cosines: Floats
    far: NDArray[np.int64] | None = None
    apart: Distances | None = None
    nearest: Floats | None = None
    directions: Floats | None = None

    @cached_property
    def all_cosines(self) -> Floats:
        """Those of the draws of all classes, sorted."""
        return np.sort(self.cosines, axis=None)

    def __call__(self, features: NDArray[Any], rows: NDArray[np.intp]) -> Floats:
        """Return the typicality (n,) of features (n, D) of the classes in these rows (n,) of the statistics, from 0 to 1."""
        found = features.astype(np.float64)
        apart = None
        if self.apart is not None:
            apart = self.apart.farther(*self.apart.products(found[:, self.far])).min(1)
        if self.directions is not None:
            found = found @ self.directions
        each = np.arange(len(found))
        to_means, own = self.near.products(found)
        farther = self.near.farther(to_means, own)[each, rows]
        cosine = cosines(to_means, own, self.near.lengths)[each, rows]
        aligned = _share_below(self.all_cosines, cosine)  # compared with draws of all classes, and of the sample's own
        for row, draws in zip(self.drawn, self.cosines, strict=True):
            mine = rows == row
            aligned[mine] = (aligned[mine] + _share_below(draws, cosine[mine])) / 2
        # Stouffer's method. What is far away is not typical, even in the direction of a class. The factor is Bonferroni's.
        weight = ALIKE if apart is None else SIMILAR
        deviate = (_deviate(aligned) - weight * farther) / math.sqrt(1 + weight**2 + 2 * weight * CORRELATION)
        joined = np.minimum(_below(deviate), 2 * _below(-farther))
        if apart is not None and self.nearest is not None:
            expected, spread = self.nearest
            deviate = (self.near.logs(to_means, own).min(1) - expected) / spread + FAR_WEIGHT * apart
            deviate /= math.sqrt(1 + FAR_WEIGHT**2 + 2 * FAR_WEIGHT * FAR_CORRELATION)
            both = np.minimum(_below(-deviate), 2 * _below(-apart))
            joined = np.where(both < FAR, both, FAR + (1 - FAR) * joined)
        return joined

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the contents of a file. Without `directions`, which are the same for all."""
        found = {"drawn": self.drawn, "cosines": self.cosines}
        found |= {f"near.{name}": array for name, array in self.near.arrays().items()}
        if self.far is not None and self.apart is not None and self.nearest is not None:
            found |= {"far": self.far, "nearest": self.nearest}
            found |= {f"apart.{name}": array for name, array in self.apart.arrays().items()}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], classes: int, dim: int) -> Typicality:
        """Return what has these `arrays`. Raises ValueError or KeyError if they do not fit together."""

        def part(prefix: str) -> Distances:
            return Distances.from_arrays(without(prefix, arrays))

        near, drawn, cosines = part("near."), arrays["drawn"], arrays["cosines"]
        if near.means.shape != (dim, classes) or drawn.shape != cosines.shape[:1]:
            raise ValueError(f"what is typical is known for {near.means.shape[1]} classes of {near.means.shape[0]} features")
        far, apart, nearest = (arrays["far"], part("apart."), arrays["nearest"]) if "far" in arrays else (None, None, None)
        if far is not None and apart is not None and (len(far) != len(apart.centre) or not 0 <= far.min() <= far.max() < dim):
            raise ValueError("the features that find other kinds are not features")
        if nearest is not None and nearest.shape != (2,):
            raise ValueError(f"the expected distance to the nearest class has shape {nearest.shape}")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("what is typical holds NaN or infinity")
        return cls(near, drawn, cosines, far, apart, nearest)


def half_scores(to_means: Numbers, means: Numbers, keep: Numbers) -> Numbers:
    """Return half of LDA's scores, from products (n, K) of samples with the means and of the means with themselves."""
    return 0.5 * (keep * to_means - 0.5 * keep**2 * means)


def cosines(products: Floats, lengths: Floats, means: Floats) -> Floats:
    """Return the cosines (n, K) of samples with squared `lengths` (n,) and class means with squared lengths `means`."""
    return products / np.sqrt(lengths.clip(1e-300)[:, None] * means.clip(1e-300))  # type: ignore[no-any-return]


def _share_below(draws: Floats, values: Floats) -> Floats:
    """Return the share of sorted draws below each value; never quite 0 or 1."""
    return (np.searchsorted(draws, values) + 1) / (len(draws) + 2)


def _below(deviates: Floats) -> Floats:
    """Return the probability that a standard normal number is below each of these."""
    return np.array([0.5 * math.erfc(-one / math.sqrt(2)) for one in deviates.tolist()])


def _deviate(shares: Floats) -> Floats:
    """Return the standard normal deviates with these probabilities below them."""
    return np.array([*map(NormalDist().inv_cdf, shares.tolist())])
