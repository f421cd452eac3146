"""Differential privacy: the sums of one lesson, with noise.

Only three functions see the data: `noisy_counts`, `noisy_sums` and `noisy_squares`. Each limits what one sample can change, by
construction, and adds Gaussian noise for it. Everything else is computed from their answers. docs/mathematics.md derives the
sensitivities and the noise.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from amgc.core.inputs import Label, group_by_label

# Shares of the loss that go to counts, to the common mean, and at most and at least to each of ROUNDS sums of x xᵀ; the sums of
# classes get the rest. Chosen on held-out training features of CIFAR-100; `benchmarks/privacy.py --only shares` compares.
COUNT, CENTRE, SECOND, LEAST = 0.02, 0.002, 0.08, 0.004
ROUNDS = 4
ENOUGH = 0.4  # samples, times √loss, over m^1.5, from which the sums of x xᵀ are worth the most
BITS = 24  # sums and noise are multiples of about 2^-24 of the noise's standard deviation

RandomBytes = Callable[[int], bytes]


class Noisy(NamedTuple):
    """A noisy sum, and the variance of the noise on each number; off the diagonal of a matrix it is half of that."""

    value: Tensor
    noise: float


@dataclass(frozen=True)
class Lesson:
    """All that is released of a lesson; K classes, rows of m numbers.

    classes, count, count_noise : labels, and number of samples of each class (K,).
    centre (m,) : what was subtracted from rows.
    total (K, m) : sums of the classes. total_noise (m, m) : covariance of the noise in each.
    second (m, m) : Σ x xᵀ over all classes. second_noise (m, m) : E[N²] of its noise N.
    """

    classes: list[Label]
    count: Tensor
    count_noise: float
    centre: Tensor
    total: Tensor
    total_noise: Tensor
    second: Tensor
    second_noise: Tensor


def release(
    rows: Tensor, labels: Sequence[Label] | np.ndarray, loss: float, random_bytes: RandomBytes = secrets.token_bytes
) -> Lesson:
    """Return the noisy sums of rows (n, m) of norm at most 1, with one label each. All answers together have this loss.

    Rows are centred at their noisy mean. Noise is the same in all directions, but few directions have most of the variance. So
    rows are scaled before sums are taken: by a rough covariance, to get a better one, several times, and by the last one for
    the sums of classes.
    """
    classes, inverse = group_by_label(labels)
    place = torch.from_numpy(inverse)
    counts = noisy_counts(place, len(classes), loss * COUNT, random_bytes)
    samples = max(float(counts.value.sum()), 1.0)
    share = second_share(samples, loss, rows.shape[1])
    whole = torch.zeros_like(place)
    common = noisy_sums(rows, whole, 1, loss * CENTRE, random_bytes)
    centre = shrunk_vector(common.value[0] / samples, common.noise / samples**2)
    radius = math.sqrt(max(1 - float(centre.square().sum()), 1e-4))  # about the norm of a centred row
    rows = clipped((rows - centre) / radius)

    first = noisy_squares(rows, loss * share, random_bytes)
    second, scale = first.value, math.sqrt(first.noise / 2) * torch.eye(len(centre), dtype=torch.float64)
    for _ in range(ROUNDS - 1):
        rough = spectrum(second, scale, samples)
        # Directions stronger than the noise get variance 1. In the others, the noise gets it.
        deviation = torch.maximum(rough.values, largest_noise(rough.vectors, scale, samples)).sqrt()
        size = math.sqrt(float((rough.values / deviation.square()).sum()))  # about the norm of a row
        again = noisy_squares(rows @ (rough.vectors / (deviation * size)), loss * share, random_bytes)
        second, scale = _joined(second, scale, again, rough.vectors, deviation, size)

    better = spectrum(second, scale, samples)
    rest = loss * (1 - COUNT - CENTRE - ROUNDS * share)
    size = math.sqrt(float(better.values.sqrt().sum()))
    scaled = better.vectors * (better.values**-0.25 / size)  # to standard deviations of √deviation
    back = (better.vectors * (better.values**0.25 * size)).T
    totals = noisy_sums(rows @ scaled, place, len(classes), rest, random_bytes)
    return Lesson(
        classes,
        counts.value,
        counts.noise,
        centre,
        radius * totals.value @ back,
        symmetric(radius**2 * totals.noise * back.T @ back),
        radius**2 * second,
        radius**4 * scale * scale.trace(),
    )


def second_share(samples: float, loss: float, dim: int) -> float:
    """Return the share of the loss for a sum of x xᵀ (m, m): little if noise covers all of it.

    Rows of norm 1 have a variance of 1 / m on average. The noise has eigenvalues up to √(2 m / loss) / n.
    """
    enough: float = samples * math.sqrt(loss) / (ENOUGH * float(dim) ** 1.5)
    return min(max(SECOND * enough**2, LEAST), SECOND)


def _joined(
    second: Tensor, scale: Tensor, again: Noisy, vectors: Tensor, deviation: Tensor, size: float
) -> tuple[Tensor, Tensor]:
    """Return the average of two sums of x xᵀ, weighted by their precision, and Q of its noise √Q G √Q.

    `second` has noise with Q = `scale`; `again` is of rows @ vectors / (deviation size). In its coordinates, the entries of its
    noise are independent, and those of the other one nearly, because there Q is nearly diagonal.
    """
    pairs = torch.outer(deviation, deviation)
    one, other = vectors.T @ second @ vectors / pairs, again.value * size**2
    along = along_each(vectors, scale)
    weight, weight_again = pairs.square() / torch.outer(along, along), 2 / (again.noise * size**4)
    joined = (one * weight + other * weight_again) / (weight + weight_again)
    variance = 1 / (weight + weight_again)
    variance = variance + torch.diag(variance.diagonal())  # twice on the diagonal
    back = vectors * deviation
    squares = (variance @ deviation.square()) * deviation.square()
    return symmetric(back @ joined @ back.T), noise_scale(symmetric((vectors * squares) @ vectors.T))


# ---- the functions that see the data -----------------------------------------------------------------------------------


def noisy_counts(place: Tensor, classes: int, loss: float, random_bytes: RandomBytes) -> Noisy:
    """Return the number of samples of each class (K,)."""
    return _noisy(torch.bincount(place, minlength=classes).double(), loss, 1, random_bytes)


def noisy_sums(rows: Tensor, place: Tensor, classes: int, loss: float, random_bytes: RandomBytes) -> Noisy:
    """Return the sums of rows by class (K, m); rows longer than 1 are scaled down to it. A sample is in one sum."""
    exact = torch.zeros(classes, rows.shape[1], dtype=torch.float64).index_add_(0, place, clipped(rows))
    return _noisy(exact, loss, rows.shape[1], random_bytes)


def noisy_squares(rows: Tensor, loss: float, random_bytes: RandomBytes) -> Noisy:
    """Return Σ x xᵀ (m, m); rows longer than 1 are scaled down to it, so a sample adds a matrix of Frobenius norm at most 1.

    Off the diagonal an entry occurs twice. Times √2, it has the same share in that norm as one on the diagonal.
    """
    rows, dim = clipped(rows), rows.shape[1]
    upper = torch.triu_indices(dim, dim)
    weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2)).double()
    noisy = _noisy((rows.T @ rows)[upper[0], upper[1]] * weight, loss, len(weight), random_bytes)
    made = torch.zeros(dim, dim, dtype=torch.float64)
    made[upper[0], upper[1]] = made[upper[1], upper[0]] = noisy.value / weight
    return Noisy(made, noisy.noise)


def clipped(rows: Tensor) -> Tensor:
    """Return rows, those longer than 1 scaled down to it."""
    rows = rows.double()
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1)  # type: ignore[no-any-return]


def _noisy(exact: Tensor, loss: float, numbers: int, random_bytes: RandomBytes) -> Noisy:
    """Return values with noise; one sample changes `numbers` of them, by a vector of norm at most 1.

    Both are rounded to multiples of one power of two, and added exactly. The result is then a rounding of value plus noise, and
    the low bits of floating-point numbers tell nothing (Mironov 2012). Rounding the values may increase their difference by a
    step each, for which there is more noise.
    """
    step = 2.0 ** (math.floor(math.log2(loss**-0.5)) - BITS)
    deviation = (1 + 2 * step * math.sqrt(numbers)) * loss**-0.5
    noise = standard_normal(exact.numel(), random_bytes).reshape(exact.shape) * (deviation / step)
    return Noisy(((exact / step).round() + noise.round()) * step, deviation**2)


def standard_normal(count: int, random_bytes: RandomBytes = secrets.token_bytes) -> Tensor:
    """Return standard normal numbers (count,), float64, from random bytes: a sign, and 52 bits of the distribution function."""
    words = np.frombuffer(random_bytes(8 * count), dtype="<u8")
    share = torch.from_numpy((words >> np.uint64(12)).astype(np.float64)).add_(0.5).mul_(2.0**-53)  # above 0 and below 1/2
    sign = torch.from_numpy((words & np.uint64(1)).astype(np.float64)).mul_(2).sub_(1)
    normal: Tensor = torch.special.ndtri(share)
    return normal * sign


# ---- estimates from noisy sums ---------------------------------------------------------------------------------------------


class Spectrum(NamedTuple):
    """Estimated eigenvectors (m, m), in columns, and eigenvalues (m,), all positive, of Σ x xᵀ / n."""

    vectors: Tensor
    values: Tensor


def spectrum(second: Tensor, scale: Tensor, samples: float) -> Spectrum:
    """Return the eigenvectors and eigenvalues of Σ x xᵀ / n without its noise √Q G √Q, G a Wigner matrix of variance 1.

    scale : Q (m, m). In coordinates in which Q = I the noise has eigenvalues up to 2 √m. A larger one, l, is that of a
    direction with θ = (l + √(l² - 4 m)) / 2, of which the found direction has θ - m / θ. The others share what is left of the
    trace, which the noise does not change.
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
    return Spectrum(vectors, values.clamp_min(float(values[-1]) * 1e-12))


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
