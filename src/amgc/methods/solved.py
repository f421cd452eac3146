"""AMGC with a frozen network: the classifier is solved from the class statistics instead of trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amgc.methods.amgc import AMGC, FIRST, FIRST_SOURCES, AMGCHyper
from amgc.methods.contract import Features, Phase, Task
from amgc.methods.frozen import FROZEN, Frozen, FrozenHyper, refuse_training
from amgc.methods.lazy import gaussian, solver, statistics, torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class ExactHyper(AMGCHyper):
    """Hyper-parameters of the exact solution."""

    ridge: float = option(0.0, "added to every variance before the classifier is solved", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_training(self.later)


@method("amgc-exact", ExactHyper(FIRST, FROZEN), sources=FIRST_SOURCES)
class Exact(AMGC[ExactHyper]):
    """AMGC on a frozen network: the same loss, solved to its minimum instead of trained.

    The network stays as task 1 left it, which the paper's learning rate of 1e-6 comes close to. The loss is then convex. After
    task 1 the classifier is the trained one, unless task 1 was not trained (`first.epochs=0`).
    """

    def phase(self, task: Task) -> Phase:
        return self.hyper.first if task.is_first else FROZEN

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        super().end(task, features, generator)
        if self.phase(task).epochs:
            return
        solved = solver.solve_head(
            self.statistics,
            margin=self.hyper.margin,
            new=() if task.is_first else task.new,
            balance=self.hyper.balance,
            ridge=self.hyper.ridge,
        )
        rows = [self.statistics.index(label) for label in task.seen]
        self.head.set(solved.weight[rows], solved.bias[rows])

    @property
    def enlarged_classes(self) -> range:
        """The old classes; in a task 1 that was not trained, all classes."""
        return self.task.seen if self.task.is_first and not self.hyper.first.epochs else self.task.old


@dataclass(frozen=True)
class ClosedHyper(FrozenHyper):
    """Hyper-parameters of the closed form."""

    ridge: float | None = option(
        None,
        "added to every variance; None: a share of each variance, smaller for features that separate the classes, chosen by "
        "leave-one-out in closed form",
        least=0,
    )


@method("amgc-closed", ClosedHyper(FIRST), sources=FIRST_SOURCES)
class Closed(Frozen[ClosedHyper]):
    """AMGC on a frozen network with one covariance for all classes and no margin: solved in closed form."""

    remembers = ("statistics",)

    def __init__(self, hyper: ClosedHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, "shared", device=device)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        for rows, labels in features:
            self.statistics.update(rows, labels)
        solved = solver.solve_head(self.statistics, margin=0.0, ridge="auto" if self.hyper.ridge is None else self.hyper.ridge)
        order = [self.statistics.index(label) for label in task.seen]
        self.head.set(solved.weight[order], solved.bias[order])

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *gaussian.along(self.statistics, label, axes), None
