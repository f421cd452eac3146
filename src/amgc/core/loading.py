"""How much to load the diagonal of a shared covariance, from the kept statistics alone: leave-one-out in closed form.

LDA with Σ + e diag(Σ) classifies in the span of ridge regression from features to class indicators Y with the same e. Its
predictions for samples that are left out are known without leaving any out: with H the matrix that makes predictions H Y, and h
the mean of its diagonal for each entry of that (as in generalised cross-validation), they are (H Y - h Y) / (1 - h). Ridge
regression would be judged by their error. A classifier does not mind their scale: it is judged by the share of Y that they
explain when scaled at will, the squared cosine. Measured beside others in `benchmarks/shared.py --only shrinkage`.

All that this needs are sums over the eigenvalues of the total covariance T, scaled to unit within-class variances: in few
dimensions from its eigenvalues; in many by Lanczos's iteration with the inverse of T + pivot, so that one factorisation serves
all e within `REACH` of the pivot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core import memory, symmetric
from amgc.core.covariance import SharedCovariance
from amgc.core.shared import DOUBLE_UP_TO, random_signs

LOADINGS = 10.0 ** (torch.arange(-32, 9, dtype=torch.float64) / 8)  # 1e-4, the variance floor's size, to 10
WITHIN = 0.01  # of the best: indistinguishable, and then less loading is better
EXACT_UP_TO = 512  # dimensions in which all eigenvalues cost nothing worth saving
STEPS = 10  # of Lanczos's iteration
REACH = 30.0  # loadings above or below the pivot by so much have sums good to a percent after `STEPS`


class Sums(NamedTuple):
    """Σ weight f(value) for any f: over `offsets` it is Σ_k π_k² v_kᵀ f(T) v_k, over `trace` it is tr f(T).

    v_k is class k's mean less the overall one, π_k its share of the samples.
    """

    offsets: tuple[Tensor, Tensor]
    trace: tuple[Tensor, Tensor]


def chosen_loading(covariance: SharedCovariance, mean: Tensor, count: Tensor, freedom: int) -> float:
    """e of Σ + e diag(Σ) for class means (K, d), float64, of `count` (K,) samples; inf if nothing can be told."""
    if len(mean) < 2 or freedom < 1:
        return float("inf")
    total = _Total(covariance, mean, count, freedom)
    if covariance.dim <= EXACT_UP_TO:
        return total.least(LOADINGS, total.exact())[0]
    pivot = min(max(0.1 * covariance.dim / total.samples, 1e-3), 1.0)  # where it mostly is
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
    """The squared cosine between the class indicators and their left-out predictions, for each loading; (K,) shares π."""
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
    return torch.where(h < 0.999, cosine.clamp(0, 1), 0.0)  # beyond that the fit interpolates, and this is 0 / 0


class _Total:
    """The total covariance T (d, d), scaled to unit within-class variances; built when it is needed, never kept."""

    def __init__(self, covariance: SharedCovariance, mean: Tensor, count: Tensor, freedom: int) -> None:
        self.covariance, self.freedom, self.samples = covariance, freedom, freedom + len(mean)
        self.share = count.to(mean) / count.sum()
        self.scale = torch.where(covariance.variances > 0, covariance.variances, 1.0).rsqrt()
        self.offsets = (mean - self.share @ mean) * self.scale

    def least(self, loadings: Tensor, sums: Sums) -> tuple[float, bool, bool]:
        """The least loading that explains as much as the best; whether it is the first, and whether the best is the last."""
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
        """The sums for loadings near the pivot."""
        matrix = self.upper()
        matrix.diagonal().add_(pivot)
        if not symmetric.factorise(matrix):  # T is near to singular, and rounding has made it indefinite
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
    """Values and weights (m, STEPS), float64, so that Σ weight f(value) ≈ xᵀ f(M⁻¹) x for starts x (d, m), M = UᵀU."""
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
