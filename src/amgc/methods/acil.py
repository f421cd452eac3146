"""ACIL (Zhuang et al., NeurIPS 2022) and DS-AL (AAAI 2024): ridge regression on random features, updated exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from amgc.methods.contract import Features, Task
from amgc.methods.frozen import FrozenHyper, RandomFeatures
from amgc.methods.lazy import torch
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

    Computed in float64, as in the official code. The random weights are drawn like those of a linear layer, from a seed. Only
    the seed is stored.
    """

    remembers: ClassVar[tuple[str, ...]] = ("seed", "inverse", "weight")

    def __init__(self, hyper: ACILHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.width = hyper.expansion or 16 * network.dim
        self.inverse, self.weight = self.untrained(hyper.gamma)
        self._random: torch.Tensor | None = None

    def untrained(self, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return R = (Xᵀ X + γ I)⁻¹ (D, D) and W (D, C) for empty X."""
        unit = torch.eye(self.width, dtype=torch.float64, device=self.device)
        return unit / gamma, unit[:, :0].clone()

    def expanded(self, features: torch.Tensor) -> torch.Tensor:
        """Return random projections (n, D), before the activation."""
        if self._random is None:
            draws = torch.rand(
                self.network.dim, self.width, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64
            )
            self._random = ((2 * draws - 1) / self.network.dim**0.5).to(self.device)  # the distribution of torch.nn.Linear
        return features.double() @ self._random

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        batches = list(features)
        self.weight = grown(self.weight, len(task.seen))
        for rows, labels in batches:
            targets = torch.nn.functional.one_hot(labels, len(task.seen)).double()
            recursive_ridge(self.inverse, self.weight, self.expanded(rows).relu(), targets)

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        return self.expanded(features).relu() @ self.weight


@method("ds-al", ACILHyper(ratio=0.6))
class DSAL(ACIL):
    """DS-AL: ACIL with a second stream of tanh features that learns the first stream's residuals of the new classes.

    Residuals are computed after the main stream has learned the whole task, as in the paper. The official code computes them
    batch by batch.
    """

    remembers: ClassVar[tuple[str, ...]] = (*ACIL.remembers, "inverse_comp", "weight_comp")

    def __init__(self, hyper: ACILHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.inverse_comp, self.weight_comp = self.untrained(hyper.gamma_comp)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        batches = list(features)
        super().end(task, batches, generator)
        self.weight_comp = grown(self.weight_comp, len(task.seen))
        for rows, labels in batches:
            expanded = self.expanded(rows)
            residual = torch.nn.functional.one_hot(labels, len(task.seen)) - expanded.relu() @ self.weight
            residual[:, : task.new.start] = 0.0  # previous label cleansing
            recursive_ridge(self.inverse_comp, self.weight_comp, expanded.tanh(), residual)

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        expanded = self.expanded(features)
        return expanded.relu() @ self.weight + self.hyper.ratio * (expanded.tanh() @ self.weight_comp)


def grown(weight: torch.Tensor, classes: int) -> torch.Tensor:
    """Append columns of zeros for new classes, the solution of ridge regression while all their targets are 0."""
    return torch.cat([weight, weight.new_zeros(len(weight), classes - weight.shape[1])], 1)


def recursive_ridge(inverse: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> None:
    """Update R (D, D) and W (D, C) in place with rows (n, D) and targets (n, C): ACIL's Eqs. (9) and (10), by Cholesky.

    R ← R - R Xᵀ (I + X R Xᵀ)⁻¹ X R,  W ← W + R Xᵀ (Y - X W), with L Lᵀ = I + X R Xᵀ and B = L⁻¹ X R.
    """
    product = rows @ inverse
    system = product @ rows.T
    system.diagonal().add_(1.0)
    lower = torch.linalg.cholesky(system)
    half = torch.linalg.solve_triangular(lower, product, upper=False)
    error = torch.linalg.solve_triangular(lower, targets - rows @ weight, upper=False)
    inverse.addmm_(half.T, half, alpha=-1.0)
    weight.addmm_(half.T, error)
