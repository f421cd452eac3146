"""LwF (Li and Hoiem 2016): the old network's scores of the new images are distilled while new classes are learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from amgc.methods.contract import Batch, Features, Hyper, Method, Task
from amgc.methods.finetune import STEPS
from amgc.methods.lazy import torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class LwFHyper(Hyper):
    """Hyper-parameters of LwF."""

    distillation: float = option(3.0, "weight of the distillation", "PyCIL, lwf.py", least=0)
    temperature: float = option(2.0, "divides the scores in the distillation", "PyCIL, lwf.py; the paper", above=0)


# PyCIL, lwf.py: milestones 60, 120, 160 of 200 epochs, then 60, 120, 180, 220 of 250.
FIRST = replace(STEPS, milestones=(0.3, 0.6, 0.8))
LATER = replace(STEPS, epochs=250, milestones=(0.24, 0.48, 0.72, 0.88), weight_decay=2e-4, head_weight_decay=2e-4)


H = TypeVar("H", bound=LwFHyper)


@method("lwf", LwFHyper(FIRST, LATER), sources={"first": "PyCIL's lwf.py", "later": "PyCIL's lwf.py"})
class LwF(Method[H]):
    """LwF: cross-entropy among the new classes, and distillation of the old network's scores on the new images.

    As in PyCIL, the distillation is a cross-entropy without the factor T² of Hinton et al. If the network is frozen
    (later.extractor-lr 0), no copy of it is stored, and the old head computes the old scores.
    """

    remembers: ClassVar[tuple[str, ...]] = ("old", "old_weight", "old_bias")
    same_training: ClassVar[tuple[str, ...]] = ("distillation", "temperature")

    def __init__(self, hyper: H, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.old: Extractor | None = None  # the network before this task; next line: the head
        self.old_weight, self.old_bias = self.head.weight.detach(), self.head.bias.detach()

    def begin(self, task: Task, generator: torch.Generator) -> None:
        self.old = None if task.is_first or not self.trains_network() else self.network_copy()
        self.old_weight, self.old_bias = self.head.weight.detach(), self.head.bias.detach()
        super().begin(task, generator)  # creates new tensors; the old ones stay unchanged

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        if self.task.is_first:
            return super().loss(batch)
        scores, start = self.head(batch.features), self.task.new.start
        new = torch.nn.functional.cross_entropy(scores[:, start:], batch.labels - start)
        distilled = distillation(scores[:, :start], self.old_scores(batch), self.hyper.temperature)
        return {"cross-entropy": new, "distillation": self.hyper.distillation * distilled}

    def old_scores(self, batch: Batch) -> torch.Tensor:
        """Return scores (n, old classes) of the old network and head."""
        features = batch.features.detach() if self.old is None else batch.through(self.old)
        return features.to(self.old_weight.dtype) @ self.old_weight.T + self.old_bias

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        self.old = None  # the network itself is the old one until the next task


def distillation(scores: torch.Tensor, old: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean over rows (n, C) of -Σ_j p_j log q_j, with p = softmax(old / T) and q = softmax(scores / T)."""
    target = torch.softmax(old / temperature, 1)
    return torch.nn.functional.cross_entropy(scores / temperature, target)
