"""The closed form for one covariance that all classes share, in up to tens of thousands of dimensions.

W = ½ Σ⁻¹ μ is computed with one Cholesky factorisation in place. Besides the stored triangle of Σ, memory is needed for one
matrix of the same size, the factor. Large matrices are factorised in float32. The weights regain their precision by iterative
refinement with residuals in float64.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from amgc.core import memory, symmetric
from amgc.core.covariance import Covariances, SharedCovariance
from amgc.core.kernel import evaluate

DOUBLE_UP_TO = 2048  # dimensions in which a float64 factor of float32 covariances is cheap
PROBES = 32  # random sign vectors that estimate the trace of a large matrix
ROUNDS = 6  # of refinement
PRECISE = {torch.float32: 1e-6, torch.float64: 1e-13}  # refinement stops at this residual, relative to the means
WRONG = 1e-3  # with a larger residual, the factor is too inaccurate


class Factor:
    """The factorisation Σ = D UᵀU D with D the deviations. Scaling to unit variances makes it independent of units."""

    def __init__(self, covariance: SharedCovariance, floor: float) -> None:
        upper, variances = covariance.upper, covariance.variances
        double = upper.dtype == torch.float64 or covariance.dim <= DOUBLE_UP_TO
        dtype = torch.float64 if double else torch.float32
        rows = 8 * PROBES + 1024
        memory.check(covariance.dim, dtype, 1, rows, upper.device, "the factor of a shared covariance", "Use fewer features.")
        # Constant features get unit variance. The floor is a share of each variance.
        units = torch.where(variances > 0, variances, 1.0)
        self.covariance = replace(covariance, variances=variances + floor * units)
        self.scale = units.rsqrt()
        self.root = torch.empty(upper.shape, dtype=dtype, device=upper.device)
        symmetric.scaled_into(self.root, upper, self.scale * covariance.keep**0.5)
        self.root.diagonal().copy_(self.covariance.variances * self.scale.square())
        self.exists = symmetric.factorise(self.root)

    def white(self, columns: Tensor) -> Tensor:
        """Whiten columns x (d, m): U⁻ᵀ D⁻¹ x, coordinates in which Σ is the identity."""
        return symmetric.forward(self.root, columns * self.scale[:, None])

    def solve(self, white: Tensor) -> Tensor:
        """Return Σ⁻¹ x in float64, for columns from `white`."""
        return symmetric.backward(self.root, white).double() * self.scale[:, None]

    def share(self, diagonal: Tensor) -> float:
        """Return tr(Σ⁻¹ diag) for diag ≥ 0 (d,): exact in few dimensions, else by fixed random signs (Hutchinson)."""
        dim, size = self.covariance.dim, diagonal.clamp_min(0).sqrt()
        if dim <= DOUBLE_UP_TO:
            return float(self.white(torch.diag(size)).square().sum())
        return float(self.white(size[:, None] * random_signs(dim).to(size)).double().square().sum()) / PROBES

    def dimensions(self, diagonal: Tensor) -> float:
        """Return the number of directions in which Σ - diag varies: tr(M)² / tr(M²) of M = Σ⁻¹ (Σ - diag)."""
        white = self.white(torch.diag(diagonal.clamp_min(0).sqrt())).double()
        trace, products = float(white.square().sum()), float((white @ white.T).square().sum())
        return max(self.covariance.dim - trace, 0.0) ** 2 / max(self.covariance.dim - 2 * trace + products, 1e-12)


def random_signs(dim: int) -> Tensor:
    """Return random signs (d, PROBES), the same in every call."""
    return torch.randint(2, (dim, PROBES), generator=torch.Generator().manual_seed(0)) * 2.0 - 1


@dataclass(frozen=True)
class ClosedForm:
    """W (K, d) and b (K,) in float64, their loss, the norm of the whitened gradient, and the factor of Σ."""

    weight: Tensor
    bias: Tensor
    loss: float
    gradient_norm: float
    factor: Factor


def closed_form(mean: Tensor, covariance: SharedCovariance, class_weight: Tensor) -> ClosedForm:
    """Return the minimiser of L_DB for centred means (K, d), float64, if all classes have this covariance: half of LDA."""
    factor, solved, pushed = _solved(covariance, mean.T)
    inner = mean @ solved
    weight, bias = solved.T / 2, closed_bias((inner + inner.T) / 2, class_weight)
    targets = torch.arange(len(mean), device=mean.device)
    at = evaluate(weight, bias, mean, Covariances(), targets, class_weight, pushed=pushed.T / 2)
    assert at.weight is not None and at.bias is not None
    norm = torch.cat([factor.white(at.weight.T).double().T, at.bias[:, None]], 1).norm()
    return ClosedForm(weight, bias, float(at.loss), float(norm), factor)


def closed_bias(inner: Tensor, class_weight: Tensor) -> Tensor:
    """Return the optimal biases for W = ½ Σ⁻¹ μ; `inner` is μ_jᵀ Σ⁻¹ μ_k (K, K).

    The exponents are z_jk = t_j - t_k - D_jk²/8, with D the Mahalanobis distance between means. The gradient is zero if
    class_weight_k p_jk is symmetric in j and k, that is if x = exp(t) solves x_j Σ_k E_jk x_k = class_weight_j with
    E = exp(-D²/8). This scales a symmetric matrix to given row sums, by Sinkhorn iterations on K numbers. E has ones on its
    diagonal, so all x lie between c / Σ √c and √c, c the class weights, and nothing overflows.
    """
    squares = inner.diagonal()
    e = (2 * inner).sub_(squares).sub_(squares[:, None]).clamp_max_(0).div_(8).exp_()
    e.diagonal().fill_(1)
    x = torch.ones_like(squares)
    for _ in range(1000):
        after = (x * class_weight / (e @ x)).sqrt()
        step = (after / x).log()
        x = after
        if float(step.max() - step.min()) < 1e-13:  # up to a constant
            break
    return x.log() - squares / 4


def _solved(covariance: SharedCovariance, columns: Tensor) -> tuple[Factor, Tensor, Tensor]:
    """Return a factor of Σ, Σ⁻¹ x for columns x, and Σ Σ⁻¹ x. Variances are raised as little as possible."""
    floor = start = torch.finfo(torch.float64).eps
    while floor < 1:  # a correlation matrix with its diagonal doubled has a factor
        factor = Factor(covariance, floor)
        if factor.exists:
            solved, pushed, residual = _refined(factor, columns)
            if residual <= WRONG:
                break
        floor = max(10 * floor, torch.finfo(factor.root.dtype).eps)
        del factor  # free its memory before the next one
    else:
        raise ValueError("the covariances are not finite: the features are too large, or a margin or ridge is.")
    if factor.root.dtype == torch.float32 and floor > start:
        warnings.warn(
            f"the shared covariance of {covariance.dim:,} features is nearly singular in float32: every variance was increased "
            f"by a factor of 1 + {floor:.0e}. Use more samples, more shrinkage or ridge, or dtype float64.",
            stacklevel=2,
        )
    return factor, solved, pushed


def _refined(factor: Factor, columns: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return Σ⁻¹ x, Σ Σ⁻¹ x, and the norm of the whitened residual relative to that of whitened x."""
    white = factor.white(columns)
    size = float(white.double().norm()) or 1.0
    solved, best = factor.solve(white), (torch.zeros(0), torch.zeros(0), float("inf"))
    for _ in range(ROUNDS):
        pushed = factor.covariance.times(solved)
        white = factor.white(columns - pushed)
        residual = float(white.double().norm()) / size
        if not residual < best[2] / 2:  # only rounding errors are left
            break
        best = solved, pushed, residual
        if residual < PRECISE[factor.root.dtype]:
            break
        solved = solved + factor.solve(white)
    return best
