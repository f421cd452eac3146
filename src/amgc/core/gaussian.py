"""Gaussians: draws, projections and shrinkage. Covariances may be singular, as with 500 samples in 512 dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from amgc.core.covariance import AnyCovariance, as_covariances, column, enlarge
from amgc.core.inputs import Label
from amgc.core.statistics import ClassStatistics


def sample(mean: Tensor, covariance: AnyCovariance, count: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw `count` pseudo features f̃ ~ N(μ_k, Σ_k) per class: (K, count, d).

    >>> draws = sample(torch.zeros(1, 2), torch.tensor([[4.0, 0.0]]), 1000, torch.Generator().manual_seed(0))
    >>> round(draws.std(1)[0, 0].item(), 1), draws[0, :, 1].abs().max().item()
    (2.0, 0.0)
    """
    return Sampler(mean, covariance)(count, generator)


class Sampler:
    """Draw from N(μ_k, Σ_k) like `sample`, but compute the roots of the covariances only once.

    With the same generator, draws are a continuous function of the covariances. So if rounding differs between processes or
    machines, the draws differ by rounding errors only.
    """

    def __init__(self, mean: Tensor, covariance: AnyCovariance) -> None:
        parts = as_covariances(covariance)
        self.mean = mean
        # The sum of independent draws has the sum of their covariances, so each part adds its own draw: noise times matrices
        # (K, d, d), (d, d) or two thin ones, and for the diagonal part noise times deviations.
        self.roots: list[list[Tensor]] = []
        self.deviation: Tensor | None = None
        if parts.full is not None:
            self.roots.append([column(parts.scale, 2) ** 0.5 * root(parts.full).to(mean.dtype)])
        if parts.factor is not None:  # (F Fᵀ)^½ = U S Uᵀ; not F itself, whose columns have arbitrary signs
            left, values, _ = torch.linalg.svd(parts.factor.double(), full_matrices=False)
            self.roots.append([left.to(mean.dtype), (left * values.unsqueeze(-2)).mT.to(mean.dtype)])
        if parts.common is not None:
            self.roots.append([column(parts.common_scale, 2) ** 0.5 * root(parts.common).to(mean.dtype)])
        if parts.diagonal is not None:
            self.deviation = parts.diagonal.clamp_min(0).sqrt()[:, None].to(mean.dtype)

    def __call__(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Return `count` draws per class, (K, count, d)."""
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


def along(statistics: ClassStatistics, label: Label, axes: Tensor, margin: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return a class's Gaussian in the coordinates `axes @ x`, axes (m, d): mean (m,) and covariance (m, m).

    The covariance is enlarged by `margin`. No d × d matrix is created.

    >>> kept = ClassStatistics(3).update([[0.0, 1.0, 5.0], [2.0, 3.0, 5.0]], ["cat", "cat"])
    >>> [part.tolist() for part in along(kept, "cat", torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))]
    [[3.0, 5.0], [[8.0, 0.0], [0.0, 0.0]]]
    """
    row = statistics.index(label)
    mean = axes.to(statistics.mean) @ statistics.mean[row]
    axes = axes.to(statistics.device, statistics.dtype)
    if statistics.form == "shared":
        return mean, axes @ enlarge(statistics.shared(), margin).times(axes.T.contiguous())
    own = enlarge(statistics.covariances.rows(slice(row, row + 1)), margin)
    return mean, axes @ own.product(axes[None])[0].T


def variances(statistics: ClassStatistics, labels: Iterable[Label]) -> Tensor:
    """Return the variances of these classes, (classes, d)."""
    rows = [statistics.index(label) for label in labels]
    if statistics.form == "shared":
        return statistics.shared().variances.to(statistics.dtype).expand(len(rows), -1)
    return statistics.covariances.variances()[rows]


def root(covariance: Tensor) -> Tensor:
    """Return the symmetric R with R R = Σ for positive semi-definite Σ (..., d, d).

    The symmetric root is a continuous function of Σ. Other roots are not: whether a Cholesky factor of a singular Σ exists
    depends on rounding, and V √Λ depends on the arbitrary signs of the eigenvectors V. Eigenvalues below ε tr Σ, the size of
    rounding errors in Σ, count as 0, because the square root is steepest there; between one and two times that bound their
    roots grow to their full size.
    """
    values, vectors = torch.linalg.eigh(covariance.double())
    trace = covariance.diagonal(dim1=-2, dim2=-1).double().sum(-1, keepdim=True)
    floor = (torch.finfo(covariance.dtype).eps * trace).clamp_min(torch.finfo(torch.float64).tiny)
    roots = values.clamp_min(0).sqrt() * (values / floor - 1).clamp(0, 1)
    symmetric: Tensor = (vectors * roots.unsqueeze(-2)) @ vectors.mT
    return symmetric.to(covariance.dtype)


def shrink(covariance: Tensor, diagonal: float = 1.0, off_diagonal: float = 1.0) -> Tensor:
    """Apply FeCAM's shrinkage: Σ + γ₁ V₁ I + γ₂ V₂ (1 - I), V₁ the mean variance and V₂ the mean off-diagonal entry."""
    dim = covariance.shape[-1]
    unit = torch.eye(dim, dtype=covariance.dtype, device=covariance.device)
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    rest = covariance.sum((-2, -1))[..., None, None] - trace
    return covariance + diagonal * trace / dim * unit + off_diagonal * rest / max(dim * (dim - 1), 1) * (1 - unit)


def oas(covariance: Tensor, freedom: int) -> float:
    """Return the oracle approximating shrinkage (OAS) of an estimated covariance (d, d) towards its diagonal, from 0 to 1.

    This is the formula of Chen, Wiesel, Eldar and Hero (2010) applied to the correlation matrix. It needs no samples, only
    `freedom`, the number of samples minus the number of means.
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
    """Scale covariances (..., d, d) to unit variances: Σ_ij / (s_i s_j)."""
    variances = covariance.diagonal(dim1=-2, dim2=-1)
    deviation = torch.where(variances > 0, variances, 1.0).sqrt()  # a constant feature is correlated with nothing
    return covariance / (deviation[..., None] * deviation[..., None, :])
