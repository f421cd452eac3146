"""How typical a sample is of its class, from the class statistics alone: small for samples of classes that were never seen.

Two questions, each answered by a p-value. Is the sample as near to its class's mean as samples of the class are? The
Mahalanobis distance finds samples of another kind. Does it point towards the class's mean, as seen from the average of all
means? The cosine in the same metric finds new classes among similar ones. If it is known which features differ most in samples
of another kind, there is a third question: is the sample near any class, in these and in all features? Stouffer's method joins
the p-values.

This module computes once what to expect of samples of the known classes, by leave-one-out in closed form
(`amgc.core.within`). `amgc.core.typical` then compares samples with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from amgc.core.projection import projected
from amgc.core.shared import Factor
from amgc.core.shrinkage import pooled_covariance, regularisation, variance_level
from amgc.core.spread import random_directions
from amgc.core.statistics import ClassStatistics
from amgc.core.typical import Distances, Typicality, cosines
from amgc.core.within import DRAWS, Within

# Standard deviation of the logarithm of squared distances to the true mean of a class, beyond that of a Gaussian. It is 0.36 on
# training photographs of flowers and leaves, and 0.2 to 0.3 on CIFAR images.
REAL = 0.36
# The same for the distance in the features that find samples of another kind: 0.28 on flowers, 0.41 on leaves and 0.2 to 0.3 on
# CIFAR images, with the features of lite0.
FAR_REAL = 0.32
FEW = 3  # degrees of freedom below which every sample counts as typical
WIDE, NARROW = 2048, 512  # more features than the first are projected to the second number of random directions


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

    def nearest(self) -> tuple[float, float]:
        """Return mean and standard deviation of the logarithm of the distance of new samples to the nearest mean.

        One for all classes: the question is not of which class a sample is, and with few samples, samples of another kind
        would pass as samples of the class that seems largest.
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

    def arrays(self) -> Distances:
        """Return what samples are compared with, with the classes in the order of the statistics."""
        place = self.within.order.argsort()
        whiten = self.factor.solve(torch.eye(len(self.means), dtype=torch.float64, device=self.means.device))
        expected = self.expected[place] if self.expected.ndim else self.expected[None]
        means = self.means.cpu()[:, place]
        return Distances(self.centre.cpu().numpy(), whiten.cpu().numpy(), means.numpy(), expected.numpy(), self.spread)


def measure(statistics: ClassStatistics, far: Sequence[int] | None = None) -> Typicality | None:
    """Return what to expect of samples of the known classes; None if there are too few of them to tell.

    far : indices of the features that differ most in samples of another kind, if they are known.
    """
    if not can_tell(statistics):
        return None
    apart, directions = None, None
    if far is not None:
        part = projected(statistics, one_hot(torch.tensor(far), statistics.dim).T.double())
        # The more directions a covariance has for its degrees of freedom, the less is known of each.
        ridge = (1 + part.dim / part.freedom) * variance_level(part, "auto")
        apart = Distance(part, ridge, torch.ones(len(part)), FAR_REAL)
        expected, apart.spread = apart.nearest()
        apart.expected = torch.tensor(expected - apart.real**2 / 2, dtype=torch.float64)
    if statistics.dim > WIDE:
        directions = random_directions(statistics.dim, NARROW)
        statistics = projected(statistics, directions)
    chosen = regularisation(statistics, None, "auto")
    # The ridge that is best to tell the classes apart may be smaller. On training photos of leaves, 50 a class, it found
    # left-out classes less well.
    ridge = torch.maximum(chosen.ridge, variance_level(statistics, "auto"))
    near = Distance(statistics, ridge, chosen.keep, REAL)
    if far is None:  # only this distance finds samples of another kind: reject more of them
        near.expected -= near.real**2 / 2
    within, spread, draws = near.within, near.spread, near.within.draws
    noise = torch.randn(len(draws), len(draws[0][1].own), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wider = torch.exp(spread * noise - spread**2 / 2) - 1
    aligned = [
        cosines(one.to_means.numpy(), (one.own + more * one.around).numpy(), one.means.numpy())[:, row]
        for (row, one), more in zip(draws, wider, strict=True)
    ]
    return Typicality(
        near.arrays(),
        within.order[within.chosen].numpy(),
        np.sort(aligned, axis=1),
        None if far is None else np.array(far, dtype=np.int64),
        None if apart is None else apart.arrays(),
        None if apart is None else np.array(near.nearest()),
        None if directions is None else directions.numpy(),
    )
