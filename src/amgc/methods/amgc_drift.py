"""AMGC's exact classifier on a network that keeps training: the statistics of old classes follow the measured drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from amgc.methods.compensated import SOURCES, CompensatedHyper
from amgc.methods.contract import Features, LinearHead, Task, TaskImages
from amgc.methods.lazy import drift, gaussian, solver, statistics, torch
from amgc.methods.lwf import LwF
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class DriftHyper(CompensatedHyper):
    """Hyper-parameters of AMGC with drift compensation."""

    compensation: Literal["none", "mean", "linear"] = option(
        "linear",
        "how statistics of old classes follow the drift: not at all, their means by SDC, or both moments by a linear map",
    )
    sigma: float = option(
        1.0, "mean: σ of SDC's weights, in units of the features' root mean square distance to old means", above=0
    )
    map_ridge: float = option(1e-3, "linear: ridge of the map that is kept close to the identity, per new image", above=0)
    margin: float = option(0.0, "λ of VE: by how much the variances of old classes are enlarged; 0: not at all", least=0)
    balance: Literal["two_means", "per_class"] = option("per_class", "the balance of old and new classes in AMGC's loss")
    ridge: float = option(0.0, "added to every variance before the classifier is solved", least=0)


@method("amgc-drift-ve", DriftHyper(margin=0.4), "amgc-drift with variances of old classes enlarged as in the paper", SOURCES)
@method("amgc-drift", DriftHyper(), sources=SOURCES)
class AMGCDrift(LwF[DriftHyper]):
    """AMGC's exact classifier from means and covariances that follow the drift of a network trained by LwF.

    The paper enlarges variances because features may drift. Here the drift of the new images is measured, and old classes
    move accordingly. Not in the paper.
    """

    remembers: ClassVar[tuple[str, ...]] = (*LwF.remembers, "statistics", "solved")

    def __init__(self, hyper: DriftHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, device=device)
        self.solved = LinearHead(network.dim, device)

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        if self.old is None or self.hyper.compensation == "none":
            return
        old, new = (images.features(network).double() for network in (self.old, self.network))
        if self.hyper.compensation == "mean":
            scale = float(torch.cdist(self.statistics.mean, old).square().mean().sqrt())
            moves = drift.displacement(self.statistics.mean, old, new, self.hyper.sigma * max(scale, 1e-30))
            for label, mean in zip(self.statistics.classes, self.statistics.mean + moves, strict=True):
                drift.move(self.statistics, label, mean)
            return
        # The map is I + A, with a ridge on A: without evidence from new images, old classes do not move.
        ridge = self.hyper.map_ridge * float(old.square().sum(1).mean()) * len(old) / old.shape[1]
        matrix = drift.linear_map(old, new - old, max(ridge, 1e-30))
        matrix.diagonal().add_(1.0)
        for label in task.old:
            drift.transform(self.statistics, label, matrix)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        super().end(task, features, generator)
        for rows, labels in features:
            self.statistics.update(rows, labels)
        hyper, new = self.hyper, () if task.is_first else task.new
        solved = solver.solve_head(self.statistics, margin=hyper.margin, new=new, balance=hyper.balance, ridge=hyper.ridge)
        order = [self.statistics.index(label) for label in task.seen]
        self.solved.set(solved.weight[order], solved.bias[order])

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        return self.solved(features)

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *gaussian.along(self.statistics, label, axes), None
