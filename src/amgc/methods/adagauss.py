"""AdaGauss (Rypeść et al., NeurIPS 2024): class Gaussians go through an adapter; a loss keeps features from collapsing."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amgc.methods.contract import Batch, Features, Hyper, LinearHead, Phase, Task, TaskImages
from amgc.methods.fecam import inverse_factor
from amgc.methods.lazy import drift, gaussian, statistics, torch
from amgc.methods.registry import method
from amgc.methods.rotations import Rotated
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

# The official cifar-10x10.sh and ada_gauss.py. Task 1 has 64 images per batch, and their rotations.
STEPS: Any = {"schedule": "step", "milestones": (0.3, 0.6, 0.9), "clip": 1.0}
FIRST = Phase(200, batch_size=64, extractor_lr=0.1, head_lr=0.1, **STEPS)
LATER = Phase(200, batch_size=256, extractor_lr=0.01, head_lr=0.01, **STEPS)
ADAPT = Phase(100, batch_size=256, extractor_lr=0.0, head_lr=0.01, **STEPS)


@dataclass(frozen=True)
class AdaGaussHyper(Hyper):
    """Hyper-parameters of AdaGauss."""

    first: Phase = FIRST
    later: Phase = LATER
    second: Phase = ADAPT
    bottleneck: int = option(
        64, "S: features behind the bottleneck, or the network's if it has fewer", "official script", least=1
    )
    distillation: float = option(10.0, "λ: weight of the distillation through the distiller", "official script", least=0)
    anti_collapse: float = option(1.0, "α: weight of the anti-collapse loss", "official ada_gauss.py", least=0)
    ceiling: float = option(
        1.0, "β: the anti-collapse loss is constant for larger deviations", "official ada_gauss.py", least=0
    )
    multiplier: int = option(32, "hidden units of distiller and adapter, for each feature", "official script", least=1)
    draws: int = option(
        10_000, "N: draws from a Gaussian that estimate it behind the adapter", "official ada_gauss.py", least=2
    )
    shrinkage: float = option(
        3.0, "share of the mean variance added to each variance for the scores", "official ada_gauss.py", least=0
    )


@method(
    "adagauss",
    AdaGaussHyper(),
    sources=dict.fromkeys(("first", "later", "second"), "official script"),
)
class AdaGauss(Rotated[AdaGaussHyper]):
    """AdaGauss: Gaussians of old classes adapted by an MLP from old to new features; Mahalanobis distance; anti-collapse loss.

    The official network ends in a 1×1 convolution, which before average pooling is this linear bottleneck behind it.
    """

    remembers = ("turned", "bottleneck", "distiller", "old", "old_bottleneck", "adapter", "statistics")
    common_start = False

    def __init__(self, hyper: AdaGaussHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        dim = min(hyper.bottleneck, network.dim)
        self.bottleneck = torch.nn.Linear(network.dim, dim, device=device)
        self.head, self.turned = (LinearHead(dim, device, self.bottleneck) for _ in range(2))
        self.distiller, self.adapter = (perceptron(dim, hyper.multiplier * dim, device) for _ in range(2))
        self.old: Extractor | None = None  # the network before this task; next line: its bottleneck
        self.old_bottleneck = copy.deepcopy(self.bottleneck).requires_grad_(False)
        self.statistics = statistics.ClassStatistics(dim, device=device)
        self._inverse: list[torch.Tensor] = []  # per class a factor A with Aᵀ A = Σ⁻¹, computed once per task

    @property
    def turns(self) -> bool:
        return self.task.is_first and super().turns

    def begin(self, task: Task, generator: torch.Generator) -> None:
        if task.is_first:
            initialise(self.bottleneck, generator)
        else:
            self.turned = LinearHead(self.turned.weight.shape[1], self.device, self.bottleneck)
        super().begin(task, generator)
        initialise(self.distiller, generator)
        self.old = None if task.is_first or not self.trains_network() else self.network_copy()
        self.old_bottleneck.load_state_dict(self.bottleneck.state_dict())

    def trainable(self) -> list[torch.Tensor]:
        more = [] if self.task.is_first else list(self.distiller.parameters())
        return [*super().trainable(), *self.bottleneck.parameters(), *more]

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        start, features = self.task.new.start, self.bottleneck(batch.features)
        scores = self.outputs(batch.features)[:, start:]
        terms = {"cross-entropy": torch.nn.functional.cross_entropy(scores, batch.labels - start)}
        if not self.task.is_first:
            distance = torch.nn.functional.mse_loss(self.distiller(features), self.old_features(batch))
            terms["distillation"] = self.hyper.distillation * distance
        return terms | self.collapse_loss(features)

    def old_features(self, batch: Batch) -> torch.Tensor:
        """Return the features (n, S) of the old network, behind its bottleneck."""
        rows = batch.features.detach() if self.old is None else batch.through(self.old)
        narrow: torch.Tensor = self.old_bottleneck(rows)
        return narrow

    def collapse_loss(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute the anti-collapse loss, for batches with more rows (n, S) than features."""
        if len(features) <= features.shape[1]:
            return {"anti-collapse": features.sum() * 0}
        return {"anti-collapse": self.hyper.anti_collapse * anti_collapse(features, self.hyper.ceiling)}

    # ---- the second stage: the adapter ---------------------------------------------------------------------------------

    def second_phase(self, task: Task) -> Phase | None:
        return None if task.is_first or not self.phase(task).epochs else self.hyper.second

    def begin_second(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        initialise(self.adapter, generator)

    def second_trainable(self) -> list[torch.Tensor]:
        return list(self.adapter.parameters())

    def second_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        adapted = self.adapter(self.old_features(batch))
        with torch.no_grad():
            target = self.bottleneck(batch.features)
        return {"adapter": torch.nn.functional.mse_loss(adapted, target)} | self.collapse_loss(adapted)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        with torch.no_grad():
            if self.second_phase(task) is not None and self.hyper.second.epochs:
                self.adapt_gaussians(task.old, generator)
            for rows, labels in features:
                self.statistics.update(self.bottleneck(rows), labels)
        self.old, self._inverse = None, []
        self.turned = LinearHead(self.turned.weight.shape[1], self.device, self.bottleneck)

    def adapt_gaussians(self, labels: range, generator: torch.Generator) -> None:
        """Replace the Gaussian of each old class by that of its draws behind the adapter."""
        draw = gaussian.Sampler(self.statistics.mean.float(), self.statistics.covariances)
        drawn = draw(self.hyper.draws, generator)
        for label in labels:  # one at a time: the hidden units of all take 160 MB per class
            rows = self.adapter(drawn[self.statistics.index(label)]).double()
            drift.move(self.statistics, label, rows.mean(0), torch.cov(rows.T))

    # ---- scores ----------------------------------------------------------------------------------------------------------

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._inverse = []

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        if len(self._inverse) != len(self.statistics):
            self._inverse = [inverse_factor(self.normalised(label)) for label in range(len(self.statistics))]
        normalize = torch.nn.functional.normalize
        order = [self.statistics.index(label) for label in range(len(self.statistics))]
        rows, means = normalize(self.transformed(features).double()), normalize(self.statistics.mean[order])
        distances = [(rows - mean).matmul(factor.T).square().sum(1) for factor, mean in zip(self._inverse, means, strict=True)]
        return -torch.stack(distances, 1)

    def normalised(self, label: int) -> torch.Tensor:
        """Return the shrunk covariance of a class, scaled to a correlation matrix: (S, S) in float64."""
        spread = self.statistics.covariance
        assert isinstance(spread, torch.Tensor)
        shrunk = gaussian.shrink(spread[self.statistics.index(label)].double(), self.hyper.shrinkage, 0.0)
        matrix = gaussian.correlation(shrunk)
        matrix.diagonal().fill_(1.0)  # also of a constant feature
        return matrix

    # ---- report ----------------------------------------------------------------------------------------------------------

    def transformed(self, features: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            narrow: torch.Tensor = self.bottleneck(features.float())
        return narrow

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *gaussian.along(self.statistics, label, axes), None


def perceptron(dim: int, hidden: int, device: torch.device) -> torch.nn.Sequential:
    """Return an MLP from dim to dim features with one hidden layer."""
    return torch.nn.Sequential(
        torch.nn.Linear(dim, hidden, device=device), torch.nn.GELU(), torch.nn.Linear(hidden, dim, device=device)
    )


def initialise(module: torch.nn.Module, generator: torch.Generator) -> None:
    """Draw weights and biases of linear layers, uniform up to 1/√(inputs), as torch.nn.Linear does."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            bound = layer.in_features**-0.5
            for parameter in (layer.weight, layer.bias):
                parameter.data.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)


def anti_collapse(features: torch.Tensor, ceiling: float) -> torch.Tensor:
    """Return minus the mean of the diagonal of the Cholesky factor of the covariance of features (n, S), cut off above."""
    covariance = torch.cov(features.float().T)
    floor = 1e-6 * covariance.detach().diagonal().mean() + 1e-12
    factor, _ = torch.linalg.cholesky_ex(covariance + floor * torch.eye(len(covariance), device=covariance.device))
    diagonal: torch.Tensor = factor.diagonal()
    return -diagonal.clamp(max=ceiling).mean()
