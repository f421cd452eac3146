"""What Gaussian noise reveals, as (ε, δ)-differential privacy.

Noise of standard deviation σ on a query of sensitivity Δ has the loss (Δ / σ)². Losses of several queries add up exactly, also
if later queries depend on earlier answers: together they are one Gaussian query of the summed loss (Dong, Roth and Su 2022). So
one number for each class is the whole record, and δ for a given ε has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

LARGEST = 100.0  # of epsilon; e^100 gives no protection, and larger numbers overflow


def check_settings(epsilon: Any, delta: Any, lessons: Any, clip: Any, directions: Any) -> None:
    """Raise a ValueError if a setting of `Privacy` is invalid."""
    if not (_is_number(epsilon) and 0 < epsilon <= LARGEST):
        raise ValueError(f"epsilon must be a number above 0 and at most {LARGEST:g}, not {epsilon!r}.")
    if not (_is_number(delta) and 1e-15 <= delta < 0.5):
        raise ValueError(f"delta must be a number from 1e-15 to below 0.5, not {delta!r}.")
    for name, value in {"lessons": lessons, "directions": directions}.items():
        if not (isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1):
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}.")
    if clip is not None and not (_is_number(clip) and 0 < clip < math.inf):
        raise ValueError(f"clip must be a positive number or None, not {clip!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def gaussian_delta(loss: float, epsilon: float) -> float:
    """Return the smallest δ with which a loss is (ε, δ)-private (Balle and Wang 2018, Theorem 8)."""
    if loss == 0:
        return 0.0
    mu = math.sqrt(loss)
    return _normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * _normal(-mu / 2 - epsilon / mu)


def gaussian_loss(epsilon: float, delta: float) -> float:
    """Return the largest loss that is (ε, δ)-private."""
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) < delta:
        low, high = high, 2 * high
    return _bisect(lambda loss: gaussian_delta(loss, epsilon) <= delta, low, high)


def gaussian_epsilon(loss: float, delta: float) -> float:
    """Return the smallest ε with which a loss is (ε, δ)-private."""
    if gaussian_delta(loss, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(loss, high) > delta:
        low, high = high, 2 * high
    return -_bisect(lambda negative: gaussian_delta(loss, -negative) <= delta, -high, -low)


def largest_area(loss: float) -> float:
    """Return the largest area under the ROC curve of any test for a sample: that of two normal distributions √loss apart."""
    return _normal(math.sqrt(loss / 2))


def _normal(x: float) -> float:
    """Return the normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest number at which `holds` is true, to rounding; it is true at `low` and false at `high`."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
