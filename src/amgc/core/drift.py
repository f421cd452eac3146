"""Drift of features: update class statistics that an old network computed to the current network, without old images.

The only evidence is the drift of the new images, whose features `old` and `new` (n, d) the two networks compute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from amgc.core.inputs import Label
from amgc.core.statistics import ClassStatistics


def displacement(points: Tensor, old: Tensor, new: Tensor, sigma: float) -> Tensor:
    """Return the drift of points (K, d): the mean of new - old, weighted by exp(-|old - point|² / 2σ²) (SDC, Eq. 10)."""
    squares = torch.cdist(points, old, compute_mode="donot_use_mm_for_euclid_dist").square()
    return torch.softmax(-squares / (2 * sigma**2), 1) @ (new - old)


def elastic_displacement(points: Tensor, old: Tensor, new: Tensor, matrix: Tensor, sigma: float) -> Tensor:
    """Return the drift of points (K, d) with distances by a positive semi-definite matrix E (d, d) (EFC).

    The weights are exp(s / 2σ²), with s = -(old - point)ᵀ E (old - point) scaled to [0, 1] over all points and images.
    """
    across, own = points @ matrix @ old.T, (points @ matrix * points).sum(1)
    nearness = 2 * across - own[:, None] - (old @ matrix * old).sum(1)
    low, high = nearness.aminmax()
    scaled = (nearness - low) / (high - low).clamp_min(torch.finfo(nearness.dtype).tiny)
    return torch.softmax(scaled / (2 * sigma**2), 1) @ (new - old)


def linear_map(old: Tensor, new: Tensor, ridge: float) -> Tensor:
    """Return A (d, d) that minimises |old A - new|² + ridge |A|². The ridge grows tenfold while it is too weak to solve."""
    gram, cross = old.T @ old, old.T @ new
    while True:
        system = gram.clone()
        system.diagonal().add_(ridge)
        triangle, failed = torch.linalg.cholesky_ex(system)
        if not bool(failed):
            return torch.cholesky_solve(cross, triangle)
        ridge = max(10 * ridge, torch.finfo(gram.dtype).eps * float(gram.diagonal().mean()))


def projector(moment: Tensor) -> Tensor:
    """Return the projector (d, d) onto the range of a positive semi-definite matrix (d, d), by its numerical rank."""
    values, vectors = torch.linalg.eigh(moment)
    kept: Tensor = vectors[:, values > len(values) * torch.finfo(values.dtype).eps * values[-1]]
    return kept @ kept.T


def move(statistics: ClassStatistics, label: Label, mean: Tensor, covariance: Tensor | None = None) -> None:
    """Replace the mean (d,) of a class, and its covariance (d, d) if it is given. For the form "full"."""
    if statistics.form != "full":
        raise ValueError(f"statistics of the form {statistics.form!r} cannot be moved; use 'full'.")
    row = statistics.index(label)
    statistics.mean[row] = mean.to(statistics.mean)
    if covariance is not None:
        spread = statistics.covariance
        assert isinstance(spread, Tensor)
        spread[row] = (covariance + covariance.T).to(spread) / 2


def transform(statistics: ClassStatistics, label: Label, matrix: Tensor) -> None:
    """Replace the statistics of a class by those of its features times a matrix (d, d): Aᵀ μ and Aᵀ Σ A."""
    row = statistics.index(label)
    spread = statistics.covariance
    assert isinstance(spread, Tensor)
    matrix = matrix.double()
    move(statistics, label, statistics.mean[row] @ matrix, matrix.T @ spread[row].double() @ matrix)
