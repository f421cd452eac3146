"""L-BFGS for smooth convex functions, with an estimate of the distance to the minimum."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

MEMORY = 30  # pairs that L-BFGS stores
WINDOW = 5  # the gain of this many iterations is a lower bound of the estimated gap
LEAST_LOSS = 1e-2  # the gap is relative to the loss, but at least to this, if classes hardly overlap


@dataclass(frozen=True)
class Outcome:
    """The last point of the descent. `gap` estimates how far `value` is above the minimum."""

    point: Tensor
    value: float
    gradient_norm: float
    gap: float
    iterations: int
    evaluations: int
    converged: bool


def minimise(
    objective: Callable[[Tensor], tuple[float, Tensor]],
    point: Tensor,
    tolerance: float,
    max_iterations: int,
    first_step: float,
) -> Outcome:
    """Minimise by L-BFGS with a weak-Wolfe bisection line search, until the estimated gap is below `tolerance` · value."""
    value, gradient = objective(point)
    evaluations, pairs = 1, deque[tuple[Tensor, Tensor, float]](maxlen=MEMORY)
    scale, iteration, gap, converged = first_step, 0, float("inf"), False
    recent = deque([value], maxlen=WINDOW)  # the values of the last iterations
    for iteration in range(max_iterations + 1):
        direction = _two_loop(gradient, pairs, scale)
        slope = float((direction * gradient).sum())
        # The decrement alone is too small, because L-BFGS knows only the curvature along its path.
        gap = max(-slope / 2, recent[0] - value)
        recent.append(value)
        converged = gap <= tolerance * max(value, LEAST_LOSS) and len(recent) == WINDOW
        if converged or iteration == max_iterations:
            break
        low, high, step = 0.0, float("inf"), 1.0
        for _ in range(12):
            trial = point + step * direction
            trial_value, trial_gradient = objective(trial)
            evaluations += 1
            if not trial_value <= value + 1e-4 * step * slope:
                high = step
            elif float((direction * trial_gradient).sum()) < 0.9 * slope:
                low = step
            else:
                break
            step = 2 * low if high == float("inf") else (low + high) / 2
        else:  # rounding allows no further decrease
            converged = gap <= tolerance * max(value, LEAST_LOSS)
            break
        moved, turned = trial - point, trial_gradient - gradient
        point, value, gradient = trial, trial_value, trial_gradient
        curvature = float((moved * turned).sum())
        if curvature > 0:
            pairs.append((moved, turned, curvature))
            scale = curvature / float(turned.square().sum())
    return Outcome(point, value, float(gradient.norm()), gap, iteration, evaluations, converged)


def _two_loop(gradient: Tensor, pairs: deque[tuple[Tensor, Tensor, float]], scale: float) -> Tensor:
    """Return -H g by L-BFGS's two-loop recursion."""
    direction = -gradient
    shares = []
    for moved, turned, curvature in reversed(pairs):
        share = float((moved * direction).sum()) / curvature
        shares.append(share)
        direction = direction.sub(turned, alpha=share)
    direction = direction * scale
    for (moved, turned, curvature), share in zip(pairs, reversed(shares), strict=True):
        correction = float((turned * direction).sum()) / curvature
        direction = direction.add(moved, alpha=share - correction)
    return direction
