"""FeCAM (Goswami et al., NeurIPS 2023): the nearest class mean by Mahalanobis distance, with a covariance per class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amgc.methods.contract import Features, Task
from amgc.methods.frozen import Frozen, FrozenHyper, keep_means
from amgc.methods.lazy import gaussian, statistics, torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class FeCAMHyper(FrozenHyper):
    """Hyper-parameters of FeCAM."""

    tukey: float = option(0.5, "λ: exponent of Tukey's transform of the features; 1: no transform", "official, beta", above=0)
    alpha1: float = option(1.0, "shrinkage: share of the mean variance added to each variance", "official", least=0)
    alpha2: float = option(1.0, "shrinkage: share of the mean off-diagonal entry added to each of them", "official", least=0)
    shrinkings: int = option(2, "number of times that the shrinkage is applied", "official code; the paper says once", least=0)
    correlation: bool = option(True, "whether to scale covariances to unit variances", "official, norm_cov")


@method("fecam", FeCAMHyper())
class FeCAM(Frozen[FeCAMHyper]):
    """FeCAM: class means and covariances of a frozen network; Mahalanobis distance of transformed features.

    Means of plain features are the rows of the head. Covariances are those of transformed features. Differences from the
    official code:

    - Negative features keep their sign in Tukey's transform, instead of becoming NaN.
    - Tasks may have any size.
    - Task 1 has a linear head and is scored like all others. Officially it has a cosine head, whose weights are prototypes.
    - A class of one image has an identity correlation matrix. Officially its distance to everything is 0.
    - Directions without variance count as far away, instead of being left out.
    """

    remembers = ("statistics",)

    def __init__(self, hyper: FeCAMHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, device=device)
        self._inverse: list[torch.Tensor] = []  # per class a factor A with Aᵀ A = Σ⁻¹, computed once

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._inverse = []

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        batches = list(features)
        keep_means(self, task.new, batches)
        for rows, labels in batches:
            self.statistics.update(self.transformed(rows), labels)

    def transformed(self, features: torch.Tensor) -> torch.Tensor:
        return features.sign() * features.abs() ** self.hyper.tukey

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the Gaussian of transformed features, before shrinkage and scaling."""
        return *gaussian.along(self.statistics, label, axes), None

    def normalised(self, label: int) -> torch.Tensor:
        """Return the shrunk and scaled covariance (d, d) of a class in float64."""
        spread = self.statistics.covariances.full
        assert spread is not None
        matrix = spread[self.statistics.index(label)].double()
        for _ in range(self.hyper.shrinkings):
            matrix = gaussian.shrink(matrix, self.hyper.alpha1, self.hyper.alpha2)
        if self.hyper.correlation:
            matrix = gaussian.correlation(matrix)
            matrix.diagonal().fill_(1.0)
        return matrix

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        for label in range(len(self._inverse), len(self.head)):
            self._inverse.append(inverse_factor(self.normalised(label)).float())
        normalize = torch.nn.functional.normalize
        rows, means = (normalize(self.transformed(part.float())) for part in (features, self.head.weight.detach()))
        distances = [(rows - mean).matmul(factor.T).square().sum(1) for factor, mean in zip(self._inverse, means, strict=True)]
        return -torch.stack(distances, 1)


def inverse_factor(matrix: torch.Tensor) -> torch.Tensor:
    """Return A with Aᵀ A = matrix⁻¹ for a positive definite matrix (d, d). Eigenvalues are raised to a small positive value."""
    triangle, failed = torch.linalg.cholesky_ex(matrix)
    if not bool(failed):
        unit = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        factor: torch.Tensor = torch.linalg.solve_triangular(triangle, unit, upper=False)
        return factor
    values, vectors = torch.linalg.eigh(matrix)
    floor = 1e-6 * float(values.max()) or 1.0
    spectral: torch.Tensor = vectors.T / values.clamp_min(floor).sqrt()[:, None]
    return spectral
