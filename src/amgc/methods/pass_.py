"""PASS: each rotation of an image is a class of its own; old classes are replayed as means plus noise.

Zhu et al., Prototype Augmentation and Self-Supervision for Incremental Learning, CVPR 2021; CVPR21_PASS/PASS.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from amgc.methods.contract import Batch, Features, Hyper, Phase, Task
from amgc.methods.lazy import statistics, torch
from amgc.methods.registry import method
from amgc.methods.rotations import Rotated
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class PASSHyper(Hyper):
    """Hyper-parameters of PASS."""

    prototypes: float = option(10.0, "weight of the cross-entropy of old classes' noisy means", "official main.py", least=0)
    distillation: float = option(
        10.0, "weight of the distance between features and those of the old network", "official main.py", least=0
    )
    temperature: float = option(0.1, "divides the scores in both cross-entropies", "official main.py", above=0)
    radius: Literal["first", "seen"] = option(
        "first", "r² of the noise: mean variance of the classes of task 1, or of all seen classes (PyCIL)", "official PASS.py"
    )


# The official PASS.py and IL2A.py, the same in every task: StepLR(45) of 101 epochs, with its step before the epoch.
OFFICIAL = Phase(
    epochs=101,
    batch_size=64,
    extractor_lr=1e-3,
    head_lr=1e-3,
    schedule="step",
    milestones=(44 / 101, 89 / 101),
    optimizer="adam",
    weight_decay=2e-4,
    head_weight_decay=2e-4,
)


@method("pass", PASSHyper(OFFICIAL, OFFICIAL), sources={"first": "official PASS.py", "later": "official PASS.py"})
class PASS(Rotated[PASSHyper]):
    """PASS: rotated images as classes of their own; old classes as means plus noise; features distilled.

    Means and radius are of all plain images (officially of augmented ones, without the last batch of an epoch).
    """

    remembers = ("turned", "means", "variances", "old")
    common_start = False

    def __init__(self, hyper: PASSHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.means = torch.zeros(0, network.dim, device=device)
        self.variances = torch.zeros(0, device=device)  # mean variance of each class that the radius is computed from
        self.old: Extractor | None = None

    @property
    def radius(self) -> torch.Tensor:
        """r of the noise, one number for all features and classes."""
        return self.variances.mean().sqrt()

    def begin(self, task: Task, generator: torch.Generator) -> None:
        super().begin(task, generator)
        self.old = None if task.is_first or not self.trains_network() else self.network_copy()

    def outputs(self, features: torch.Tensor) -> torch.Tensor:
        return super().outputs(features) / self.hyper.temperature

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        cross_entropy = torch.nn.functional.cross_entropy
        terms = {"cross-entropy": cross_entropy(self.outputs(batch.features), batch.labels)}
        if not self.task.is_first:
            drawn, labels = self.pseudo_features(batch.generator)
            terms["prototypes"] = self.hyper.prototypes * cross_entropy(self.outputs(drawn), labels)
        if self.old is not None:
            distance = torch.linalg.vector_norm(batch.features - batch.through(self.old))
            terms["distillation"] = self.hyper.distillation * distance
        return terms

    def pseudo_features(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw μ_y + r ε for as many old classes y, drawn with repetition, as a batch has images. Return them with labels y."""
        labels = torch.randint(len(self.task.old), (self.phase(self.task).batch_size,), generator=generator).to(self.device)
        noise = torch.randn(len(labels), self.network.dim, generator=generator).to(self.device)
        return self.means[labels] + self.radius * noise, labels

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        self.old = None
        new = statistics.ClassStatistics(self.network.dim, "diagonal", device=self.device)
        for rows, labels in features:
            new.update(rows, labels)
        order = [new.index(label) for label in task.new]
        self.means = torch.cat([self.means, new.mean[order].float()])
        if task.is_first or self.hyper.radius == "seen":
            self.variances = torch.cat([self.variances, new.covariances.variances()[order].mean(1)])

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the distribution of pseudo features: the class mean, and the same radius in all directions."""
        axes = axes.to(self.means)
        return axes @ self.means[label], self.radius**2 * (axes @ axes.T), None
