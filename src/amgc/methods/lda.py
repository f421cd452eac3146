"""Streaming linear discriminant analysis (Deep SLDA, Hayes and Kanan, 2020): class means and one shared covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amgc.methods.contract import Features, Task
from amgc.methods.frozen import Frozen, FrozenHyper
from amgc.methods.lazy import gaussian, statistics, torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class LDAHyper(FrozenHyper):
    """Hyper-parameters of LDA."""

    shrinkage: float | None = option(
        1e-4,
        "ε in (1 - ε) Σ + ε I; None: towards the diagonal, by oracle approximating shrinkage (OAS)",
        "Deep SLDA, 3.1 and official code",
        above=0,
        most=1,
    )


@method("lda", LDAHyper())
class LDA(Frozen[LDAHyper]):
    """LDA (Deep SLDA): linear discriminant analysis from running means and one shared covariance, shrunk.

    Deep SLDA updates its covariance sample by sample from an arbitrary start. Here it is the exact within-class covariance of
    all samples, independent of their order.
    """

    remembers = ("statistics",)

    def __init__(self, hyper: LDAHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, "shared", dtype=torch.float64, device=device)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        for rows, labels in features:
            self.statistics.update(rows, labels)
        mean = self.statistics.mean[[self.statistics.index(label) for label in task.seen]]
        triangle = torch.linalg.cholesky(self.shrunk())
        weight = torch.cholesky_solve(mean.T, triangle).T
        self.head.set(weight, -0.5 * (weight * mean).sum(1))

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *gaussian.along(self.statistics, label, axes), None

    def shrunk(self) -> torch.Tensor:
        """Return the shrunk shared covariance (d, d), which is invertible."""
        pooled = self.statistics.pooled()
        unit = torch.eye(len(pooled), dtype=pooled.dtype, device=pooled.device)
        if self.hyper.shrinkage is not None:
            return (1 - self.hyper.shrinkage) * pooled + self.hyper.shrinkage * unit
        share = gaussian.oas(pooled, int((self.statistics.count - 1).sum()))
        level = float(pooled.diagonal().mean()) or 1.0
        return (1 - share) * pooled + share * pooled.diagonal().diag() + 1e-4 * level * unit
