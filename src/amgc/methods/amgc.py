"""AMGC, the paper's method: section 3 from top to bottom.

The ablations of Tables 2 and 3 are in `ablations.py`. The same classifier solved instead of trained is in `solved.py`. What the
report shows of its Gaussians and margins is in `enlarged.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from amgc.methods.contract import Batch, Features, Hyper, Phase, Task
from amgc.methods.enlarged import Enlarged
from amgc.methods.lazy import losses, running, statistics, torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.core.covariance import Covariances
    from amgc.features.extractor import Extractor

# Section 4.1. What it leaves open is PyCIL's choice, or explained in docs/methods.md.
FIRST = Phase(epochs=400, extractor_lr=1e-2, head_lr=1e-2)
LATER = Phase(epochs=200, extractor_lr=1e-6, head_lr=5e-3, weight_decay=0.0, head_weight_decay=0.0, batchnorm="fixed")
FIRST_SOURCES = dict.fromkeys(("first.epochs", "first.extractor_lr", "first.head_lr"), "paper, 4.1")
LATER_SOURCES = dict.fromkeys(("later.epochs", "later.extractor_lr", "later.head_lr", "later.batchnorm"), "paper, 4.1")
SOURCES = FIRST_SOURCES | LATER_SOURCES | {"later": "open in the paper"}


@dataclass(frozen=True)
class AMGCHyper(Hyper):
    """Hyper-parameters of AMGC."""

    margin: float = option(
        0.4, "λ of VE: by how much the variances of old classes are enlarged; 0: not at all", "paper, 4.1", least=0
    )
    balance: Literal["two_means", "per_class"] = option(
        "two_means",
        "the loss is the mean over new classes plus the mean over old ones, or one mean over all classes",
        "paper, Eq. separate; Eq. L-DBGC says per_class",
    )
    covariance: Literal["full", "lowrank", "diagonal", "shared"] = option(
        "full", "the form in which class covariances are stored", "paper, 3.1"
    )
    rank: int = option(56, "columns of a lowrank covariance")


H = TypeVar("H", bound=AMGCHyper)


@method("amgc", AMGCHyper(FIRST, LATER), sources=SOURCES)
class AMGC(Enlarged[H]):
    """AMGC: one global classifier from means and covariances, old classes' variances enlarged (AMarX)."""

    remembers = ("statistics", "running")

    def __init__(self, hyper: H, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, hyper.covariance, hyper.rank, device=device)  # μ^o, Σ^o
        self.running: Any = None  # μ^n, Σ^n: RunningStatistics of the new classes during their training
        self._old: tuple[torch.Tensor, Covariances, torch.Tensor] | None = None

    @property
    def margin(self) -> float:
        return self.hyper.margin

    def begin(self, task: Task, generator: torch.Generator) -> None:
        super().begin(task, generator)
        self._old = None
        if not task.is_first and self.phase(task).epochs:
            self.running = self.new_statistics(len(task.new))

    def new_statistics(self, classes: int) -> Any:
        """Return empty running statistics of the new classes."""
        return running.RunningStatistics(classes, self.network.dim, device=self.device)

    def begin_epoch(self) -> None:
        if self.running is not None:
            self.running.reset()

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Task 1: cross-entropy. Later tasks, Eq. (separate): L_AMGC = L^n_DBGC + L^o_AMarX."""
        if self.task.is_first:
            return super().loss(batch)
        new, old = self.new_loss(batch), self.old_loss(batch)
        if self.hyper.balance == "two_means":
            return {"new": new, "old": old}
        share = len(self.task.new) / len(self.task.seen)
        return {"new": share * new, "old": (1 - share) * old}

    def new_loss(self, batch: Batch, among: torch.Tensor | None = None) -> torch.Tensor:
        """Compute Eq. (L-DBGC-N): L_DB of the new classes. The batch updates their statistics first."""
        mean = self.running.update(batch.features, batch.labels - self.task.new.start)
        present = self.running.count > 0  # classes without an image so far have no statistics
        return losses.distribution_loss(
            self.head.weight,
            self.head.bias,
            mean,
            self.running.covariance,
            targets=torch.tensor(self.task.new, device=self.device),
            among=among,
            class_weight=present / present.sum(),
        )

    def old_loss(self, batch: Batch) -> torch.Tensor:
        """Compute Eq. (L-AMarX-O): L_DB of the old classes with enlarged variances."""
        mean, covariance, targets = self.old_statistics()
        return losses.amarx_loss(self.head.weight, self.head.bias, mean, covariance, margin=self.hyper.margin, targets=targets)

    def old_statistics(self) -> tuple[torch.Tensor, Covariances, torch.Tensor]:
        """Return means, covariances and labels of the old classes. They are constant during a task."""
        if self._old is None:
            labels = torch.tensor(self.statistics.classes, device=self.device)
            self._old = self.statistics.mean.float(), self.statistics.covariances, labels
        return self._old

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        self.running = self._old = None
        for rows, labels in features:
            self.statistics.update(rows, labels)

    def may_save(self, counts: Sequence[int]) -> bool:
        """Return whether no running mean is the features of a single image, except of classes with one image only."""
        several = torch.tensor(counts, device=self.device) > 1
        return self.running is None or not bool((several & (self.running.count == 1)).any())
