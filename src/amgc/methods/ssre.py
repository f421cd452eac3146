"""SSRE (Zhu et al. 2022): side branches learn a new task and are merged into the network; prototypes are replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from amgc.methods.contract import Batch, Features, Hyper, Method, Phase, Task
from amgc.methods.lazy import branches, statistics, torch
from amgc.methods.pass_ import OFFICIAL
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class SSREHyper(Hyper):
    """Hyper-parameters of SSRE."""

    temperature: float = option(0.1, "divides the scores in every cross-entropy", "official code", above=0)
    distillation: float = option(
        1.0, "weight of the distance to the old features, summed over the batch", "official; PyCIL", least=0
    )
    prototypes: float = option(10.0, "weight of the cross-entropy of the old classes' prototypes", "official code", least=0)


# Task 1: PyCIL's values, because the official code for it was never published. They are PASS's but for the weight decay, and
# the rate falls an epoch later.
FIRST = replace(OFFICIAL, milestones=(45 / 101, 90 / 101), weight_decay=5e-4, head_weight_decay=5e-4)
# Later tasks: official code. Batch norm is folded into convolutions where possible, and fixed otherwise.
LATER = Phase(60, extractor_lr=2e-4, head_lr=2e-4, schedule="step", milestones=(0.75,), optimizer="adam", batchnorm="fixed")


@method("ssre", SSREHyper(FIRST, LATER), sources={"first": "PyCIL's ssre.py", "later": "official code"})
class SSRE(Method[SSREHyper]):
    """SSRE: side branches learn the new task and are merged; new images near old prototypes are distilled, not learned.

    After task 1 batch norm is folded into the convolutions. In later tasks the kernels are frozen, and 1×1 branches parallel to
    the 3×3 kernels are trained. The old network is then the network without branches, and no copy is needed. Unlike in the
    official code, prototypes are means over all plain images, and no gradient flows through the selection's weights (as in
    PyCIL). As in the official code, the stem has no branch.
    """

    remembers = ("means",)
    common_start = False  # the temperature

    def __init__(self, hyper: SSREHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.means = torch.zeros(0, network.dim, device=device)  # prototypes of the classes learned so far

    def begin(self, task: Task, generator: torch.Generator) -> None:
        self.head.grow(len(task.seen), generator, "torch")
        self.reshape_network(task.index, begun=True)

    def reshape_network(self, ended: int, begun: bool) -> None:
        if ended:
            branches.fold_batchnorm(self.network)
        if ended and begun and self.trains_network():
            branches.add_branches(self.network)

    def restore_structure(self) -> None:
        branches.unfold_batchnorm(self.network)

    def trains(self, name: str) -> bool:
        return self.task.is_first or name.endswith(".branch")

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        scores = self.head(batch.features) / self.hyper.temperature
        each = torch.nn.functional.cross_entropy(scores, batch.labels, reduction="none")
        if self.task.is_first:
            return {"cross-entropy": each.mean()}
        near = similarity(batch.features.detach(), self.means)
        moved = torch.linalg.vector_norm(batch.features - self.old_features(batch), dim=1)
        drawn = torch.randint(len(self.means), (len(batch.labels),), generator=batch.generator).to(self.device)
        replayed = torch.nn.functional.cross_entropy(self.head(self.means[drawn]) / self.hyper.temperature, drawn)
        return {
            "cross-entropy": ((1 - near) * each).mean(),
            "distillation": self.hyper.distillation * (near * moved).sum(),
            "prototypes": self.hyper.prototypes * replayed,
        }

    def old_features(self, batch: Batch) -> torch.Tensor:
        """Return the features of the network before this task, that is without branches."""
        if not batch.features.requires_grad:
            return batch.features
        with branches.without_branches(self.network):
            return batch.through(self.network)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        branches.merge_branches(self.network)
        if task.is_first:
            branches.fold_batchnorm(self.network)
        found = statistics.ClassStatistics(self.network.dim, "diagonal", device=self.device)
        for rows, labels in features:
            found.update(rows, labels)
        order = [found.index(label) for label in task.new]
        self.means = torch.cat([self.means, found.mean[order].to(self.means)])


def similarity(features: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """Return the largest cosine of features (n, d) with one of the means (K, d), (n,); 0 if all are negative."""
    normalize = torch.nn.functional.normalize
    return (normalize(features, dim=1) @ normalize(means, dim=1).T).amax(1).clamp(0, 1)
