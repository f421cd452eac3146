"""ACIL (Zhuang et al., NeurIPS 2022) and DS-AL (AAAI 2024): ridge regression on random features, summed over tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from amgc.methods.contract import Features, Task
from amgc.methods.frozen import FrozenHyper, RandomFeatures
from amgc.methods.lazy import symmetric, torch
from amgc.methods.ranpac import ridge_solution
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class ACILHyper(FrozenHyper):
    """Hyper-parameters of ACIL and DS-AL."""

    expansion: int = option(
        0, "random features; 0: 16 times the network's, 8192 for 512", "official: 8192 on CIFAR-100, 16384 on ImageNet", least=0
    )
    gamma: float = option(0.1, "ridge of the main stream", "official", above=0)
    gamma_comp: float = option(0.1, "ridge of the compensation stream", "official", above=0)
    ratio: float = option(
        0.0, "weight of the compensation stream; 0: no such stream, as in ACIL", "official: 0.6 on CIFAR-100", least=0
    )


@method("acil", ACILHyper())
class ACIL(RandomFeatures[ACILHyper]):
    """ACIL: ridge regression of one-hot labels on random ReLU features, identical to training on all data together.

    Computed in float64, as in the official code, which updates the inverse of the Gram matrix batch by batch. Here the Gram
    matrix is summed, and solved once per task: the same result with less than half the arithmetic. The random weights are drawn
    like those of a linear layer, from a seed. Only the seed is stored.
    """

    remembers: ClassVar[tuple[str, ...]] = ("seed", "gram", "sums", "weight")

    def __init__(self, hyper: ACILHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.width = hyper.expansion or 16 * network.dim
        self.gram, self.sums = self.untrained()
        self.weight = self.sums
        self._random: torch.Tensor | None = None

    def untrained(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the upper triangle of Xᵀ X (D, D), and Xᵀ Y (D, C), for empty X."""
        gram = torch.zeros(self.width, self.width, dtype=torch.float64, device=self.device)
        return gram, gram[:, :0].clone()

    def expanded(self, features: torch.Tensor) -> torch.Tensor:
        """Return random projections (n, D), before the activation."""
        if self._random is None:
            draws = torch.rand(
                self.network.dim, self.width, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64
            )
            self._random = ((2 * draws - 1) / self.network.dim**0.5).to(self.device)  # the distribution of torch.nn.Linear
        return features.double() @ self._random

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        self.sums = grown(self.sums, len(task.seen))
        for rows, labels in features:
            expanded = self.expanded(rows).relu()
            symmetric.add_gram(self.gram, expanded)
            self.sums.index_add_(1, labels, expanded.T)
        self.weight = solved(self.gram, self.hyper.gamma, self.sums)

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        return self.expanded(features).relu() @ self.weight


@method("ds-al", ACILHyper(ratio=0.6))
class DSAL(ACIL):
    """DS-AL: ACIL with a second stream of tanh features that learns the first stream's residuals of the new classes.

    Residuals are computed after the main stream has learned the whole task, as in the paper. The official code computes them
    batch by batch.
    """

    remembers: ClassVar[tuple[str, ...]] = (*ACIL.remembers, "gram_comp", "sums_comp", "weight_comp")

    def __init__(self, hyper: ACILHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.gram_comp, self.sums_comp = self.untrained()
        self.weight_comp = self.sums_comp

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        batches = list(features)
        super().end(task, batches, generator)
        self.sums_comp = grown(self.sums_comp, len(task.seen))
        for rows, labels in batches:
            expanded = self.expanded(rows)
            residual = torch.nn.functional.one_hot(labels, len(task.seen)) - expanded.relu() @ self.weight
            residual[:, : task.new.start] = 0.0  # previous label cleansing
            expanded = expanded.tanh()
            symmetric.add_gram(self.gram_comp, expanded)
            self.sums_comp += expanded.T @ residual
        self.weight_comp = solved(self.gram_comp, self.hyper.gamma_comp, self.sums_comp)

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        expanded = self.expanded(features)
        return expanded.relu() @ self.weight + self.hyper.ratio * (expanded.tanh() @ self.weight_comp)


def grown(sums: torch.Tensor, classes: int) -> torch.Tensor:
    """Append columns of zeros for new classes, whose targets have all been 0."""
    return torch.cat([sums, sums.new_zeros(len(sums), classes - sums.shape[1])], 1)


def solved(gram: torch.Tensor, gamma: float, sums: torch.Tensor) -> torch.Tensor:
    """Return W = (Xᵀ X + γ I)⁻¹ Xᵀ Y (D, C)."""
    weight = ridge_solution(gram, gamma, sums)
    if weight is None:
        raise ValueError(f"the Gram matrix cannot be solved with γ = {gamma}, which rounding exceeds; increase it.")
    return weight
