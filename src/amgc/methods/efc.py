"""EFC (Magistri et al., ICLR 2024) and EFC++ (2025): features move where scores do not change; Gaussian prototypes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from amgc.methods.contract import Batch, Features, Hyper, LinearHead, Phase, Task, TaskImages
from amgc.methods.lazy import drift, gaussian, statistics, torch
from amgc.methods.registry import method
from amgc.methods.rotations import Rotated
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

# The official OptimizerManager.py, for CIFAR-100 and Tiny-ImageNet.
ADAM: Any = {"batch_size": 64, "optimizer": "adam", "weight_decay": 2e-4, "head_weight_decay": 2e-4}
FIRST = Phase(100, extractor_lr=1e-3, head_lr=1e-3, schedule="step", milestones=(0.45, 0.9), **ADAM)
LATER = Phase(100, extractor_lr=1e-4, head_lr=1e-4, schedule="constant", batchnorm="fixed", **ADAM)
BALANCE = Phase(50, batch_size=256, extractor_lr=0.0, head_lr=1e-3, schedule="constant")
SOURCES = {"first": "official code", "later": "official code", "second": "official code"}


@dataclass(frozen=True)
class EFCHyper(Hyper):
    """Hyper-parameters of EFC."""

    first: Phase = FIRST
    later: Phase = LATER
    elasticity: float = option(
        10.0, "λ: weight of the empirical feature matrix in the distillation", "official, efc_lamb", least=0
    )
    damping: float = option(0.1, "η: weight of the plain squared distance in it", "official, efc_damping", least=0)
    sigma: float = option(0.2, "σ of the weights of new images when old means are moved", "official, efc_protoupdate", above=0)
    rotations: bool = option(
        True, "whether task 1 has the rotations of images as classes of their own", "official; not ImageNet"
    )
    noise: float = option(1e-5, "added to every variance of a prototype", "official proto.py", least=0)


H = TypeVar("H", bound=EFCHyper)


@method("efc", EFCHyper(), sources=SOURCES)
class EFC(Rotated[H]):
    """EFC: distillation along the directions that matter to the scores; old classes as Gaussians whose means are moved.

    E, the empirical feature matrix, is the mean Fisher information of the scores with respect to the features.
    """

    remembers: ClassVar[tuple[str, ...]] = ("turned", "statistics", "matrix", "old")
    common_start = False  # rotations

    def __init__(self, hyper: H, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, device=device)
        self.matrix = torch.zeros(network.dim, network.dim, dtype=torch.float64, device=device)  # E
        self.old: Extractor | None = None
        self._draw: Any = None  # draws from the old classes' Gaussians, made once per task

    @property
    def turns(self) -> bool:
        return self.hyper.rotations and self.task.is_first and super().turns

    def begin(self, task: Task, generator: torch.Generator) -> None:
        self._draw = None
        super().begin(task, generator)
        if not task.is_first:
            self.turned = LinearHead(self.network.dim, self.device)
        self.old = None if task.is_first or not self.trains_network() else self.network_copy()

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        cross_entropy, start = torch.nn.functional.cross_entropy, self.task.new.start
        if self.task.is_first:
            return {"cross-entropy": cross_entropy(self.outputs(batch.features), batch.labels)}
        new = {"cross-entropy": cross_entropy(self.head(batch.features)[:, start:], batch.labels - start)}
        return new | self.elastic_loss(batch) | self.replay_loss(batch)

    def elastic_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Compute the mean of δᵀ (λ E + η I) δ over the drift δ of each image's features."""
        if self.old is None:
            return {}
        moved = batch.features - batch.through(self.old)
        matrix = self.hyper.elasticity * self.matrix.to(moved)
        return {"elastic": ((moved @ matrix) * moved).sum(1).mean() + self.hyper.damping * moved.square().sum(1).mean()}

    def replay_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Compute PR-ACE: cross-entropy of prototypes and images among all classes, in proportion to old and new classes."""
        size = self.phase(self.task).batch_size
        old = round(size * len(self.task.old) / len(self.task.seen))
        drawn, labels = self.prototypes(old, batch.generator)
        features = torch.cat([drawn, batch.features[: size - old]])
        targets = torch.cat([labels, batch.labels[: size - old]])
        return {"prototypes": torch.nn.functional.cross_entropy(self.head(features), targets)}

    def prototypes(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw `count` features from the Gaussians of old classes, as evenly as possible. Return them with their labels."""
        labels, old = torch.tensor(self.statistics.classes, device=self.device), len(self.statistics)
        if self._draw is None:
            spread = self.statistics.covariances
            spread = spread.plus_diagonal(torch.full((old, self.network.dim), self.hyper.noise, device=self.device))
            self._draw = gaussian.Sampler(self.statistics.mean.float(), spread)
        each = -(-count // old)
        drawn = self._draw(each, generator).transpose(0, 1).flatten(0, 1)  # all classes once, then again, …
        order = torch.cat([torch.randperm(old, generator=generator) + old * turn for turn in range(each)])[:count]
        order = order.to(self.device)
        return drawn[order], labels[order % old]

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        self.move_means(images)

    def move_means(self, images: TaskImages) -> None:
        """Move the means of old classes by the drift of the new images near them, where E measures distances."""
        if self.old is not None:
            old, new = (images.features(network).double() for network in (self.old, self.network))
            moves = drift.elastic_displacement(self.statistics.mean, old, new, self.matrix, self.hyper.sigma)
            for label, mean in zip(self.statistics.classes, self.statistics.mean + moves, strict=True):
                drift.move(self.statistics, label, mean)
            self._draw = None

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        self.old = self._draw = None
        spread, count = torch.zeros(len(task.seen), len(task.seen), dtype=torch.float64, device=self.device), 0
        with torch.no_grad():
            for rows, labels in features:
                self.statistics.update(rows, labels)
                p = torch.softmax(self.head(rows).double(), 1)
                spread += p.sum(0).diag() - p.T @ p
                count += len(labels)
            weight = self.head.weight.double()
            self.matrix = weight.T @ (spread / count) @ weight
        self.turned = LinearHead(self.network.dim, self.device)

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return *gaussian.along(self.statistics, label, axes), None


@dataclass(frozen=True)
class EFCPlusHyper(EFCHyper):
    """Hyper-parameters of EFC++."""

    later: Phase = replace(LATER, head_weight_decay=0.0)  # old rows of the head must not move
    second: Phase = BALANCE


@method("efc++", EFCPlusHyper(), sources=SOURCES | {"later.head_weight_decay": "old rows of the head are not trained"})
class EFCPlus(EFC[EFCPlusHyper]):
    """EFC++: the network learns new classes without prototypes; then the head is trained on real and drawn features."""

    def replay_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        return {}

    def second_phase(self, task: Task) -> Phase | None:
        """Return the phase of the head. Real features are the share of the new classes in a batch; draws fill it up."""
        if task.is_first:
            return None
        share = len(task.new) / len(task.seen)
        return replace(self.hyper.second, batch_size=max(1, round(share * self.hyper.second.batch_size)))

    def begin_second(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        self.move_means(images)

    def second_trainable(self) -> list[torch.Tensor]:
        return [self.head.weight, self.head.bias]

    def second_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        count = round(len(batch.labels) * len(self.task.old) / len(self.task.new))
        drawn, labels = self.prototypes(count, batch.generator)
        features, targets = torch.cat([drawn, batch.features]), torch.cat([labels, batch.labels])
        return {"balance": torch.nn.functional.cross_entropy(self.head(features), targets)}

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        """Do nothing: the means were moved before the second stage."""
