"""IL2A: mixtures of two new classes are auxiliary classes during a task; old classes are replayed as Gaussians.

Zhu et al., Class-Incremental Learning via Dual Augmentation, NeurIPS 2021; IL2A/cifar/IL2A.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amgc.methods.contract import Batch, Features, Hyper, Method, Task
from amgc.methods.lazy import gaussian, losses, statistics, torch
from amgc.methods.pass_ import OFFICIAL
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class IL2AHyper(Hyper):
    """Hyper-parameters of IL2A."""

    rounds: int = option(
        4, "classAug: number of times that a batch is paired with itself, shuffled", "official IL2A.py", least=0
    )
    mixing: int = option(20, "classAug: α of the mixing weights, drawn from Beta(α, α)", "official IL2A.py", least=1)
    band: float = option(
        0.1, "classAug: mixing weights farther than this from ½ are set to ½", "official cifar/IL2A.py; tiny: 0.2", least=0
    )
    semantic: float = option(10.0, "weight of semanAug, the loss of old classes' Gaussians", "official main.py")
    ratio: float = option(2.5, "semanAug: factor of the old classes' covariances", "official IL2A.py", least=0)
    distillation: float = option(
        10.0, "weight of the distance between features and those of the old network", "official main.py"
    )
    temperature: float = option(0.1, "divides the scores in both classification losses", "official main.py", above=0)


@method("il2a", IL2AHyper(OFFICIAL, OFFICIAL), sources={"first": "official IL2A.py", "later": "official IL2A.py"})
class IL2A(Method[IL2AHyper]):
    """IL2A: mixtures of new classes as auxiliary classes; old classes by mean and covariance; features distilled.

    Differences from the official code: each old class has its own covariance (officially, from task 3 on, that of another
    class), and statistics are of all plain images (officially of augmented ones, without the last batch of an epoch). If the
    input are features, these are mixed like images.
    """

    remembers = ("statistics", "old", "auxiliary")
    common_start = False

    def __init__(self, hyper: IL2AHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, device=device)
        self.old: Extractor | None = None
        self.auxiliary = 0  # outputs after those of the seen classes, one per pair of new classes, during a task

    def begin(self, task: Task, generator: torch.Generator) -> None:
        self.auxiliary = len(task.new) * (len(task.new) - 1) // 2
        self.head.grow(len(task.seen) + self.auxiliary, generator, "torch")
        self.old = None if task.is_first or not self.trains_network() else self.network_copy()

    def views(
        self, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch and, as in classAug, mixtures of pairs of its images from different classes."""
        count, rounds = len(labels), self.hyper.rounds
        shuffled = torch.rand(rounds, count, generator=generator).argsort(1).flatten().to(labels.device)
        share = self.shares(rounds * count, generator).to(images)
        first, second = labels.repeat(rounds), labels[shuffled]
        differ = (first != second).nonzero().squeeze(1)
        share = share[differ].view(-1, *[1] * (images.ndim - 1))
        mixed = share * images[differ % count] + (1 - share) * images[shuffled[differ]]
        return torch.cat([images, mixed]), torch.cat([labels, self.pair(first[differ], second[differ])])

    def shares(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Draw from Beta(α, α), the median of 2α - 1 uniform numbers. torch.distributions takes no generator."""
        drawn = torch.rand(count, 2 * self.hyper.mixing - 1, generator=generator).median(1).values
        return torch.where((drawn - 0.5).abs() <= self.hyper.band, drawn, 0.5)

    def pair(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the label of a mixture of two new classes. Pairs (0, 1), (0, 2), …, (1, 2), … follow the seen classes."""
        new, start = len(self.task.new), self.task.new.start
        low, high = torch.minimum(one, other) - start, torch.maximum(one, other) - start
        return len(self.task.seen) + low * (2 * new - low - 1) // 2 + high - low - 1

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        scores = self.head(batch.features) / self.hyper.temperature
        terms = {"cross-entropy": torch.nn.functional.cross_entropy(scores, batch.labels)}
        if not self.task.is_first:
            size = self.phase(self.task).batch_size
            drawn = torch.randint(len(self.task.old), (size,), generator=batch.generator)
            terms["semantic"] = self.hyper.semantic * self.semantic_loss(drawn)
        if self.old is not None:
            distance = torch.linalg.vector_norm(batch.features - batch.through(self.old))
            terms["distillation"] = self.hyper.distillation * distance
        return terms

    def semantic_loss(self, drawn: torch.Tensor) -> torch.Tensor:
        """semanAug of old classes, drawn by their rows in the statistics: a mean of terms of L_DB.

        The cross-entropy of scores (w_jᵀ μ_y + b_j + ½ ratio v_jyᵀ Σ_y v_jy) / t is Eq. (L-DB) with w / t, b / t and
        ratio t Σ, because v_jy / t is squared in the quadratic term.
        """
        seen, temperature = len(self.task.seen), self.hyper.temperature
        count = torch.bincount(drawn, minlength=len(self.statistics)).to(self.device)
        return losses.distribution_loss(
            self.head.weight[:seen] / temperature,
            self.head.bias[:seen] / temperature,
            self.statistics.mean,
            self.statistics.covariances.scaled(self.hyper.ratio * temperature),
            targets=torch.tensor(self.statistics.classes, device=self.device),
            class_weight=count / len(drawn),
        )

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        for rows, labels in features:
            self.statistics.update(rows, labels)
        self.head.set(self.head.weight[: len(task.seen)], self.head.bias[: len(task.seen)])
        self.old, self.auxiliary = None, 0

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """semanAug multiplies the covariances of old classes by its ratio."""
        mean, spread = gaussian.along(self.statistics, label, axes)
        return mean, spread, self.hyper.ratio * spread if label in self.task.old else None

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(features)[:, : len(self.head) - self.auxiliary]
