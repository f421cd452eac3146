"""Nearest class mean (SimpleCIL, Zhou et al., 2023). Nothing is trained after task 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amgc.methods.contract import Features, Task
from amgc.methods.frozen import Frozen, FrozenHyper, keep_means
from amgc.methods.lazy import torch
from amgc.methods.registry import method
from amgc.options import option


@dataclass(frozen=True)
class NCMHyper(FrozenHyper):
    """Hyper-parameters of NCM."""

    metric: Literal["cosine", "euclidean"] = option(
        "cosine", "similarity of a feature to a class mean", "PyCIL, simplecil.py; euclidean is the older NCM"
    )


@method("ncm", NCMHyper())
class NCM(Frozen[NCMHyper]):
    """NCM (SimpleCIL): the nearest class mean of a network that is frozen after task 1.

    The means are the rows of the head, and nothing else is stored. They are of plain images, as in PyCIL. Task 1 is trained
    with a linear head, not with SimpleCIL's cosine head, so that all methods can share its training.
    """

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        keep_means(self, task.new, features)

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        means, features = self.head.weight.double(), features.double()
        if self.hyper.metric == "euclidean":
            return -torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist")
        normalize = torch.nn.functional.normalize
        return normalize(features) @ normalize(means).T
