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

from amgc.core.background import Background
from amgc.core.covariance import SharedCovariance
from amgc.core.diagonal_loading import chosen_loadings, is_cheap
from amgc.core.projection import projected
from amgc.core.shared import Factor
from amgc.core.statistics import ClassStatistics
from amgc.core.within import Within

Standardize: TypeAlias = bool | Literal["auto"]
POOLED_SAMPLES = 3  # per feature: the weight of the pooled covariance, in samples of a class
MOST_OWN = 1024  # classes; with more, all get the pooled covariance: a step of the iteration would take K² d r operations
OWN = 0.05  # if no class's own covariance has at least this weight, all classes get the pooled one, which has a closed form
MEAN_SAMPLES = 2.0  # the weight of the average of all class means in each class mean, in samples
DIFFERENT = 100.0  # ratio of arithmetic to geometric mean of the variances above which features have different units
DIAGONAL_SAMPLES = 10.0  # the weight of the level in variances, in samples, if no correlations are stored
LEAST_RATIO = 0.05  # added to the ratio of variances between and within classes, relative to the average ratio
MOST_LOADING = 999.0  # of the ridge if there is nothing to choose it by
# The largest power of each feature's own variance in the level. With all of it, features that hardly vary get weight: 10
# points less accuracy on training photos of leaves, five a class, with 1,280 features.
OWN_POWER = 0.8
MOST_COMPARED = 256  # classes; with more, the power is half of that, because draws from the classes would take long
# The two levels are compared by the logarithm of the ratio of their left-out losses. If it is this much, one gets e times the
# weight of the other; with few samples it is less accurate, and must be larger: by the factor 1 + 20 / samples of a class.
EQUAL, EQUAL_SAMPLES = 0.03, 20.0
# The ridge and the form that the background suggests are compared by the logarithm of the part of the class indicators that is
# not predicted. If it is `SAME`, one gets e times the weight of the other, and the form e^KNOWN times as much before.
# With a background, the level has this power of each feature's own variance: the gain on leaves is larger than the loss on
# flowers and CIFAR images, which the background more than makes up.
KNOWN, SAME, KNOWN_POWER = 1.0, 0.02, 0.5
NO_LOSS = 1e-3  # differences of losses below this do not matter
VARIANCE_FLOOR = 1e-4  # minimum share of the level that is added to each variance


class Regularisation(NamedTuple):
    """Regularised class means, and how to regularise the covariances.

    mean (K, d) : class means, shrunk towards their average by 1 - keep (K,).
    own (K,) : weight of each class's own covariance; the pooled covariance has the rest.
    to_diagonal : shrinkage of the result towards the pooled diagonal.
    ridge (d,) : added to each variance. prior (d, d) : added to a covariance that all classes share.
    """

    mean: Tensor
    keep: Tensor
    own: Tensor
    to_diagonal: float
    ridge: Tensor
    prior: Tensor | None = None


def regularisation(
    statistics: ClassStatistics,
    shrinkage: tuple[float, float] | None,
    standardize: Standardize,
    background: Background | None = None,
) -> Regularisation:
    """Return the regularisation for `shrinkage` towards the pooled covariance and its diagonal; None chooses everything.

    standardize : the ridge of each feature is proportional to its own variance, not to the average of all variances. "auto"
        does so if variances differ by orders of magnitude, which means that features have different units. Otherwise
        leave-one-out chooses a mixture of the two.
    background : with few samples and without `shrinkage`, a part of the ridge has the form that the background suggests.
    """
    mean, count = statistics.mean, statistics.count.double()
    if shrinkage is not None:
        to_pooled, to_diagonal = shrinkage
        ridge = VARIANCE_FLOOR * variance_level(statistics, standardize is not False)
        return Regularisation(mean, torch.ones_like(count), torch.full_like(count, 1 - to_pooled), to_diagonal, ridge)
    own = count / (POOLED_SAMPLES * statistics.dim + count)
    many = len(own) > MOST_OWN and statistics.form != "diagonal"
    if statistics.form == "shared" or many or bool((own < OWN).all()):
        own = torch.zeros_like(own)
    keep = count / (count + MEAN_SAMPLES)
    centre = mean.mean(0)
    drawn = centre + keep.to(mean)[:, None] * (mean - centre)
    if background is None or statistics.form == "diagonal" or bool(own.any()):
        return Regularisation(drawn, keep, own, 0.0, _ridge(statistics, standardize, keep))
    return Regularisation(drawn, keep, own, 0.0, *_with_background(statistics, background, standardize))


def variance_level(statistics: ClassStatistics, standardize: Standardize) -> Tensor:
    """Return the level of the ridge (d,), float64: each feature's total variance, or the average over all features."""
    pooled = statistics.shared().variances if statistics.form == "shared" else statistics.pooled().double()
    within = pooled if pooled.ndim == 1 else pooled.diagonal()
    total = within + statistics.mean.var(0, correction=0).to(within.device)
    # The variance of a constant feature is rounding error. It gets the average: any positive ridge gives it no weight.
    varies = total.sqrt() > 1e-12 * statistics.mean.abs().amax(0).to(total)
    if not bool(varies.any()):
        return torch.ones_like(total)
    average = total[varies].mean()
    if standardize == "auto":
        standardize = bool(average > DIFFERENT * total[varies].log().mean().exp())
    return torch.where(varies, total, average) if standardize else average.expand_as(total).clone()


def pooled_covariance(statistics: ClassStatistics) -> SharedCovariance:
    """Return the pooled covariance for the closed form. The statistics may have any form that stores correlations."""
    if statistics.form == "shared":
        return statistics.shared()
    pooled = statistics.pooled()
    return SharedCovariance(pooled, 1.0, pooled.diagonal().double())


def separating_ridge(statistics: ClassStatistics) -> Tensor:
    """Return the ridge of a shared covariance (d,), float64, chosen by leave-one-out (`amgc.core.diagonal_loading`)."""
    within, level = statistics.shared(), separating_level(statistics)
    found = chosen_loadings(within, level, statistics.mean, statistics.count, statistics.freedom)
    return min(found.smallest, MOST_LOADING) * level


def separating_level(statistics: ClassStatistics) -> Tensor:
    """Return the level of the ridge (d,): the variance of each feature, divided by how well the feature separates the classes.

    F is the variance of the class means, beyond what the means of so few samples vary by chance, divided by the variance within
    classes. The weights of features with a large F are expected to be large, so they are shrunk less. With few classes F is
    inaccurate, and is itself shrunk towards its average by the share of its variation that is chance (empirical Bayes).
    """
    within, classes = statistics.shared().variances, len(statistics)
    varies = within > 0
    if classes < 2 or int(varies.sum()) < 2:
        return within
    ratio = statistics.mean.to(within).var(0)[varies] / within[varies]
    chance = 2 / (classes + 1) * ratio.square().mean()  # of the variance of normal means, which is χ² with K - 1 degrees
    known = (1 - chance / ratio.var()).clamp(0, 1)
    average = ratio.mean() - (1 / statistics.count.to(within)).mean()
    if not 0 < float(average) < math.inf or not float(known) > 0:
        return within
    relative = (1 + known * (ratio - ratio.mean()) / average).clamp_min(0)
    level = within.clone()
    level[varies] /= relative + LEAST_RATIO
    return level


def _ridge(statistics: ClassStatistics, standardize: Standardize, keep: Tensor) -> Tensor:
    """Return what is added to each variance (d,): a level, and how much of it by leave-one-out."""
    level, freedom = variance_level(statistics, standardize), statistics.freedom
    if statistics.form == "diagonal":
        return max(DIAGONAL_SAMPLES / (DIAGONAL_SAMPLES + freedom), VARIANCE_FLOOR) * level
    covariance = pooled_covariance(statistics)
    one_level = bool((level == level[0]).all())
    if standardize == "auto" and one_level and freedom > 0 and is_cheap(statistics.dim, freedom + len(statistics)):
        own = variance_level(statistics, True)
        power = OWN_POWER / 2
        if 1 < len(statistics) <= MOST_COMPARED:
            power = OWN_POWER * _preference(statistics, covariance, (level, _between(level, own, OWN_POWER)), keep)
        level = _between(level, own, power)
    return _loading(statistics, covariance, level)[0] * level


def _with_background(statistics: ClassStatistics, background: Background, standardize: Standardize) -> tuple[Tensor, Tensor]:
    """Return a ridge (d,) and a matrix (d, d) of the form that the background suggests, to be added to the covariance.

    Leave-one-out chooses their sizes, as if each were alone, and tells how good they are. For the matrix it does so in
    coordinates in which that is the identity.
    """
    power = KNOWN_POWER if standardize == "auto" else float(standardize)
    plain = _between(variance_level(statistics, False), variance_level(statistics, True), power)
    form = background.ridge(float((1 / statistics.count.double()).mean()), plain.cpu())
    white = projected(statistics, torch.linalg.inv(torch.linalg.cholesky(form)).T)
    level = variance_level(white, False)
    loading, quality = _loading(statistics, pooled_covariance(statistics), plain)
    known, better = _loading(white, pooled_covariance(white), level)
    share = 1 / (1 + math.exp(-KNOWN - math.log((1 - quality) / (1 - better)) / SAME))
    size = float(loading * plain.mean()) ** (1 - share) * float(known * level.mean()) ** share
    return (1 - share) * size / plain.mean() * plain, share * size * form


def _between(average: Tensor, own: Tensor, power: float) -> Tensor:
    """Return a level between the average variance and each feature's own, average^(1 - power) own^power, with the same mean."""
    mixed = (own / average) ** power
    return average * mixed / mixed.mean()


def _preference(
    statistics: ClassStatistics, covariance: SharedCovariance, levels: tuple[Tensor, Tensor], keep: Tensor
) -> float:
    """Return how much the second level is to be preferred, from 0 to 1, by the loss of samples that are left out.

    A number between, not the better one: the loss has an error, and rounding must not decide.
    """
    logs = []
    for level in levels:
        factor = Factor(covariance.plus_diagonal(_loading(statistics, covariance, level)[0] * level), 0.0)
        if not factor.exists:
            return 0.5
        logs.append(math.log(Within.of(statistics, factor, keep).loss() + NO_LOSS))
    count = float(statistics.count.double().mean())
    return 1 / (1 + math.exp((logs[1] - logs[0]) / (EQUAL * (1 + EQUAL_SAMPLES / count))))


def _loading(statistics: ClassStatistics, covariance: SharedCovariance, level: Tensor) -> tuple[float, float]:
    """Return e of the ridge e · level, and how well it predicts samples that are left out, from 0 to below 1."""
    freedom = statistics.freedom
    found = chosen_loadings(covariance, level, statistics.mean, statistics.count, freedom)
    if math.isinf(found.largest):
        return 1.0, 0.0  # there is no covariance, so any number gives the same predictions
    # Leave-one-out finds a range of loadings that are equally good. With few samples the largest is used, with many their
    # middle.
    low = 0.5 * freedom / (freedom + statistics.dim)
    chosen = math.exp(low * math.log(found.smallest) + (1 - low) * math.log(found.largest))
    return max(chosen, VARIANCE_FLOOR), min(found.quality, 1 - NO_LOSS)
