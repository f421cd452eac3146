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

from amgc.core.estimates import along_each, largest_noise, noise_scale, shrunk_vector, spectrum, symmetric
from amgc.core.inputs import Label, group_by_label
from amgc.core.narrowing import Narrowing

# Shares of the loss that go to counts (at least, each time), to the common mean (at least), and to each of ROUNDS sums of x xᵀ
# (at most and at least). The sums of classes get the rest. Chosen on held-out training features;
# `benchmarks/privacy.py --only shares` compares.
COUNT, CENTRE, SECOND, LEAST = 0.01, 0.002, 0.08, 0.004
COMMON = 0.5  # the squared norm of the common mean of rows, as `centre_share` expects it
ROUNDS = 4
DIRECTIONS, FEWEST = 6.0, 32  # directions for each sample of a class, times √loss
ENOUGH = 0.4  # samples, times √loss, over m^1.5, from which the sums of x xᵀ are worth the most
GRID = 2.0**-15  # rows are multiples of it, so that their sums are exact
BITS = 16  # noisy sums are multiples of about 2^-16 of the noise's standard deviation

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
    rows: Tensor,
    labels: Sequence[Label] | np.ndarray,
    loss: float,
    random_bytes: RandomBytes = secrets.token_bytes,
    *,
    narrow: Narrowing | None = None,
) -> Lesson:
    """Return the noisy sums of rows (n, m) of norm at most 1, with one label each. All answers together have this loss.

    narrow : project rows to as many of these directions as the noisy counts and the loss suggest.

    Rows are centred at their noisy mean. Noise is the same in all directions, but few directions have most of the variance. So
    rows are scaled before sums are taken: by a rough covariance, to get a better one, several times, and by the last one for
    the sums of classes.
    """
    classes, inverse = group_by_label(labels)
    place = torch.from_numpy(inverse)
    counts = noisy_counts(place, len(classes), loss * COUNT, random_bytes)
    samples = max(float(counts.value.sum()), 1.0)
    if narrow is not None:
        rows = rows.double() @ narrow(enough_directions(samples / len(classes), loss, rows.shape[1]))
    share = second_share(samples, loss, rows.shape[1])
    whole = torch.zeros_like(place)
    centring = centre_share(samples, loss, rows.shape[1])
    common = noisy_sums(rows, whole, 1, loss * centring, random_bytes)
    centre = shrunk_vector(common.value[0] / samples, common.noise / samples**2)
    radius = math.sqrt(max(1 - float(centre.square().sum()), 1e-4))  # about the norm of a centred row
    rows = clipped((rows - centre) / radius)
    counting = count_share(common.noise * len(centre) / samples**2)
    counts = _averaged(counts, noisy_counts(place, len(classes), loss * counting, random_bytes))

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
    rest = loss * (1 - COUNT - counting - centring - ROUNDS * share)
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


def enough_directions(count: float, loss: float, dim: int) -> int:
    """Return the number of directions in which classes of `count` samples are told apart best.

    Fewer directions have less noise in all and keep the distances between rows, more or less. With few samples, too little is
    left of the loss, or known of the common mean, in more.
    """
    enough = max(round(DIRECTIONS * count * math.sqrt(loss)), FEWEST)
    return enough if enough <= dim / 3 else dim


def centre_share(samples: float, loss: float, dim: int) -> float:
    """Return the share of the loss for the common mean (m,): that with which sums of centred rows are known best.

    With a share f, the mean c of rows of norm 1 has noise of total variance e = m / (f loss n²). Drawn towards 0 by
    ‖c‖² / (‖c‖² + e), it leaves rows with the squared norm r² = 1 - ‖c‖⁴ / (‖c‖² + e). In units of rows, the variance of noise
    in their sums is then in proportion to r² / (1 - f).
    """
    shares = torch.logspace(math.log10(CENTRE), math.log10(0.3), 60, dtype=torch.float64)
    noise = dim / (shares * loss * samples**2)
    return float(shares[((1 - COMMON**2 / (COMMON + noise)) / (1 - shares)).argmin()])


def count_share(noise: float) -> float:
    """Return the share of the loss for the second answer to the counts, from the total variance of noise in the common mean.

    A wrong count leaves a part of the mean c that rows still have in common in the mean of a class. In the product with another
    row, the noise in counts adds ‖c‖⁴ / f to the 1 / (1 - f) of that in sums. (1 + ‖c‖⁴ / f) / (1 - f) is least for this f.
    """
    left = COMMON * noise / (COMMON + noise)  # ‖c‖², after the common mean was shrunk and subtracted
    return max(left * (math.sqrt(1 + left**2) - left), COUNT)


def second_share(samples: float, loss: float, dim: int) -> float:
    """Return the share of the loss for a sum of x xᵀ (m, m): little if noise covers all of it.

    Rows of norm 1 have a variance of 1 / m on average. The noise has eigenvalues up to √(2 m / loss) / n.
    """
    enough: float = samples * math.sqrt(loss) / (ENOUGH * float(dim) ** 1.5)
    return min(max(SECOND * enough**2, LEAST), SECOND)


def _averaged(one: Noisy, other: Noisy) -> Noisy:
    """Return the average of two answers to the same question, weighted by precision."""
    share = other.noise / (one.noise + other.noise)
    return Noisy(share * one.value + (1 - share) * other.value, share * one.noise)


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
    return _noisy(torch.bincount(place, minlength=classes).double(), loss, random_bytes)


def noisy_sums(rows: Tensor, place: Tensor, classes: int, loss: float, random_bytes: RandomBytes) -> Noisy:
    """Return the sums of rows by class (K, m); rows longer than 1 are scaled down to it. A sample is in one sum."""
    exact = torch.zeros(classes, rows.shape[1], dtype=torch.float64).index_add_(0, place, fixed(rows))
    return _noisy(exact, loss, random_bytes)


def noisy_squares(rows: Tensor, loss: float, random_bytes: RandomBytes) -> Noisy:
    """Return Σ x xᵀ (m, m); rows longer than 1 are scaled down to it, so a sample adds a matrix of Frobenius norm at most 1.

    Off the diagonal an entry occurs twice in that norm, so once with half of the variance.
    """
    rows, dim = fixed(rows), rows.shape[1]
    upper = torch.triu_indices(dim, dim)
    weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(0.5)).double()
    noisy = _noisy((rows.T @ rows)[upper[0], upper[1]], loss, random_bytes, weight)
    made = torch.zeros(dim, dim, dtype=torch.float64)
    made[upper[0], upper[1]] = made[upper[1], upper[0]] = noisy.value
    return Noisy(made, noisy.noise)


def clipped(rows: Tensor) -> Tensor:
    """Return rows, those longer than 1 scaled down to it."""
    rows = rows.double()
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1)  # type: ignore[no-any-return]


def fixed(rows: Tensor) -> Tensor:
    """Return clipped rows with each number rounded towards 0, to a multiple of `GRID`.

    Sums of them and of their products are then exact for up to four million rows. Sums of other floating-point numbers are
    rounded on the way, and one row more may change the rounding of all later ones (Casacuberta and others 2022).
    """
    return (clipped(rows) / GRID).trunc() * GRID


def _noisy(exact: Tensor, loss: float, random_bytes: RandomBytes, weight: Tensor | None = None) -> Noisy:
    """Return values, multiples of GRID², with noise; one sample changes them by a vector of norm at most 1.

    The noise is rounded to a multiple of GRID² as well, so it is added exactly. Only the noisy value is rounded further. The
    low bits of floating-point numbers tell nothing then (Mironov 2012).
    """
    noise = standard_normal(exact.numel(), random_bytes).reshape(exact.shape) * loss**-0.5
    noise = noise if weight is None else noise * weight
    step = 2.0 ** (math.floor(math.log2(loss**-0.5)) - BITS)
    return Noisy(((exact + (noise / GRID**2).round() * GRID**2) / step).round() * step, 1 / loss)


def standard_normal(count: int, random_bytes: RandomBytes = secrets.token_bytes) -> Tensor:
    """Return standard normal numbers (count,), float64, from random bytes: a sign, and 105 bits of the distribution function.

    With 52 bits there would be gaps between the numbers beyond 6 that are wider than those between noisy sums. One of a million
    numbers lies there more often than δ, and would tell which sums are impossible.
    """
    words = np.frombuffer(random_bytes(16 * count), dtype="<u8").reshape(count, 2)
    high, low = (words[:, 0] >> np.uint64(12)).astype(np.float64), (words[:, 1] >> np.uint64(11)).astype(np.float64)
    share = torch.from_numpy((high + (low + 0.5) * 2.0**-53) * 2.0**-53)  # above 0, and 1/2 at most
    sign = torch.from_numpy((words[:, 0] & np.uint64(1)).astype(np.float64)).mul_(2).sub_(1)
    normal: Tensor = torch.special.ndtri(share)
    return normal * sign
