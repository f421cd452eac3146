"""DPCR (He et al., ICML 2025): class moments go through a closed-form map of the drift; ridge regression from the moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from amgc.methods.compensated import SOURCES, CompensatedHyper
from amgc.methods.contract import Features, LinearHead, Task, TaskImages
from amgc.methods.lazy import drift, gaussian, statistics, torch
from amgc.methods.lwf import LwF
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class DPCRHyper(CompensatedHyper):
    """Hyper-parameters of DPCR."""

    map_ridge: float = option(1e-9, "ridge of the map from old to new features", "official, rg_tssp", above=0)
    ridge: float = option(200.0, "γ: ridge of the classifier", "official: 200 on CIFAR-100, 2000 on the others", above=0)
    projection: bool = option(True, "whether the map of a class is restricted to the range of its features", "official")


@method("dpcr", DPCRHyper(), sources=SOURCES)
class DPCR(LwF[DPCRHyper]):
    """DPCR: LwF's training; count, mean and covariance of old classes mapped by two projections; ridge regression.

    The official code stores the uncentred second moment Φ = Σ x xᵀ, which is (n - 1) S + n μ μᵀ here.
    """

    remembers: ClassVar[tuple[str, ...]] = (*LwF.remembers, "statistics", "solved")

    def __init__(self, hyper: DPCRHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, device=device)
        self.solved = LinearHead(network.dim, device)

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        if self.old is None:
            return
        old, new = (images.features(network).double() for network in (self.old, self.network))
        shared = drift.linear_map(old, new, self.hyper.map_ridge)  # TSSP
        for label in task.old:
            own = shared @ drift.projector(self.moment(label)) if self.hyper.projection else shared  # and CIP
            drift.transform(self.statistics, label, own)

    def moment(self, label: int) -> torch.Tensor:
        """Return Φ = Σ x xᵀ of a class, (d, d) in float64."""
        row, spread = self.statistics.index(label), self.statistics.covariance
        assert isinstance(spread, torch.Tensor)
        count, mean = int(self.statistics.count[row]), self.statistics.mean[row]
        return (count - 1) * spread[row].double() + count * torch.outer(mean, mean)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        super().end(task, features, generator)
        for rows, labels in features:
            self.statistics.update(rows, labels)
        order = [self.statistics.index(label) for label in task.seen]
        sums = self.statistics.mean[order] * self.statistics.count[order, None].to(self.device)
        system = self.hyper.ridge * torch.eye(self.network.dim, dtype=torch.float64, device=self.device)
        for label in task.seen:
            system += self.moment(label)
        weight = torch.linalg.solve(system, sums.T).T
        self.solved.set(torch.nn.functional.normalize(weight), weight.new_zeros(len(weight)))

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        return self.solved(features)

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *gaussian.along(self.statistics, label, axes), None
