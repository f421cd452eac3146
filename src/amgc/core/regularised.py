"""The classifier for statistics of finitely many samples: shrink, solve, calibrate."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core.calibration import temperature
from amgc.core.gaussian import oas
from amgc.core.losses import margins
from amgc.core.solver import Balance, Head, solve
from amgc.core.statistics import ClassStatistics

VARIANCE_FLOOR = 1e-4  # added to each variance, as a share of the feature's total variance
POOLED_SAMPLES = 3  # per feature: what the pooled covariance is worth beside a class's own
TOLERANCE = 1e-5  # of the solve; accuracies do not change below 1e-3


class Solution(NamedTuple):
    """What an estimator needs: head and margins with the classes in order of arrival."""

    head: Head
    temperature: float
    margins: Tensor  # m_k, 0 for the new classes, (K,)


def solve_regularised(
    statistics: ClassStatistics,
    *,
    is_new: Tensor,
    margin: float,
    balance: Balance,
    shrinkage: tuple[float, float] | None,
    standardize: bool,
) -> Solution:
    """The head for shrunk covariances, the temperature of its probabilities, and the margins that it was solved with.

    shrinkage : towards the pooled covariance and towards its diagonal; None goes by the number of samples.
    standardize : the floor under every variance is measured by each feature's own total variance, not by their average.
    """
    pooled = statistics.pooled()
    towards_pooled, towards_diagonal = automatic_shrinkage(statistics, pooled) if shrinkage is None else shrinkage
    towards_pooled = torch.as_tensor(towards_pooled).expand(len(statistics))
    covariances = statistics.covariances.shrunk(pooled, towards_pooled.to(pooled), towards_diagonal)

    within = pooled if pooled.ndim == 1 else pooled.diagonal()
    total = within.double() + statistics.mean.var(0, correction=0).to(pooled.device)
    level = total if standardize else total.mean().expand_as(total)
    # A constant feature has no variance beyond rounding; any positive floor leaves it without weight.
    constant = total.sqrt() <= 1e-12 * statistics.mean.abs().amax(0).to(total)
    floor = (VARIANCE_FLOOR * torch.where(constant, 1.0, level)).to(pooled.dtype)

    head = solve(statistics.mean, covariances, is_new=is_new, margin=margin, balance=balance, ridge=floor, tolerance=TOLERANCE)
    if not head.converged and head.gap > 1e-3 * max(head.loss, 0.01):
        warnings.warn(
            f"the classifier was not solved to the end: its loss {head.loss:.3g} may be {head.gap:.1g} above the minimum. "
            "More shrinkage, or dtype='float64', makes the problem easier.",
            stacklevel=2,
        )
    average = covariances.average(torch.full((len(statistics),), 1 / len(statistics)).to(pooled.device))
    average = average + (floor if average.ndim == 1 else torch.diag(floor))
    old = (~is_new).to(head.weight)
    return Solution(
        head,
        temperature(head, statistics, average, towards_pooled, towards_diagonal),
        margins(head.weight, covariances, margin) * old,
    )


def automatic_shrinkage(statistics: ClassStatistics, pooled: Tensor) -> tuple[Tensor, float]:
    """Towards the pooled covariance, per class (K,), and towards its diagonal. Measured in `benchmarks/defaults.py`."""
    prior = POOLED_SAMPLES * statistics.dim
    towards_pooled = prior / (prior + statistics.count.double())
    return towards_pooled, 0.0 if pooled.ndim == 1 else oas(pooled, int((statistics.count - 1).sum()))
