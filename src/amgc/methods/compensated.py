"""Base class of methods whose stored class means follow the drift of the features (SDC, ADC, LDC)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from amgc.methods.contract import Features, Phase, Task
from amgc.methods.frozen import class_means
from amgc.methods.lazy import torch
from amgc.methods.lwf import FIRST, LwF, LwFHyper
from amgc.methods.lwf import LATER as LWF_LATER
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

# The official lwf.py of ADC, LDC and DPCR, for CIFAR-100 and ImageNet-Subset.
LATER = replace(LWF_LATER, epochs=100, extractor_lr=0.05, head_lr=0.05, milestones=(0.45, 0.9))
SOURCES = {"first": "official lwf.py", "later": "official lwf.py"}


@dataclass(frozen=True)
class CompensatedHyper(LwFHyper):
    """Hyper-parameters of methods that compensate the drift of a network that LwF trains."""

    first: Phase = FIRST
    later: Phase = LATER
    distillation: float = option(10.0, "weight of the distillation", "official lwf.py", least=0)


H = TypeVar("H", bound=CompensatedHyper)


class Compensated(LwF[H]):
    """LwF's training, and the nearest class mean by cosine. A subclass moves the means of old classes after each task."""

    remembers: ClassVar[tuple[str, ...]] = (*LwF.remembers, "means")

    def __init__(self, hyper: H, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.means = torch.zeros(0, network.dim, dtype=torch.float64, device=device)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        super().end(task, features, generator)
        self.means = torch.cat([self.means, class_means(features, task.new)])

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        normalize = torch.nn.functional.normalize
        return normalize(features.double()) @ normalize(self.means).T
