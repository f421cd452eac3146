"""Estimates from noisy sums: what is known of variances and of class means, given how much noise there is.

None of these functions sees data. `amgc.core.release` asks better questions with them, `amgc.core.privacy` computes statistics.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

WINDOWS = (60, 15)  # neighbours on each side: the signal of a direction follows theirs, if they differ from the others
SURE = 6.0  # squared standard errors: averages over neighbours that differ by less do not count
LEAST_SIGNAL, MOST_SIGNAL = 1e-5, 0.98  # of the variance of a direction, between classes


class Spectrum(NamedTuple):
    """Estimated eigenvectors (m, m), in columns, and eigenvalues (m,), all positive, of Σ x xᵀ / n."""

    vectors: Tensor
    values: Tensor


def spectrum(second: Tensor, scale: Tensor, samples: float) -> Spectrum:
    """Return the eigenvectors and eigenvalues of Σ x xᵀ / n without its noise √Q G √Q, G a Wigner matrix of variance 1.

    scale : Q (m, m). In coordinates in which Q = I the noise has eigenvalues up to 2 √m. A larger one, l, is that of a
    direction with θ = (l + √(l² - 4 m)) / 2, of which the found direction has θ - m / θ. The others share what is left of the
    trace, which the noise does not change. The sum of all is at most 1, as of rows of norm 1, and at most two standard
    errors above the trace.
    """
    dim = second.shape[0]
    largest = 2 * math.sqrt(dim)
    values, vectors = torch.linalg.eigh(scale)
    root = values.clamp_min(float(values[-1]) * 1e-12).sqrt()
    half, inverse = (vectors * root) @ vectors.T, (vectors / root) @ vectors.T
    values, vectors = torch.linalg.eigh(symmetric(inverse @ second @ inverse))
    theta = (values + (values.square() - largest**2).clamp_min(0).sqrt()) / 2
    known = values > largest
    found = torch.where(known, theta - dim / theta.clamp_min(1), 0.0)
    rest = float((values.sum() - found.sum()) / (~known).sum().clamp_min(1))
    rest = min(max(rest, 1e-3 * largest), largest)
    values = torch.where(known, found.clamp_min(rest), rest)
    values, vectors = torch.linalg.eigh(symmetric(half @ (vectors * (values / samples)) @ vectors.T @ half))
    values = values.clamp_min(float(values[-1]) * 1e-12)
    uncertain = math.sqrt(2) * float(scale.norm()) / samples  # of the trace
    most = min(1.0, max(float(second.trace()) / samples + 2 * uncertain, uncertain))
    return Spectrum(vectors, values * min(1.0, most / float(values.sum())))


def largest_noise(vectors: Tensor, scale: Tensor, samples: float) -> Tensor:
    """Return the largest eigenvalue that the noise √Q G √Q / n would have if it were everywhere as along each vector."""
    return 2 * math.sqrt(len(scale)) / samples * along_each(vectors, scale)


def along_each(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Return vᵀ M v for each column v."""
    return ((vectors.T @ matrix) * vectors.T).sum(1)


def noise_scale(squares: Tensor) -> Tensor:
    """Return Q of a noise N ≈ √Q G √Q, G a Wigner matrix of variance 1, with E[N²] = Q tr Q (m, m)."""
    scale: Tensor = squares / math.sqrt(max(float(squares.trace()), 1e-300))
    return scale


def symmetric(matrix: Tensor) -> Tensor:
    """Return a matrix that is symmetric up to rounding errors without these. Files store one triangle."""
    return (matrix + matrix.T) / 2


def shrunk_vector(value: Tensor, noise: float) -> Tensor:
    """Return a noisy vector (m,) by James and Stein's estimate: 0 if it may well be noise. Its norm is below 1."""
    square = float(value.square().sum())
    keep = max(1 - len(value) * noise / max(square, 1e-300), 0.0)
    return value * min(keep, 0.99 / max(math.sqrt(square), 1e-300))


def signal(squares: Tensor, noise: Tensor, classes: int) -> Tensor:
    """Return what class means vary by in each direction (m,), in coordinates of total variance 1.

    squares : the average square of the means' coordinates; noise : what noise adds to it. Each square is uncertain by a share
    √(2 / (classes - 1)). So all are averaged, weighted by precision; then over fewer and fewer neighbours, which are similar
    directions. Such an average counts as far as chance does not explain how it differs from the one over more.
    """
    weight = noise.clamp_min(1e-300).square().reciprocal()
    weight = weight / weight.max()
    raw = squares - noise
    found = ((raw * weight).sum() / weight.sum()).expand_as(raw).clamp(LEAST_SIGNAL, MOST_SIGNAL)
    for reach in WINDOWS:
        if len(raw) <= 2 * reach:
            continue
        total = _window(weight, reach)
        near = _window(raw * weight, reach) / total
        chance = 2 / max(classes - 1, 1) * _window(((found + noise) * weight).square(), reach) / total.square()
        keep = (1 - SURE * chance / (near - found).square().clamp_min(1e-300)).clamp_min(0)
        found = (found + keep * (near - found)).clamp(LEAST_SIGNAL, MOST_SIGNAL)
    return found


def _window(values: Tensor, reach: int) -> Tensor:
    """Return sums of values (m,) over `reach` neighbours on each side."""
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
    place = torch.arange(len(values))
    return sums[(place + reach + 1).clamp_max(len(values))] - sums[(place - reach).clamp_min(0)]


def shrunk_counts(values: Tensor, noise: Tensor) -> Tensor:
    """Return noisy counts (K,) drawn towards their average by James and Stein's estimate; exact values do not change."""
    if len(values) < 4 or not bool(noise.any()):
        return values
    centre = values.mean()
    spread = (values - centre).square().sum() / (len(values) - 3)
    return centre + (values - centre) * (1 - noise.mean() / spread.clamp_min(1e-300)).clamp_min(0)
