"""Gaussians as the competitors use them: samples, Mahalanobis distances, shrinkage, Tukey's transform.

Class covariances are often singular (500 samples in 512 dimensions): sampling does not mind, `mahalanobis` says so.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from amgc.core.covariance import AnyCovariance, LowRank, as_covariances, column
from amgc.core.inputs import Label
from amgc.core.statistics import ClassStatistics


def sample(mean: Tensor, covariance: AnyCovariance, count: int, generator: torch.Generator | None = None) -> Tensor:
    """Pseudo features f̃ ~ N(μ_k, Σ_k), `count` per class: (K, count, d). Singular covariances are fine.

    >>> draws = sample(torch.zeros(1, 2), torch.tensor([[4.0, 0.0]]), 1000, torch.Generator().manual_seed(0))
    >>> round(draws.std(1)[0, 0].item(), 1), draws[0, :, 1].abs().max().item()
    (2.0, 0.0)
    """
    return Sampler(mean, covariance)(count, generator)


class Sampler:
    """Draws from N(μ_k, Σ_k) again and again: what `sample` does, with the roots of the covariances computed once.

    The same generator gives nearly the same draws for nearly the same covariances: those of two processes, or of two machines,
    differ by their rounding and no more.
    """

    def __init__(self, mean: Tensor, covariance: AnyCovariance) -> None:
        parts = as_covariances(covariance)
        self.mean = mean
        # A sum of covariances is the covariance of a sum of independent draws, so each part adds its own: matrices (K, d, d),
        # (d, d), or two thin ones, to multiply noise with, and the deviations of the diagonal part.
        self.roots: list[list[Tensor]] = []
        self.deviation: Tensor | None = None
        if parts.full is not None:
            self.roots.append([column(parts.scale, 2) ** 0.5 * root(parts.full).to(mean.dtype)])
        if parts.factor is not None:  # (F Fᵀ)^½ = U S Uᵀ; F itself would not do, for its columns have no sign of their own
            left, values, _ = torch.linalg.svd(parts.factor.double(), full_matrices=False)
            self.roots.append([left.to(mean.dtype), (left * values.unsqueeze(-2)).mT.to(mean.dtype)])
        if parts.common is not None:
            self.roots.append([column(parts.common_scale, 2) ** 0.5 * root(parts.common).to(mean.dtype)])
        if parts.diagonal is not None:
            self.deviation = parts.diagonal.clamp_min(0).sqrt()[:, None].to(mean.dtype)

    def __call__(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """`count` draws per class: (K, count, d)."""
        where = self.mean.device if generator is None else generator.device

        def noise() -> Tensor:
            shape = len(self.mean), count, self.mean.shape[1]
            return torch.randn(shape, generator=generator, dtype=self.mean.dtype, device=where).to(self.mean.device)

        drawn = self.mean[:, None].expand(-1, count, -1).clone()
        for matrices in self.roots:
            drawn += reduce(torch.matmul, matrices, noise())
        if self.deviation is not None:
            drawn += noise() * self.deviation
        return drawn


def along(statistics: ClassStatistics, label: Label, axes: Tensor) -> tuple[Tensor, Tensor]:
    """A class's Gaussian in the coordinates `axes @ x`, axes (m, d): mean (m,) and covariance (m, m). No d × d matrix is made.

    >>> kept = ClassStatistics(3).update([[0.0, 1.0, 5.0], [2.0, 3.0, 5.0]], ["cat", "cat"])
    >>> [part.tolist() for part in along(kept, "cat", torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))]
    [[3.0, 5.0], [[8.0, 0.0], [0.0, 0.0]]]
    """
    row = statistics.index(label)
    mean = axes.to(statistics.mean) @ statistics.mean[row]
    axes = axes.to(statistics.device, statistics.dtype)
    if statistics.form == "shared":
        return mean, axes @ statistics.shared().times(axes.T.contiguous())
    kept = statistics.covariance
    own = (
        LowRank(kept.factor[row : row + 1], kept.diagonal[row : row + 1]) if isinstance(kept, LowRank) else kept[row : row + 1]
    )
    return mean, axes @ as_covariances(own).product(axes[None])[0].T


def variances(statistics: ClassStatistics) -> Tensor:
    """The variances (K, d) of all classes; (1, d) if all have the same."""
    if statistics.form == "shared":
        return statistics.shared().variances[None].to(statistics.dtype)
    kept = statistics.covariance
    return kept.diagonal if isinstance(kept, LowRank) else as_covariances(kept).variances()


def root(covariance: Tensor) -> Tensor:
    """The symmetric R with R R = Σ for positive semi-definite Σ (..., d, d).

    The one root that rounding does not turn: whether Cholesky's exists is up to it where Σ is singular, and V √Λ goes with the
    signs of the eigenvectors V, which have none of their own. An eigenvalue below ε tr Σ, what rounding the entries of Σ may
    add, counts as 0, for there the square root is steepest; up to twice that its root grows to what it is.
    """
    values, vectors = torch.linalg.eigh(covariance.double())
    trace = covariance.diagonal(dim1=-2, dim2=-1).double().sum(-1, keepdim=True)
    floor = (torch.finfo(covariance.dtype).eps * trace).clamp_min(torch.finfo(torch.float64).tiny)
    roots = values.clamp_min(0).sqrt() * (values / floor - 1).clamp(0, 1)
    symmetric: Tensor = (vectors * roots.unsqueeze(-2)) @ vectors.mT
    return symmetric.to(covariance.dtype)


def mahalanobis(features: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Squared distances (N, K) of features (N, d) to K classes, (x - μ_k)ᵀ Σ_k⁻¹ (x - μ_k); Σ (K, d, d) or shared (d, d).

    One triangular solve per class; raises if a covariance is not positive definite (shrink it first).
    """
    shared = covariance.ndim == 2
    triangle, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed.any()):
        which = "the covariance" if shared else f"{int((failed > 0).sum())} of {len(covariance)} covariances"
        raise ValueError(f"{which} cannot be inverted; use shrink() first, or more samples than features.")
    if shared:
        white, centres = (torch.linalg.solve_triangular(triangle, x.mT, upper=False).mT for x in (features, mean))
        return torch.cdist(white, centres, compute_mode="donot_use_mm_for_euclid_dist").square()
    distances = [
        torch.linalg.solve_triangular(lower, (features - centre).mT, upper=False).square().sum(0)
        for lower, centre in zip(triangle, mean, strict=True)
    ]
    return torch.stack(distances, 1)


def shrink(covariance: Tensor, diagonal: float = 1.0, off_diagonal: float = 1.0) -> Tensor:
    """FeCAM's shrinkage: Σ + γ₁ V₁ I + γ₂ V₂ (1 - I), V₁ the mean variance and V₂ the mean off-diagonal entry."""
    dim = covariance.shape[-1]
    unit = torch.eye(dim, dtype=covariance.dtype, device=covariance.device)
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    rest = covariance.sum((-2, -1))[..., None, None] - trace
    return covariance + diagonal * trace / dim * unit + off_diagonal * rest / max(dim * (dim - 1), 1) * (1 - unit)


def oas(covariance: Tensor, freedom: int) -> float:
    """How far to draw an estimated covariance (d, d) towards its diagonal: oracle approximating shrinkage.

    The formula of Chen, Wiesel, Eldar and Hero (2010) on the correlation matrix, whose target is then the identity; `freedom`
    is the number of samples less the number of means. It needs the estimate alone, not the samples.
    """
    dim = len(covariance)
    deviation = covariance.diagonal().double().clamp_min(0).sqrt()
    alive = deviation > 0
    scaled = covariance.double() / torch.where(alive, deviation, 1.0) / torch.where(alive, deviation, 1.0)[:, None]
    square, trace = float(scaled.square().sum()), float(alive.sum())
    excess = square - trace**2 / dim
    if freedom < 1 or excess <= 0:
        return 1.0
    return min(1.0, ((1 - 2 / dim) * square + trace**2) / ((freedom + 1 - 2 / dim) * excess))


def correlation(covariance: Tensor) -> Tensor:
    """Σ_ij / (s_i s_j): covariances (..., d, d) scaled to unit variances."""
    variances = covariance.diagonal(dim1=-2, dim2=-1)
    deviation = torch.where(variances > 0, variances, 1.0).sqrt()  # a constant feature is correlated with nothing
    return covariance / (deviation[..., None] * deviation[..., None, :])


def tukey(features: Tensor, power: float = 0.5) -> Tensor:
    """Tukey's ladder: non-negative features to a power (the logarithm for 0), which makes them less skewed."""
    if bool((features < 0).any()) or (power == 0 and bool((features == 0).any())):
        raise ValueError("Tukey's transform needs non-negative features (positive ones for power 0), as behind a ReLU.")
    return features.log() if power == 0 else features.pow(power)
