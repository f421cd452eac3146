"""Choose the loading of a shared covariance's diagonal by leave-one-out, in closed form from the class statistics.

LDA with Σ + e diag(Σ) classifies in the span of ridge regression from features to class indicators Y with the same e. Its
leave-one-out predictions follow from the full fit. With predictions H Y, and h the mean of H's diagonal in place of each entry
(as in generalised cross-validation), they are (H Y - h Y) / (1 - h). The scale of predictions does not matter to a classifier,
so the criterion is not their error but the squared cosine between them and Y. `benchmarks/shared.py --only shrinkage` compares
it with other criteria.

The criterion needs sums over the eigenvalues of the total covariance T, scaled to unit within-class variances. In many
dimensions these sums are computed by Lanczos iterations with the inverse of T + pivot. One factorisation is enough for all e
within a factor `REACH` of the pivot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core import memory, symmetric
from amgc.core.covariance import SharedCovariance
from amgc.core.shared import DOUBLE_UP_TO, random_signs

LOADINGS = 10.0 ** (torch.arange(-32, 9, dtype=torch.float64) / 8)  # from 1e-4, the size of the variance floor, to 10
WITHIN = 0.01  # values this close to the best are equal, and the smallest loading among them is taken
EXACT_UP_TO = 512  # dimensions in which all eigenvalues are cheap
STEPS = 10  # of the Lanczos iteration
REACH = 30.0  # sums are accurate to a percent after `STEPS` for loadings within this factor of the pivot


class Sums(NamedTuple):
    """Values and weights so that Σ weight f(value) is Σ_k π_k² v_kᵀ f(T) v_k (`offsets`) or tr f(T) (`trace`), for any f.

    v_k is the mean of class k minus the overall mean, π_k its share of the samples.
    """

    offsets: tuple[Tensor, Tensor]
    trace: tuple[Tensor, Tensor]


def chosen_loading(covariance: SharedCovariance, mean: Tensor, count: Tensor, freedom: int) -> float:
    """Return e of Σ + e diag(Σ) for class means (K, d), float64, of `count` (K,) samples; inf if there are too few."""
    if len(mean) < 2 or freedom < 1:
        return float("inf")
    total = _Total(covariance, mean, count, freedom)
    if covariance.dim <= EXACT_UP_TO:
        return total.least(LOADINGS, total.exact())[0]
    pivot = min(max(0.1 * covariance.dim / total.samples, 1e-3), 1.0)  # a usual value
    for _ in range(4):
        near = LOADINGS[(pivot / REACH < LOADINGS) & (pivot * REACH > LOADINGS)]
        loading, lowest, highest = total.least(near, total.around(pivot))
        if lowest and near[0] > LOADINGS[0]:
            pivot /= REACH
        elif highest and near[-1] < LOADINGS[-1]:
            pivot *= REACH
        else:
            break
    return loading


def explained(loadings: Tensor, sums: Sums, share: Tensor, samples: int) -> Tensor:
    """Return the squared cosine between class indicators and leave-one-out predictions for each loading; share (K,) is π."""
    e = loadings[:, None]
    values, weights = sums.offsets
    targets = (share * (1 - share)).sum()  # tr(Yᵀ Y) / n, Y centred
    once = (weights / (values + e)).sum(1)  # tr(Yᵀ H Y) / n
    twice = (weights * values / (values + e).square()).sum(1)  # tr(Yᵀ H² Y) / n
    values, weights = sums.trace
    h = (1 + (weights * values / (values + e)).sum(1)) / samples
    along = (once - h * targets).clamp_min(0)
    length = (twice - 2 * h * once + h.square() * targets).clamp_min(1e-300)
    cosine = along.square() / length / targets
    return torch.where(h < 0.999, cosine.clamp(0, 1), 0.0)  # beyond that the fit interpolates: 0 / 0


class _Total:
    """The total covariance T (d, d), scaled to unit within-class variances. It is computed on demand and not stored."""

    def __init__(self, covariance: SharedCovariance, mean: Tensor, count: Tensor, freedom: int) -> None:
        self.covariance, self.freedom, self.samples = covariance, freedom, freedom + len(mean)
        self.share = count.to(mean) / count.sum()
        self.scale = torch.where(covariance.variances > 0, covariance.variances, 1.0).rsqrt()
        self.offsets = (mean - self.share @ mean) * self.scale

    def least(self, loadings: Tensor, sums: Sums) -> tuple[float, bool, bool]:
        """Return the smallest loading as good as the best, whether it is the first, and whether the best is the last."""
        quality = explained(loadings, sums, self.share, self.samples)
        first = int((quality >= (1 - WITHIN) * quality.max()).nonzero()[0])
        last = bool(quality.argmax() == len(loadings) - 1)
        if not bool(quality.max() > 0):
            first, last = len(loadings) - 1, True
        # T is a sum over all samples, Σ one over the degrees of freedom.
        return float(loadings[first]) * self.samples / self.freedom, first == 0, last

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
        values, vectors = torch.linalg.eigh(symmetric.mirrored(self.upper()).double())
        weights = (self.share[:, None] * self.offsets @ vectors).square().sum(0)
        return Sums((values.clamp_min(0), weights), (values.clamp_min(0), torch.ones_like(values)))

    def around(self, pivot: float) -> Sums:
        """Return the sums for loadings near the pivot."""
        matrix = self.upper()
        matrix.diagonal().add_(pivot)
        if not symmetric.factorise(matrix):  # T is nearly singular, and indefinite by rounding
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
