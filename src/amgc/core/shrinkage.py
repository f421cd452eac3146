"""Default regularisation of class means and covariances, from the class statistics alone.

With few samples, nearly the same regularisation is best for embeddings of photographs, ResNet features, pixels and
measurements: one covariance for all classes, with the same number added to every variance, and class means shrunk towards
their average.
`benchmarks/photos.py` compares it with other classifiers, `benchmarks/defaults.py` with other values.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from amgc.core.covariance import SharedCovariance
from amgc.core.loading import Loadings, chosen_loadings, is_cheap
from amgc.core.statistics import ClassStatistics

Standardize: TypeAlias = bool | Literal["auto"]
POOLED_SAMPLES = 3  # per feature: the weight of the pooled covariance, in samples of a class
OWN = 0.05  # if no class's own covariance has at least this weight, all classes get the pooled one, which has a closed form
MEAN_SAMPLES = 2.0  # the weight of the average of all class means in each class mean, in samples
DIFFERENT = 100.0  # ratio of arithmetic to geometric mean of the variances above which features have different units
DIAGONAL_SAMPLES = 10.0  # the weight of the level in variances, in samples, if no correlations are stored
# The largest share of the level that is each feature's own variance instead of the average. With all of it, features that
# hardly vary get weight: 10 points less accuracy on training photos of leaves, five a class, with 1,280 features.
OWN_SHARE = 0.8
EQUAL = 0.05  # standard errors of the criterion by which the two levels must differ for one to get e times the other's weight
VARIANCE_FLOOR = 1e-4  # minimum share of the level that is added to each variance


class Regularisation(NamedTuple):
    """Regularised class means, and how to regularise the covariances.

    mean (K, d) : class means, shrunk towards their average by 1 - keep (K,).
    own (K,) : weight of each class's own covariance; the pooled covariance has the rest.
    to_diagonal : shrinkage of the result towards the pooled diagonal.
    ridge (d,) : added to each variance.
    """

    mean: Tensor
    keep: Tensor
    own: Tensor
    to_diagonal: float
    ridge: Tensor


def regularisation(
    statistics: ClassStatistics, shrinkage: tuple[float, float] | None, standardize: Standardize
) -> Regularisation:
    """Return the regularisation for `shrinkage` towards the pooled covariance and its diagonal; None chooses everything.

    standardize : the ridge of each feature is proportional to its own variance, not to the average of all variances. "auto"
        does so if variances differ by orders of magnitude, which means that features have different units. Otherwise
        leave-one-out chooses a mixture of the two.
    """
    mean, count = statistics.mean, statistics.count.double()
    if shrinkage is not None:
        to_pooled, to_diagonal = shrinkage
        ridge = VARIANCE_FLOOR * variance_level(statistics, standardize is not False)
        return Regularisation(mean, torch.ones_like(count), torch.full_like(count, 1 - to_pooled), to_diagonal, ridge)
    own = count / (POOLED_SAMPLES * statistics.dim + count)
    if statistics.form == "shared" or bool((own < OWN).all()):
        own = torch.zeros_like(own)
    keep = count / (count + MEAN_SAMPLES)
    centre = mean.mean(0)
    drawn = centre + keep.to(mean)[:, None] * (mean - centre)
    return Regularisation(drawn, keep, own, 0.0, _ridge(statistics, standardize))


def variance_level(statistics: ClassStatistics, standardize: Standardize) -> Tensor:
    """Return the level of the ridge (d,), float64: each feature's total variance, or the average over all features."""
    pooled = statistics.shared().variances if statistics.form == "shared" else statistics.pooled().double()
    within = pooled if pooled.ndim == 1 else pooled.diagonal()
    total = within + statistics.mean.var(0, correction=0).to(within.device)
    # The variance of a constant feature is rounding error. Any positive ridge gives it no weight.
    varies = total.sqrt() > 1e-12 * statistics.mean.abs().amax(0).to(total)
    if not bool(varies.any()):
        return torch.ones_like(total)
    average = total[varies].mean()
    if standardize == "auto":
        standardize = bool(average > DIFFERENT * total[varies].log().mean().exp())
    return torch.where(varies, total if standardize else average, 1.0 if standardize else average)


def pooled_covariance(statistics: ClassStatistics) -> SharedCovariance:
    """Return the pooled covariance for the closed form. The statistics may have any form that stores correlations."""
    if statistics.form == "shared":
        return statistics.shared()
    pooled = statistics.pooled()
    return SharedCovariance(pooled, 1.0, pooled.diagonal().double())


def towards_diagonal(statistics: ClassStatistics) -> float:
    """Return the shrinkage of a shared covariance towards its diagonal by leave-one-out, as `solve_head` uses it.

    Leave-one-out (`amgc.core.loading`) chooses Σ + e diag(Σ), which equals (1 - b) Σ + b diag(Σ) up to scale.
    """
    within = statistics.shared()
    loading = chosen_loadings(within, within.variances, statistics.mean, statistics.count, statistics.freedom).smallest
    return 1 / (1 + 1 / loading)


def _ridge(statistics: ClassStatistics, standardize: Standardize) -> Tensor:
    """Return what is added to each variance (d,): a level, and how much of it by leave-one-out."""
    level, freedom = variance_level(statistics, standardize), statistics.freedom
    if statistics.form == "diagonal":
        return max(DIAGONAL_SAMPLES / (DIAGONAL_SAMPLES + freedom), VARIANCE_FLOOR) * level
    covariance = pooled_covariance(statistics)

    def loadings(level: Tensor) -> Loadings:
        return chosen_loadings(covariance, level, statistics.mean, statistics.count, freedom)

    found = loadings(level)
    one_level = bool((level == level[0]).all())
    if standardize == "auto" and one_level and is_cheap(statistics.dim, freedom + len(statistics)):
        own = variance_level(statistics, True)
        rival = loadings(level + OWN_SHARE * (own - level))
        # A share between the two, not the better one: the criterion has an error, and rounding must not decide.
        equal = EQUAL * min(found.error, rival.error)
        if 0 < equal < math.inf:
            share = OWN_SHARE / (1 + math.exp(min(max((found.quality - rival.quality) / equal, -50.0), 50.0)))
            level = level + share * (own - level)
            found = loadings(level)
    if math.isinf(found.largest):
        return level  # there is no covariance, so any number gives the same predictions
    # Leave-one-out finds a range of loadings that are equally good. With few samples the largest is used, with many their
    # middle.
    low = 0.5 * freedom / (freedom + statistics.dim)
    return max(math.exp(low * math.log(found.smallest) + (1 - low) * math.log(found.largest)), VARIANCE_FLOOR) * level
