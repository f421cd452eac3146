"""How typical a sample is of its class, from the class statistics alone: small for samples of classes that were never seen.

Two questions, each answered by a p-value. Is the sample as near to its class's mean as samples of the class are? The
Mahalanobis distance finds samples of another kind. Does it point towards the class's mean, as seen from the average of all
means? The cosine in the same metric finds new classes among similar ones. If it is known which features differ most in samples
of another kind, there is a third question: is the sample near any class, in these and in all features? Stouffer's method joins
the p-values.

What samples of the known classes would give follows from leave-one-out in closed form (`amgc.core.within`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot
from torch.special import ndtr, ndtri

from amgc.core.shared import Factor
from amgc.core.shrinkage import pooled_covariance, regularisation, variance_level
from amgc.core.spread import random_directions
from amgc.core.statistics import ClassStatistics
from amgc.core.within import DRAWS, Within

# Standard deviation of the logarithm of squared distances to the true mean of a class, beyond that of a Gaussian. It is 0.36 on
# training photographs of flowers and leaves, and 0.2 to 0.3 on CIFAR images.
REAL = 0.36
CORRELATION = 0.6  # that is assumed of distance and direction, as normal deviates; 0.4 to 0.7 on the training photographs
# Weight of the distance relative to the direction. New classes among similar ones are found better with the second: on training
# photographs the area under the ROC curve is 0.015 larger. Other kinds are found better with the first.
ALIKE, SIMILAR = 1.0, 0.25
# The same for the distance in the features that find samples of another kind, and its weight and correlation with the other
# distance, as normal deviates. Measured on training photographs and CIFAR images with the features of lite0, 5 to 50 a class:
# 0.28 on flowers, 0.41 on leaves, 0.2 to 0.3 on CIFAR, and 0.64 to 0.89. The direction would hide other kinds.
FAR_REAL, FAR_WEIGHT, FAR_CORRELATION = 0.32, 2.0, 0.8
FAR = 0.05  # below this, the two distances count. Above it the other questions do: they find new classes among similar ones.
FEW = 3  # degrees of freedom below which every sample counts as typical
WIDE, NARROW = 2048, 512  # more features than this are projected to so many random directions


def can_tell(statistics: ClassStatistics) -> bool:
    """Return whether there are enough samples, of at least two classes and with covariances, to tell what is typical."""
    return statistics.form != "diagonal" and statistics.freedom >= FEW and len(statistics) > 1


class Distance:
    """Squared distances to class means, in the metric of the pooled covariance with a ridge, and what is expected of them."""

    def __init__(self, statistics: ClassStatistics, ridge: Tensor, keep: Tensor, real: float) -> None:
        covariance = pooled_covariance(statistics).plus_diagonal(ridge)
        self.factor = Factor(covariance, torch.finfo(torch.float64).eps)
        self.within = within = Within.of(statistics, self.factor, keep)
        self.centre = statistics.mean.mean(0)
        self.means = self.factor.white(within.mean.T).double()  # (d, K)
        self.lengths = self.means.square().sum(0).cpu()
        # Two over the number of directions is a Gaussian's. Few samples span few of those in which new ones vary.
        directions = 1 / max(self.factor.dimensions(covariance.extra), 1.0) - 1 / statistics.freedom
        gaussian = 2 * max(directions, 1 / statistics.dim)
        # Samples differ in size by `real`. The error of a class mean, 1/n of the average size, adds to all distances alike.
        self.real = real / (1 + float((1 / within.count).mean()))
        self.spread = math.sqrt(self.real**2 + gaussian)
        self.average = (1 + 1 / within.count) * within.length / (1 - within.leverage)
        # The mean of log squared distances. Longer tails than a Gaussian's would lower it, but on training images of all four
        # kinds new samples are farther away than leave-one-out says, by as much (benchmarks/photos.py).
        self.expected = self.average.log() - gaussian / 2

    @cached_property
    def common(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of the distance of new samples to the nearest mean.

        One for all classes: the question is not of which class a sample is, and what few samples say of a class's own size
        lets strangers pass as samples of the class that seems largest.
        """
        return float(self.expected.mean()) + self.nearer(), math.hypot(self.spread, float(self.expected.std(correction=0)))

    def nearer(self) -> float:
        """Return by how much the nearest mean is nearer to new samples than that of their class: the mean of log ratios of D².

        By draws z of the products of a sample with the means. They tell the part of its deviation in the span of the means.
        """
        within, ratios = self.within, []
        _, size, across = torch.linalg.svd(self.means.cpu(), full_matrices=False)
        span = across[size > 1e-6 * size[0]].T / size[size > 1e-6 * size[0]]
        random = torch.Generator().manual_seed(2)
        noise = torch.randn(DRAWS // len(within.chosen), len(within.roots[0]), generator=random, dtype=torch.float64)
        for row, made in zip(within.chosen, within.roots, strict=True):
            z = noise @ made * (self.average[row] / within.length[row]).sqrt()
            inside = (z @ span).square().sum(1)
            own = inside + (self.average[row] - inside.mean()).clamp_min(0)
            apart = within.inner[row, row] + self.lengths - 2 * within.inner[row]
            # The class mean deviates from the true one, by chance and away from new samples.
            apart = (apart - 2 * self.average[row] / (within.count[row] + 1)).clamp_min(0)
            ratios.append(((own[:, None] + 2 * (z[:, row, None] - z) + apart).amin(1).clamp_min(1e-300) / own).log())
        return float(torch.cat(ratios).mean())

    def products(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products of centred features (n, d) with the means (n, K), and with themselves (n,)."""
        white = self.factor.white((features - self.centre).T).double()
        return (white.T @ self.means).cpu(), white.square().sum(0).cpu()

    def logs(self, to_means: Tensor, own: Tensor) -> Tensor:
        """Return the logarithms of the squared distances to the means (n, K)."""
        distance: Tensor = own[:, None] + self.lengths - 2 * to_means
        return distance.clamp_min(1e-300).log()

    def farther(self, to_means: Tensor, own: Tensor) -> Tensor:
        """Return the logarithms of the distances to the means (n, K), as normal deviates."""
        return (self.logs(to_means, own) - self.expected) / self.spread

    def farther_from_all(self, to_means: Tensor, own: Tensor) -> Tensor:
        """Return the logarithm of the distance to the nearest mean (n,), as a normal deviate."""
        expected, spread = self.common
        return (self.logs(to_means, own).amin(1) - expected) / spread


class Typicality:
    """Compares distances and directions of samples with those of the known classes.

    far : indices of the features that differ most in samples of another kind, if they are known.
    """

    def __init__(self, statistics: ClassStatistics, far: Sequence[int] | None = None) -> None:
        self.enough = can_tell(statistics)
        if not self.enough:
            return
        self.far = None if far is None else list(far)
        if self.far is not None:
            part = projected(statistics, one_hot(torch.tensor(self.far), statistics.dim).T.double())
            # The more directions a covariance has for its degrees of freedom, the less is known of each.
            ridge = (1 + part.dim / part.freedom) * variance_level(part, "auto")
            self.apart = Distance(part, ridge, torch.ones(len(part)), FAR_REAL)
            self.apart.expected -= self.apart.real**2 / 2
        self.directions = random_directions(statistics.dim, NARROW) if statistics.dim > WIDE else None
        if self.directions is not None:
            statistics = projected(statistics, self.directions)
        chosen = regularisation(statistics, None, "auto")
        # The ridge that is best to tell the classes apart may be smaller. On training photos of leaves, 50 a class, it found
        # left-out classes less well.
        ridge = torch.maximum(chosen.ridge, variance_level(statistics, "auto"))
        self.near = Distance(statistics, ridge, chosen.keep, REAL)
        self.weight = SIMILAR
        if far is None:  # only this distance finds samples of another kind: reject more of them
            self.near.expected -= self.near.real**2 / 2
            self.weight = ALIKE
        within, spread = self.near.within, self.near.spread
        self.place = within.order.argsort()  # of each class in the order of `within`
        draws = within.draws
        noise = torch.randn(len(draws), len(draws[0][1].own), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        wider = torch.exp(spread * noise - spread**2 / 2) - 1
        cosines = [
            _cosine(one.to_means, one.own + more * one.around, one.means)[:, row]
            for (row, one), more in zip(draws, wider, strict=True)
        ]
        self.cosines = torch.cat(cosines).sort()[0]
        self.own_cosines = {row: own.sort()[0] for row, own in zip(within.chosen, cosines, strict=True)}

    def __call__(self, features: NDArray[Any], rows: list[int]) -> NDArray[np.float64]:
        """Return the typicality (n,) of features (n, d) of the classes in these rows of the statistics, from 0 to 1."""
        if not self.enough:
            return np.ones(len(features))
        found = torch.from_numpy(np.array(features, dtype=np.float64)).to(self.near.centre.device)  # a copy: may be read-only
        apart = None if self.far is None else self.apart.farther_from_all(*self.apart.products(found[:, self.far]))
        if self.directions is not None:
            found = found @ self.directions.to(found)
        at = self.place[rows]
        to_means, own = self.near.products(found)
        farther = self.near.farther(to_means, own).gather(1, at[:, None])[:, 0]
        cosine = _cosine(to_means, own, self.near.lengths).gather(1, at[:, None])[:, 0]
        aligned = _share_below(self.cosines, cosine)  # compared with draws of all classes, and of the sample's own
        for row, draws in self.own_cosines.items():
            mine = at == row
            aligned[mine] = (aligned[mine] + _share_below(draws, cosine[mine])) / 2
        # Stouffer's method. What is far away is not typical, even in the direction of a class. The factor is Bonferroni's.
        deviate = ndtri(aligned) - self.weight * farther
        size = math.sqrt(1 + self.weight**2 + 2 * self.weight * CORRELATION)
        joined = torch.minimum(ndtr(deviate / size), 2 * ndtr(-farther))
        if apart is not None:
            deviate = self.near.farther_from_all(to_means, own) + FAR_WEIGHT * apart
            size = math.sqrt(1 + FAR_WEIGHT**2 + 2 * FAR_WEIGHT * FAR_CORRELATION)
            both = torch.minimum(ndtr(-deviate / size), 2 * ndtr(-apart))
            joined = torch.where(both < FAR, both, FAR + (1 - FAR) * joined)
        typical: NDArray[np.float64] = joined.numpy()
        return typical


def _cosine(products: Tensor, lengths: Tensor, means: Tensor) -> Tensor:
    """Return the cosines (n, K) of samples with squared `lengths` (n,) and class means with squared lengths `means`."""
    return products / (lengths.clamp_min(1e-300)[:, None] * means.clamp_min(1e-300)).sqrt()


def _share_below(draws: Tensor, values: Tensor) -> Tensor:
    """Return the share of sorted draws below each value; never quite 0 or 1."""
    return (torch.searchsorted(draws, values).double() + 1) / (len(draws) + 2)


def projected(statistics: ClassStatistics, directions: Tensor) -> ClassStatistics:
    """Return the statistics of the features x @ directions (d, m), in "shared" form."""
    result = ClassStatistics(directions.shape[1], "shared", dtype=torch.float64, device=statistics.device)
    result.classes, result._index = list(statistics.classes), dict(statistics._index)
    result._used = {"count": statistics.count.clone(), "mean": statistics.mean @ directions.to(statistics.mean)}
    columns = directions.to(statistics.device, statistics.dtype)
    within = statistics.shared().times(columns) if statistics.form == "shared" else statistics.pooled() @ columns
    pooled = (columns.T @ within).double()
    result._scatter.upper.copy_(pooled.triu() * statistics.freedom)
    # The classes' own traces are known in all dimensions only; the directions keep their ratios on average.
    sizes = statistics.sizes() if statistics.form == "shared" else statistics.covariances.variances().double().sum(1)
    average = (sizes * (statistics.count - 1).to(sizes)).sum() / max(statistics.freedom, 1)
    result._used["size"] = sizes * pooled.trace() / average.clamp_min(1e-300)
    result._scatter.freedom = statistics.freedom
    return result
