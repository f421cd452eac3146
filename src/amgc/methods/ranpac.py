"""RanPAC (McDonnell et al., NeurIPS 2023): ridge regression on random features, with a ridge chosen in each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amgc.methods.contract import Features, Task
from amgc.methods.frozen import FrozenHyper, RandomFeatures
from amgc.methods.lazy import symmetric, torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

DOUBLE_UP_TO = 2048  # random features up to which all products are in float64
COARSE = 1e-3  # λ from this share of the trace on needs only a float32 factor
ROWS = 4096  # rows that are expanded at once


@dataclass(frozen=True)
class RanPACHyper(FrozenHyper):
    """Hyper-parameters of RanPAC."""

    projections: int = option(
        0,
        "M: random features; 0: 10000, or 20 times the network's features if that is less",
        "official: 10000 for 768",
        least=0,
    )
    ridges: tuple[float, ...] = option(
        tuple(10.0**power for power in range(-8, 9)), "candidates for the ridge λ", "official: 1e-8 to 1e8", above=0
    )
    holdout: float = option(0.2, "share of a task's training features on which λ is chosen", "official", above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ridges:
            raise ValueError("ridges must have at least one number.")


@method("ranpac", RanPACHyper())
class RanPAC(RandomFeatures[RanPACHyper]):
    """RanPAC: Gram matrix and class sums of random ReLU features; ridge regression, with λ from a holdout of each task.

    Differences from the official code: the number of classes need not be known in advance; task 1 trains the whole network,
    not adapters; λ is increased tenfold if the Gram matrix cannot be solved. Products of many random features are in float32,
    as officially, and summed and solved in float64. The random weights are drawn from a seed, and only the seed is stored.
    """

    remembers = ("seed", "ridge", "gram", "sums", "weight")

    def __init__(self, hyper: RanPACHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.width = hyper.projections or min(10_000, 20 * network.dim)
        self.ridge = 1.0
        # The upper triangle of G = Hᵀ H; zeros below.
        self.gram = torch.zeros(self.width, self.width, dtype=torch.float64, device=device)
        self.sums = self.gram[:, :0].clone()  # Q = Hᵀ Y, (M, C)
        self.weight = self.sums
        self._random: torch.Tensor | None = None

    def expanded(self, features: torch.Tensor) -> torch.Tensor:
        """Return random features (n, M)."""
        if self._random is None:
            drawing = torch.Generator().manual_seed(self.seed)
            weights = torch.randn(self.network.dim, self.width, generator=drawing, dtype=torch.float64)
            self._random = weights.to(self.device, torch.float64 if self.width <= DOUBLE_UP_TO else torch.float32)
        return (features.to(self._random.dtype) @ self._random).relu_()

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        batches = list(features)
        rows, labels = torch.cat([rows for rows, _ in batches]), torch.cat([labels for _, labels in batches])
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed + 1 + task.index))
        rows, labels = rows[order.to(self.device)], labels[order.to(self.device)]
        self.choose_ridge(rows, torch.nn.functional.one_hot(labels - task.new.start, len(task.new)))
        self.sums = torch.cat([self.sums, self.sums.new_zeros(self.width, len(task.new))], 1)
        for some, known in zip(torch.split(rows, ROWS), torch.split(labels, ROWS), strict=True):
            expanded = self.expanded(some)
            self.gram += gram_of(expanded)
            self.sums.index_add_(1, known, expanded.T.double())
        self.weight = self.solved()

    def choose_ridge(self, rows: torch.Tensor, targets: torch.Tensor) -> None:
        """Choose the λ with the least squared error on the last rows after learning from the others. A tiny task keeps λ.

        With fewer rows than random features the system is H Hᵀ + λ I, else Hᵀ H + λ I. Each λ takes a Cholesky factor: one
        in four is tried first, then those around the best.
        """
        count = int((1 - self.hyper.holdout) * len(rows))
        if not count:
            return
        known, asked = self.expanded(rows[:count]), self.expanded(rows[count:])
        wanted, right = targets[count:].double(), targets[:count].to(known.dtype)
        if count <= self.width:
            system, asked = gram_of(known.T), asked @ known.T
        else:
            system, right = gram_of(known), known.T @ right
        del known
        asked, right = asked.double(), right.double()
        ridges, errors = sorted(self.hyper.ridges), dict[int, float]()

        def error(index: int) -> float:
            if index not in errors:
                solved = ridge_solution(system, ridges[index], right)
                errors[index] = float("inf") if solved is None else float((asked @ solved - wanted).square().mean())
            return errors[index]

        best = min({*range(0, len(ridges), 4), len(ridges) - 1}, key=error)
        for step in (2, 1):
            best = min((i for i in (best, best - step, best + step) if 0 <= i < len(ridges)), key=error)
        if errors[best] < float("inf"):
            self.ridge = ridges[best]

    def solved(self) -> torch.Tensor:
        """Return W = (G + λ I)⁻¹ Q, (M, C)."""
        while (weight := ridge_solution(self.gram, self.ridge, self.sums)) is None:
            self.ridge *= 10
        return weight

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        return self.expanded(features).double() @ self.weight


def gram_of(rows: torch.Tensor) -> torch.Tensor:
    """Return the upper triangle of rowsᵀ rows, (d, d) in float64; the products are in the dtype of the rows (n, d)."""
    upper = torch.zeros(rows.shape[1], rows.shape[1], dtype=rows.dtype, device=rows.device)
    symmetric.add_gram(upper, rows)
    return upper.double()


def ridge_solution(upper: torch.Tensor, ridge: float, columns: torch.Tensor) -> torch.Tensor | None:
    """Return (G + λ I)⁻¹ x for columns x, from the upper triangle of G. None if G + λ I is not positive definite.

    If λ is a good part of G's trace, a factor in float32 is accurate enough.
    """
    coarse = ridge > COARSE * float(upper.diagonal().sum()) and len(upper) > DOUBLE_UP_TO
    factor = upper.to(torch.float32 if coarse else torch.float64, copy=True)
    factor.diagonal().add_(ridge)
    if not symmetric.factorise(factor):
        return None
    return symmetric.backward(factor, symmetric.forward(factor, columns)).double()
