"""FeCAM (Goswami et al., NeurIPS 2023): the nearest class mean, by a Mahalanobis distance of each class's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amgc.methods.contract import Features, Task, about
from amgc.methods.frozen import Frozen, FrozenHyper, keep_means
from amgc.methods.lazy import gaussian, statistics, torch
from amgc.methods.registry import method

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class FeCAMHyper(FrozenHyper):
    """Hyper-parameters of FeCAM."""

    tukey: float = about(0.5, "λ: features are raised to this power; 1: left as they are", "official, beta")
    alpha1: float = about(1.0, "shrinkage: share of the mean variance added to each variance", "official")
    alpha2: float = about(1.0, "shrinkage: share of the mean off-diagonal entry added to each of them", "official")
    shrinkings: int = about(2, "how often the shrinkage is applied", "official code; the paper says once")
    correlation: bool = about(True, "covariances are scaled to unit variances", "official, norm_cov")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tukey > 0 or min(self.alpha1, self.alpha2, self.shrinkings) < 0:
            raise ValueError("tukey must be positive; alpha1, alpha2 and shrinkings must not be negative.")


@method("fecam", FeCAMHyper())
class FeCAM(Frozen[FeCAMHyper]):
    """FeCAM: class means and covariances of a frozen network; Mahalanobis distance of transformed features.

    Differs from the official code: features with a sign keep it in Tukey's transform (there they become NaN); tasks of any
    size; task 1 has a linear head and is scored like all others (there a cosine head, whose weights are its prototypes);
    a class of one image counts as uncorrelated (there its distance is 0 to everything); a direction without any variance is
    far, not left out. Means are the head's rows, of plain features; covariances are those of transformed ones.
    """

    remembers = ("statistics",)

    def __init__(self, hyper: FeCAMHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, device=device)
        self._inverse: list[torch.Tensor] = []  # per class a factor A with Aᵀ A = Σ⁻¹: computed once, from the statistics

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._inverse = []

    def end(self, task: Task, features: Features) -> None:
        batches = list(features)
        keep_means(self, task.new, batches)
        for rows, labels in batches:
            self.statistics.update(self.transformed(rows), labels)

    def transformed(self, features: torch.Tensor) -> torch.Tensor:
        return features.sign() * features.abs() ** self.hyper.tukey

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Of transformed features, before shrinkage and scaling."""
        return *gaussian.along(self.statistics, label, axes), None

    def normalised(self, label: int) -> torch.Tensor:
        """The covariance (d, d) of a class, shrunk and scaled, float64."""
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
    """A with Aᵀ A the inverse of a positive definite matrix (d, d); eigenvalues that are not positive become tiny."""
    triangle, failed = torch.linalg.cholesky_ex(matrix)
    if not bool(failed):
        unit = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        factor: torch.Tensor = torch.linalg.solve_triangular(triangle, unit, upper=False)
        return factor
    values, vectors = torch.linalg.eigh(matrix)
    floor = 1e-6 * float(values.max()) or 1.0
    spectral: torch.Tensor = vectors.T / values.clamp_min(floor).sqrt()[:, None]
    return spectral
