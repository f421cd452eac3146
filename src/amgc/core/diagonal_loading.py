"""Choose how much to add to the diagonal of a shared covariance, by leave-one-out in closed form from the class statistics.

The loading is e in Σ + e diag(level). LDA with this covariance classifies in the span of ridge regression from features to
class indicators Y with the same e, whose leave-one-out predictions follow from the full fit. If H Y are the predictions, and
the mean h of H's diagonal replaces each of its entries (as in generalised cross-validation), they are (H Y - h Y) / (1 - h).
The scale of predictions does not matter to a classifier. So the criterion is not their error, but the squared cosine between
them and Y. `benchmarks/shared.py --only shrinkage` compares it with other criteria.

The criterion needs sums over the eigenvalues of the total covariance T, scaled to a level of 1. In many dimensions, they are
computed by Lanczos iterations with the inverse of T + pivot. One factorisation suffices for all e within a factor `REACH` of
the pivot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core import memory, symmetric
from amgc.core.covariance import SharedCovariance
from amgc.core.shared import DOUBLE_UP_TO, random_signs

LOADINGS = 10.0 ** (torch.arange(-32, 17, dtype=torch.float64) / 8)  # from 1e-4, the size of the variance floor, to 100
WITHIN = 0.01  # qualities that differ from the best by less than this share of it are equal,
ERRORS = 0.1  # and those that differ by less than this many standard errors of the best
ROUNDING = 1e-5  # share of the class indicators that rounding seems to leave unexplained; statistics may be float32
EXACT_UP_TO = 768  # dimensions in which all eigenvalues are cheap
MANY = 2048  # samples up to which those of a T of lower rank are, too
STEPS = 10  # of the Lanczos iteration
REACH = 30.0  # sums are accurate to a percent after `STEPS` for loadings within this factor of the pivot


class Sums(NamedTuple):
    """Values and weights such that Σ weight f(value) is Σ_k π_k² v_kᵀ f(T) v_k (`offsets`) or tr f(T) (`trace`), for any f.

    v_k is the mean of class k minus the overall mean, π_k its share of the samples.
    """

    offsets: tuple[Tensor, Tensor]
    trace: tuple[Tensor, Tensor]


class Loadings(NamedTuple):
    """The smallest and the largest loading that are about as good as the best, by `WITHIN` and by `ERRORS`.

    quality : of the best, from 0 to 1.
    """

    smallest: float
    largest: float
    quality: float


def chosen_loadings(covariance: SharedCovariance, level: Tensor, mean: Tensor, count: Tensor, freedom: int) -> Loadings:
    """Return e of Σ + e diag(level), level (d,), for class means (K, d), float64, of `count` (K,) samples.

    They are inf if there are too few samples to choose.
    """
    if len(mean) < 2 or freedom < 1:
        return Loadings(float("inf"), float("inf"), 0.0)
    total = _Total(covariance, level, mean, count, freedom)
    if is_cheap(covariance.dim, total.samples):
        return total.best(LOADINGS, explained(LOADINGS, total.exact(), total.share, total.samples))[0]
    quality = torch.full_like(LOADINGS, float("nan"))
    pivot = min(max(0.1 * covariance.dim / total.samples, 1e-3), 1.0)  # a typical value
    for _ in range(6):
        near = (pivot / REACH < LOADINGS) & (pivot * REACH > LOADINGS) & quality.isnan()
        quality[near] = explained(LOADINGS[near], total.around(pivot), total.share, total.samples)
        known = ~quality.isnan()
        found, first, last = total.best(LOADINGS[known], quality[known])
        if first and not known[0]:
            pivot = float(LOADINGS[known][0]) / REACH * 1.5
        elif last and not known[-1]:
            pivot = float(LOADINGS[known][-1]) * REACH / 1.5
        else:
            break
    return found


def is_cheap(dim: int, samples: int) -> bool:
    """Return whether the eigenvalues of T are computed, because that takes little time."""
    return dim <= EXACT_UP_TO or samples <= min(dim // 2, MANY)


def explained(loadings: Tensor, sums: Sums, share: Tensor, samples: int) -> Tensor:
    """Return the squared cosine between class indicators and leave-one-out predictions for each loading; share (K,) is π."""
    e = loadings[:, None]
    targets = (share * (1 - share)).sum()  # tr(Yᵀ Y) / n, Y centred
    values, weights = sums.offsets
    weights = torch.where(values > 0, weights / values.clamp_min(1e-300), 0.0)  # Σ weight f(value) is now tr(Yᵀ f(T) Y) / n
    outside = targets - weights.sum()  # no features predict this part of Y
    if outside < ROUNDING * targets:
        outside = torch.zeros_like(targets)
    # With 1 - H and 1 - h in place of H and h, nothing cancels where the fit nearly interpolates.
    left = e / (values + e)
    once = outside + (weights * left).sum(1)  # tr(Yᵀ (1 - H) Y) / n
    twice = outside + (weights * left.square()).sum(1)  # tr(Yᵀ (1 - H)² Y) / n
    values, weights = sums.trace
    free = (samples - 1 - weights.sum() + (weights * e / (values + e)).sum(1)) / samples  # 1 - h
    along = (free * targets - once).clamp_min(0)
    length = (free.square() * targets - 2 * free * once + twice).clamp_min(1e-300)
    cosine = along.square() / length / targets
    return torch.where(free > 0.001, cosine.clamp(0, 1), 0.0)  # beyond that the fit interpolates: 0 / 0


class _Total:
    """The total covariance T (d, d), scaled to a level of 1. It is computed on demand and not stored."""

    def __init__(self, covariance: SharedCovariance, level: Tensor, mean: Tensor, count: Tensor, freedom: int) -> None:
        self.covariance, self.freedom, self.samples = covariance, freedom, freedom + len(mean)
        self.share = count.to(mean) / count.sum()
        self.scale = torch.where(level > 0, level, 1.0).to(mean).rsqrt()
        self.offsets = (mean - self.share @ mean) * self.scale

    def best(self, loadings: Tensor, quality: Tensor) -> tuple[Loadings, bool, bool]:
        """Return the loadings about as good as the best, and whether they include the first and the last of `loadings`."""
        best = quality.max()
        if not bool(best > 0):  # the classes cannot be distinguished
            largest = float(loadings[-1]) * self.samples / self.freedom
            return Loadings(largest, largest, 0.0), False, True
        error = 2 * best.sqrt() * (1 - best) / self.samples**0.5  # standard error of a squared correlation
        enough, also_enough = quality - (1 - WITHIN) * best, quality - (best - ERRORS * error)
        first, last = int((enough >= 0).nonzero()[0]), int((also_enough >= 0).nonzero()[-1])
        ends = _crossing(loadings, enough, first, first - 1), _crossing(loadings, also_enough, last, last + 1)
        # T is divided by the number of samples, Σ by the degrees of freedom.
        smallest, largest = (end * self.samples / self.freedom for end in ends)
        return Loadings(smallest, largest, float(best)), first == 0, last == len(loadings) - 1

    def upper(self) -> Tensor:
        kept = self.covariance.upper
        double = kept.dtype == torch.float64 or self.covariance.dim <= DOUBLE_UP_TO
        dtype = torch.float64 if double else torch.float32
        memory.check(
            self.covariance.dim, dtype, 1, 8 * len(self.share), kept.device, "choosing a loading", "Use fewer features."
        )
        matrix = torch.empty(kept.shape, dtype=dtype, device=kept.device)
        symmetric.scaled_into(matrix, kept, self.scale * (self.covariance.keep * self.freedom / self.samples) ** 0.5)
        symmetric.add_gram(matrix, (self.offsets * self.share.sqrt()[:, None]).to(dtype))
        return matrix

    def exact(self) -> Sums:
        matrix = symmetric.mirrored(self.upper()).double()
        rank = self.samples - 1
        if rank < len(matrix):  # T varies in fewer directions than there are samples: those of a few products with it
            start = torch.randn(len(matrix), rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            basis = torch.linalg.qr(matrix @ start.to(matrix))[0]
            values, inside = torch.linalg.eigh(basis.T @ matrix @ basis)
            vectors = basis @ inside
        else:
            values, vectors = torch.linalg.eigh(matrix)
        weights = (self.share[:, None] * self.offsets @ vectors).square().sum(0)
        return Sums((values.clamp_min(0), weights), (values.clamp_min(0), torch.ones_like(values)))

    def around(self, pivot: float) -> Sums:
        """Return the sums for loadings near the pivot."""
        matrix = self.upper()
        matrix.diagonal().add_(pivot)
        if not symmetric.factorise(matrix):  # T is nearly singular, and indefinite because of rounding
            del matrix
            return self.around(10 * pivot)
        signs = random_signs(len(matrix)).to(matrix)
        starts = torch.cat([(self.share[:, None] * self.offsets).T.to(matrix), signs], 1)
        inverse, weights = _lanczos(matrix, starts)
        values = (1 / inverse.clamp_min(1e-30) - pivot).clamp_min(0)
        classes = len(self.share)
        return Sums(
            (values[:classes].flatten(), weights[:classes].flatten()),
            (values[classes:].flatten(), weights[classes:].flatten() / signs.shape[1]),
        )


def _crossing(loadings: Tensor, enough: Tensor, inside: int, outside: int) -> float:
    """Return the loading between two neighbours on the grid at which `enough` is 0, by interpolation.

    Rounding errors in `enough` then change the loading only slightly.
    """
    if not 0 <= outside < len(loadings):
        return float(loadings[inside])
    share = float(enough[inside] / (enough[inside] - enough[outside]))
    return float(loadings[inside] * (loadings[outside] / loadings[inside]) ** share)


def _lanczos(factor: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and weights (m, STEPS), float64, with Σ weight f(value) ≈ xᵀ f(M⁻¹) x for starts x (d, m), M = UᵀU."""
    size = starts.double().norm(dim=0)
    tiny = torch.finfo(starts.dtype).tiny
    before, now, beta = torch.zeros_like(starts), starts / size.clamp_min(tiny).to(starts), torch.zeros_like(starts[0])
    three = torch.zeros(len(size), STEPS, STEPS, dtype=torch.float64, device=starts.device)  # the tridiagonal matrices
    for step in range(STEPS):
        pushed = symmetric.backward(factor, symmetric.forward(factor, now)).sub_(before * beta)
        alpha = (pushed * now).sum(0)
        pushed.sub_(now * alpha)
        beta = pushed.norm(dim=0)
        three[:, step, step] = alpha.double()
        if step + 1 < STEPS:
            three[:, step, step + 1] = three[:, step + 1, step] = beta.double()
        before, now = now, pushed.div_(beta.clamp_min(tiny))
    values, vectors = torch.linalg.eigh(three)
    return values, vectors[:, 0].square() * size.square()[:, None]
