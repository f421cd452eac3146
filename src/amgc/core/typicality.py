"""How typical a sample is of its class, from the class statistics alone: small for samples of classes that were never seen.

Two questions, each answered by a p-value. Is the sample as near to its class's mean as samples of the class are? The
Mahalanobis distance finds samples of another kind. Does it point towards the class's mean, as seen from the average of all
means? The cosine in the same metric finds new classes among similar ones. If it is known which features differ most in samples
of another kind, there are two more questions: is the sample near any class in these, and is it as clearly of one class as
samples of the classes are? Stouffer's method joins the p-values.

What samples of the known classes would give follows from leave-one-out in closed form (`amgc.core.within`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from amgc.core.within import DRAWS, Within, half_scores

# Standard deviation of the logarithm of squared distances within a class, beyond that of a Gaussian. On training images of
# photographs, CIFAR-100 and digits with 5 to 50 samples a class it is 0.22 to 0.37 (benchmarks/photos.py). This is near the
# upper end, because classes differ.
REAL = 0.35
CORRELATION = 0.6  # that is assumed of distance and direction, as normal deviates; 0.4 to 0.7 on the training photographs
CLEAR_CORRELATIONS = 0.82, 0.35  # of how clear the answer is, with direction and with distance
# Weights of distance and clearness relative to the direction. New classes among similar ones are found better with the second:
# on training photographs the area under the ROC curve is 0.01 to 0.04 larger. Other kinds are found better with the first.
ALIKE, SIMILAR = (1.0, 0.0), (0.5, 0.5)
# The same for the distance in the features that find samples of another kind, and its weight and correlation with the other
# distance, as normal deviates. Measured on training photographs and CIFAR images with the features of lite0, 5 to 50 a class:
# 0.12 to 0.37, and 0.63 to 0.82. The direction would find new classes, but hides other kinds.
FAR_REAL, FAR_WEIGHT, FAR_CORRELATION = 0.27, 2.0, 0.8
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
        self.spread = math.sqrt(real**2 + gaussian)
        self.average = (1 + 1 / within.count) * within.length / (1 - within.leverage)
        # The mean of log squared distances. Longer tails than a Gaussian's would lower it, but on training images of all four
        # kinds new samples are farther away than leave-one-out says, by as much (benchmarks/photos.py).
        self.expected = self.average.log() - gaussian / 2

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

    def farther(self, to_means: Tensor, own: Tensor) -> Tensor:
        """Return the logarithms of the distances to the means (n, K), as normal deviates."""
        distance = own[:, None] + self.lengths - 2 * to_means
        return (distance.clamp_min(1e-300).log() - self.expected) / self.spread


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
            # One expected distance for all classes: the question is not of which class a sample is, and with
            # few samples, samples of another kind would pass as samples of the class that seems largest.
            self.apart.spread = math.hypot(self.apart.spread, float(self.apart.expected.std(correction=0)))
            self.apart.expected = self.apart.expected.mean() + self.apart.nearer() - FAR_REAL**2 / 2
        self.directions = random_directions(statistics.dim, NARROW) if statistics.dim > WIDE else None
        if self.directions is not None:
            statistics = projected(statistics, self.directions)
        chosen = regularisation(statistics, None, "auto")
        # The ridge that is best to tell the classes apart may be smaller. On training photos of leaves, 50 a class, it found
        # left-out classes less well.
        ridge = torch.maximum(chosen.ridge, variance_level(statistics, "auto"))
        self.near = Distance(statistics, ridge, chosen.keep, REAL)
        self.weights = SIMILAR
        if far is None:  # only this distance finds samples of another kind: reject more of them
            self.near.expected -= REAL**2 / 2
            self.weights = ALIKE
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
        self.gaps = torch.cat([_gaps(one.scores(within.keep)) for _, one in draws]).sort()[0]
        self.own_cosines = {row: own.sort()[0] for row, own in zip(within.chosen, cosines, strict=True)}

    def __call__(self, features: NDArray[Any], rows: list[int]) -> NDArray[np.float64]:
        """Return the typicality (n,) of features (n, d) of the classes in these rows of the statistics, from 0 to 1."""
        if not self.enough:
            return np.ones(len(features))
        found = torch.as_tensor(features).double().to(self.near.centre.device)
        apart = None if self.far is None else self.apart.farther(*self.apart.products(found[:, self.far])).amin(1)
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
        # What is far away is not typical, even in the direction of a class. The factor is Bonferroni's.
        clear = _share_below(self.gaps, _gaps(half_scores(to_means, self.near.lengths, self.near.within.keep), at))
        joined = torch.minimum(ndtr(_joined(aligned, farther, clear, *self.weights)), 2 * ndtr(-farther))
        if apart is not None:
            deviate = (farther + FAR_WEIGHT * apart) / math.sqrt(1 + FAR_WEIGHT**2 + 2 * FAR_WEIGHT * FAR_CORRELATION)
            both = torch.minimum(ndtr(-deviate), 2 * ndtr(-apart))
            joined = torch.where(both < FAR, both, FAR + (1 - FAR) * joined)
        typical: NDArray[np.float64] = joined.numpy()
        return typical


def _joined(aligned: Tensor, farther: Tensor, clear: Tensor, distance: float, clearness: float) -> Tensor:
    """Join p-values of the direction, deviates of the distance and p-values of clearness to normal deviates: Stouffer's method.

    The direction has the weight 1, the other two are given.
    """
    with_direction, with_distance = CLEAR_CORRELATIONS
    products = distance * CORRELATION + clearness * with_direction + distance * clearness * with_distance
    size = math.sqrt(1 + distance**2 + clearness**2 + 2 * products)
    joined: Tensor = (ndtri(aligned) - distance * farther + clearness * ndtri(clear)) / size
    return joined


def _gaps(scores: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Return how far the chosen or the best of the scores (n, K) is above the best of the others."""
    chosen = scores.argmax(1) if chosen is None else chosen
    others = scores.scatter(1, chosen[:, None], -math.inf)
    return scores.gather(1, chosen[:, None])[:, 0] - others.amax(1)


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
