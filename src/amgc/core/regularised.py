"""Compute a classifier from class statistics, also of few samples: regularise, solve, calibrate."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core import symmetric
from amgc.core.background import Background
from amgc.core.calibration import NOISY, relative_scale, temperature
from amgc.core.expected import Expected, expected
from amgc.core.losses import margins
from amgc.core.shrinkage import Regularisation, Standardize, pooled_covariance, regularisation
from amgc.core.solver import Balance, Head, alike, solve, solve_shared
from amgc.core.statistics import ClassStatistics
from amgc.core.within import Within

TOLERANCE = 1e-5  # of the solve; accuracies do not change below 1e-3


class Solution(NamedTuple):
    """A solved and calibrated head. Classes are in order of arrival."""

    head: Head
    temperature: float
    margins: Tensor  # m_k (K,), 0 for new classes
    expected: Expected | None = None


def solve_regularised(
    statistics: ClassStatistics,
    *,
    is_new: Tensor,
    margin: float,
    balance: Balance,
    shrinkage: tuple[float, float] | None,
    standardize: Standardize,
    background: Background | None = None,
    noisy: bool = False,
) -> Solution:
    """Return the head for regularised statistics, the temperature of its probabilities, and its margins.

    shrinkage : towards the pooled covariance and towards its diagonal. None chooses by the statistics, and the background.
    noisy : the statistics follow from noisy sums. Leaving samples out then tells nothing.
    """
    chosen = regularisation(statistics, shrinkage, standardize, background)
    if statistics.form != "diagonal" and alike(is_new, margin) and not bool(chosen.own.any()):
        return _solve_pooled(statistics, chosen, is_new, balance, noisy)
    pooled = statistics.pooled()
    ridge = chosen.ridge.to(pooled)
    covariances = statistics.covariances.shrunk(pooled, (1 - chosen.own).to(pooled), chosen.to_diagonal)
    head = solve(chosen.mean, covariances, is_new=is_new, margin=margin, balance=balance, ridge=ridge, tolerance=TOLERANCE)
    if not head.converged and head.gap > 1e-3 * max(head.loss, 0.01):
        warnings.warn(
            f"the solver did not converge: the loss {head.loss:.3g} may be {head.gap:.1g} above the minimum. "
            "Use more shrinkage, or dtype='float64'.",
            stacklevel=2,
        )
    average = covariances.average(torch.full((len(statistics),), 1 / len(statistics)).to(pooled.device))
    average = average + (ridge if average.ndim == 1 else torch.diag(ridge))
    within = Within.of(statistics, average.double(), chosen.keep)
    old = (~is_new).to(head.weight)
    return _calibrated(within, head, margins(head.weight, covariances, margin) * old, noisy)


def _solve_pooled(
    statistics: ClassStatistics, chosen: Regularisation, is_new: Tensor, balance: Balance, noisy: bool
) -> Solution:
    """Return the same in closed form, for classes that all have the pooled covariance, none of them enlarged."""
    pooled = pooled_covariance(statistics)
    covariance = replace(pooled, keep=(1 - chosen.to_diagonal) * pooled.keep).plus_diagonal(chosen.ridge)
    if chosen.prior is None:
        head, closed = solve_shared(chosen.mean, covariance, is_new, balance)
        return _calibrated(Within.of(statistics, closed.factor, chosen.keep), head, torch.zeros_like(head.bias), noisy)
    covariance = covariance.plus(chosen.prior)
    head, _ = solve_shared(chosen.mean, covariance, is_new, balance)
    within = Within.of(statistics, symmetric.mirrored(covariance.upper) + torch.diag(covariance.extra), chosen.keep)
    size = float(chosen.prior.trace())
    known = size / (size + float(chosen.ridge.sum()))
    return _calibrated(within, head, torch.zeros_like(head.bias), noisy, known)


def _calibrated(within: Within, head: Head, margins: Tensor, noisy: bool, known: float = 0.0) -> Solution:
    if noisy:
        return Solution(head, NOISY * relative_scale(within, head), margins, None)
    degree = temperature(within, head, known)
    return Solution(head, degree, margins, expected(within, head, degree))
