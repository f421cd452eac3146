"""RanPAC (McDonnell et al., NeurIPS 2023): ridge regression on random features, with a ridge chosen in each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amgc.methods.contract import Features, Task
from amgc.methods.frozen import FrozenHyper, RandomFeatures
from amgc.methods.lazy import torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class RanPACHyper(FrozenHyper):
    """Hyper-parameters of RanPAC."""

    projections: int = option(
        0, "M: random features; 0: 10000, or 20 times the network's features if that is less", "official: 10000 for 768"
    )
    ridges: tuple[float, ...] = option(
        tuple(10.0**power for power in range(-8, 9)), "candidates for the ridge λ", "official: 1e-8 to 1e8"
    )
    holdout: float = option(0.2, "share of a task's training features on which λ is chosen", "official")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projections < 0 or not self.ridges or not min(self.ridges) > 0 or not 0 < self.holdout < 1:
            raise ValueError("projections must not be negative, ridges positive, and holdout between 0 and 1.")


@method("ranpac", RanPACHyper())
class RanPAC(RandomFeatures[RanPACHyper]):
    """RanPAC: Gram matrix and class sums of random ReLU features; ridge regression, with λ from a holdout of each task.

    Differences from the official code: it uses float64; the number of classes need not be known in advance; task 1 trains the
    whole network, not adapters; λ is increased tenfold if the Gram matrix cannot be solved. The random weights are drawn from
    a seed, and only the seed is stored.
    """

    remembers = ("seed", "ridge", "gram", "sums", "weight")

    def __init__(self, hyper: RanPACHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.width = hyper.projections or min(10_000, 20 * network.dim)
        self.ridge = 1.0
        self.gram = torch.zeros(self.width, self.width, dtype=torch.float64, device=device)  # G = Hᵀ H
        self.sums = self.gram[:, :0].clone()  # Q = Hᵀ Y, (M, C)
        self.weight = self.sums
        self._random: torch.Tensor | None = None

    def expanded(self, features: torch.Tensor) -> torch.Tensor:
        """Return random features (n, M)."""
        if self._random is None:
            drawing = torch.Generator().manual_seed(self.seed)
            self._random = torch.randn(self.network.dim, self.width, generator=drawing, dtype=torch.float64).to(self.device)
        return (features.double() @ self._random).relu_()

    def end(self, task: Task, features: Features) -> None:
        batches = list(features)
        self.choose_ridge(task, torch.cat([rows for rows, _ in batches]), torch.cat([labels for _, labels in batches]))
        self.sums = torch.cat([self.sums, self.sums.new_zeros(self.width, len(task.new))], 1)
        for rows, labels in batches:
            expanded = self.expanded(rows)
            self.gram.addmm_(expanded.T, expanded)
            self.sums.index_add_(1, labels, expanded.T)
        self.weight = self.solved()

    def choose_ridge(self, task: Task, rows: torch.Tensor, labels: torch.Tensor) -> None:
        """Choose the λ with the least squared error on the holdout after learning from the rest of the task.

        λ is kept if the task is too small. All λ use one eigendecomposition, of Hᵀ H, or of H Hᵀ if there are fewer rows than
        random features.
        """
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed + 1 + task.index))
        count = int((1 - self.hyper.holdout) * len(rows))
        if not count:
            return
        train, held = order[:count].to(self.device), order[count:].to(self.device)
        targets = torch.nn.functional.one_hot(labels - task.new.start, len(task.new)).double()
        known, asked = self.expanded(rows[train]), self.expanded(rows[held])
        if count <= self.width:
            values, vectors = torch.linalg.eigh(known @ known.T)
            asked, wanted = asked @ known.T @ vectors, vectors.T @ targets[train]
        else:
            values, vectors = torch.linalg.eigh(known.T @ known)
            asked, wanted = asked @ vectors, vectors.T @ (known.T @ targets[train])
        errors = [
            (asked @ (wanted / (values.clamp_min(0) + ridge)[:, None]) - targets[held]).square().mean()
            for ridge in self.hyper.ridges
        ]
        self.ridge = self.hyper.ridges[int(torch.stack(errors).argmin())]

    def solved(self) -> torch.Tensor:
        """Return W = (G + λ I)⁻¹ Q, (M, C)."""
        while True:
            system = self.gram.clone()
            system.diagonal().add_(self.ridge)
            triangle, failed = torch.linalg.cholesky_ex(system)
            if not bool(failed):
                return torch.cholesky_solve(self.sums, triangle)
            self.ridge *= 10

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        return self.expanded(features) @ self.weight
