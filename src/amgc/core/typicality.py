"""How typical a sample is of its class, from the class statistics alone: small for samples of classes that were never seen.

Two questions, each answered by a p-value. Is the sample as near to its class's mean as samples of the class are? The
Mahalanobis distance finds what is altogether different. Does it point towards the class's mean, as seen from the average of all
means? The cosine in the same metric finds new classes among similar ones. Stouffer's method joins the two p-values.

What samples of the known classes would give follows from leave-one-out in closed form (`amgc.core.within`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor

from amgc.core.shared import Factor
from amgc.core.shrinkage import pooled_covariance, regularisation
from amgc.core.statistics import ClassStatistics
from amgc.core.within import Within

# Standard deviation of the logarithm of squared distances within a class, beyond that of a Gaussian: the average over training
# images of photographs, CIFAR-100 and digits with 5 to 50 samples a class (benchmarks/photos.py).
REAL = 0.38
ALIGNED = 1.5  # weight of the direction relative to the distance, as normal deviates,
CORRELATION = 0.5  # and the correlation that is assumed of them
FEW = 3  # degrees of freedom below which every sample counts as typical
WIDE, NARROW = 2048, 512  # more features than this are projected to so many random directions


def can_tell(statistics: ClassStatistics) -> bool:
    """Return whether there are enough samples, of at least two classes and with covariances, to tell what is typical."""
    return statistics.form != "diagonal" and statistics.freedom >= FEW and len(statistics) > 1


class Typicality:
    """Compares distances and directions of samples with those of the known classes."""

    def __init__(self, statistics: ClassStatistics) -> None:
        if statistics.form == "diagonal":
            raise ValueError("typicality needs covariances; covariance='diagonal' stores variances only.")
        self.enough = can_tell(statistics)
        if not self.enough:
            return
        self.directions = random_directions(statistics.dim) if statistics.dim > WIDE else None
        if self.directions is not None:
            statistics = statistics.projected(self.directions)
        chosen = regularisation(statistics, None, "auto")
        covariance = pooled_covariance(statistics).plus_diagonal(chosen.ridge)
        self.factor = Factor(covariance, torch.finfo(torch.float64).eps)
        self.within = within = Within.of(statistics, self.factor, chosen.keep)
        self.centre = statistics.mean.mean(0)
        # Two over the number of directions is a Gaussian's. Few samples span few of the directions in which new ones vary.
        unseen = float(within.leverage.mean())
        self.spread = math.sqrt(REAL**2 + (1 - unseen) * 2 / max(self.factor.dimensions(covariance.extra), 1.0))
        self.means = self.factor.white(within.mean.T).double()  # (d, K)
        self.place = within.order.argsort()  # of each class in the order of `within`
        freedom = within.freedom * within.leverage / (1 - within.leverage)
        self.expected = ((1 + 1 / within.count) * freedom).log() - self.spread**2 / 2  # mean of log squared distances
        draws = within.draws()
        noise = torch.randn(len(draws), len(draws[0][1].own), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        wider = torch.exp(self.spread * noise - self.spread**2 / 2) - 1
        cosines = [
            _cosine(one.to_means, one.own + more * one.around, one.means)[:, row]
            for (row, one), more in zip(draws, wider, strict=True)
        ]
        self.cosines = torch.cat(cosines).sort()[0]

    def __call__(self, features: NDArray[Any], rows: list[int]) -> NDArray[np.float64]:
        """Return the typicality (n,) of features (n, d) of the classes in these rows of the statistics, from 0 to 1."""
        if not self.enough:
            return np.ones(len(features))
        found = torch.as_tensor(features).double().to(self.centre.device)
        if self.directions is not None:
            found = found @ self.directions.to(found)
        white = self.factor.white((found - self.centre).T).double()
        at, own = self.place[rows], white.square().sum(0).cpu()
        to_means, lengths = (white.T @ self.means).cpu(), self.means.square().sum(0).cpu()
        distance = own + lengths[at] - 2 * to_means.gather(1, at[:, None])[:, 0]
        farther = ((distance.clamp_min(1e-300).log() - self.expected[at]) / self.spread).numpy()
        cosine = _cosine(to_means, own, lengths).gather(1, at[:, None])[:, 0]
        # Between 1 and the number of draws: no p-value is 0 by chance.
        aligned = (torch.searchsorted(self.cosines, cosine).double() + 1) / (len(self.cosines) + 2)
        deviate = (ALIGNED * ndtri(aligned.numpy()) - farther) / math.sqrt(ALIGNED**2 + 1 + 2 * CORRELATION * ALIGNED)
        # What is far away is not typical, even in the direction of a class. The factor is Bonferroni's.
        joined: NDArray[np.float64] = np.minimum(ndtr(deviate), 2 * ndtr(-farther))
        return joined


@lru_cache(maxsize=4)
def random_directions(dim: int) -> Tensor:
    """Return random signs (d, `NARROW`) over √d: raw bits of PCG64, which numpy guarantees never to change."""
    words = np.random.PCG64(0).random_raw(dim * NARROW // 64 + 1)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[: dim * NARROW].reshape(dim, NARROW)
    signs: Tensor = torch.from_numpy(bits).double() * 2 - 1
    return signs / math.sqrt(dim)


def _cosine(products: Tensor, lengths: Tensor, means: Tensor) -> Tensor:
    """Return the cosines (n, K) of samples with squared `lengths` (n,) and class means with squared lengths `means`."""
    return products / (lengths.clamp_min(1e-300)[:, None] * means.clamp_min(1e-300)).sqrt()
