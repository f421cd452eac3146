"""The classifier for statistics of few samples: shrink, solve, calibrate."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core.calibration import Correction, correction, shared_correction, shared_temperature, temperature
from amgc.core.losses import margins
from amgc.core.shrinkage import towards_diagonal, towards_pooled
from amgc.core.solver import Balance, Head, alike, solve, solve_shared
from amgc.core.statistics import ClassStatistics

VARIANCE_FLOOR = 1e-4  # added to each variance, as a share of the feature's total variance
TOLERANCE = 1e-5  # of the solve; accuracies do not change below 1e-3


class Solution(NamedTuple):
    """A solved and calibrated head. Classes are in order of arrival."""

    head: Head
    temperature: float
    margins: Tensor  # m_k (K,), 0 for new classes
    correction: Correction | None = None  # how new samples differ from those of the fit; None for a solution from a file


def solve_regularised(
    statistics: ClassStatistics,
    *,
    is_new: Tensor,
    margin: float,
    balance: Balance,
    shrinkage: tuple[float, float] | None,
    standardize: bool,
) -> Solution:
    """Return the head for shrunk covariances, the temperature of its probabilities, and its margins.

    shrinkage : towards the pooled covariance and towards its diagonal. None chooses both by the number of samples.
    standardize : the variance floor is a share of each feature's own total variance, not of their average.
    """
    to_diagonal = towards_diagonal(statistics) if shrinkage is None else shrinkage[1]
    if statistics.form == "shared" and alike(is_new, margin):
        return _solve_shared(statistics, is_new, balance, to_diagonal, standardize)
    pooled = statistics.pooled()
    to_pooled = torch.as_tensor(towards_pooled(statistics) if shrinkage is None else shrinkage[0]).expand(len(statistics))
    covariances = statistics.covariances.shrunk(pooled, to_pooled.to(pooled), to_diagonal)
    within = pooled if pooled.ndim == 1 else pooled.diagonal()
    floor = _floor(statistics.mean, within.double(), standardize).to(pooled.dtype)

    head = solve(statistics.mean, covariances, is_new=is_new, margin=margin, balance=balance, ridge=floor, tolerance=TOLERANCE)
    if not head.converged and head.gap > 1e-3 * max(head.loss, 0.01):
        warnings.warn(
            f"the solver did not converge: the loss {head.loss:.3g} may be {head.gap:.1g} above the minimum. "
            "Use more shrinkage, or dtype='float64'.",
            stacklevel=2,
        )
    average = covariances.average(torch.full((len(statistics),), 1 / len(statistics)).to(pooled.device))
    average = average + (floor if average.ndim == 1 else torch.diag(floor))
    old = (~is_new).to(head.weight)
    correct = correction(head, statistics, average, to_pooled, to_diagonal)
    return Solution(
        head,
        temperature(head, statistics, average, to_pooled, to_diagonal, correct),
        margins(head.weight, covariances, margin) * old,
        correct,
    )


def _solve_shared(
    statistics: ClassStatistics, is_new: Tensor, balance: Balance, to_diagonal: float, standardize: bool
) -> Solution:
    """Do the same in closed form, if all classes have one covariance and none is enlarged."""
    within = statistics.shared()
    floor = _floor(statistics.mean, within.variances, standardize)
    covariance = replace(within, keep=(1 - to_diagonal) * within.keep).plus_diagonal(floor)
    head, closed = solve_shared(statistics.mean, covariance, is_new, balance)
    fitted = max(statistics.dim - closed.factor.share(closed.factor.covariance.extra), 0.0)
    divisor, correct = shared_temperature(head, statistics, fitted), shared_correction(statistics, fitted)
    return Solution(head, divisor, torch.zeros_like(head.bias), correct)


def _floor(mean: Tensor, within: Tensor, standardize: bool) -> Tensor:
    """Return the variance floor (d,): a share of each feature's total variance, or of their average."""
    total = within + mean.var(0, correction=0).to(within.device)
    level = total if standardize else total.mean().expand_as(total)
    # The variance of a constant feature is rounding error. Any positive floor gives it no weight.
    constant = total.sqrt() <= 1e-12 * mean.abs().amax(0).to(total)
    return VARIANCE_FLOOR * torch.where(constant, 1.0, level)
