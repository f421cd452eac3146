"""The ablations of the paper's Tables 2 and 3: AMGC with other loss terms, and with the choices that the paper leaves open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from amgc.methods.amgc import AMGC, FIRST, LATER, SOURCES, AMGCHyper
from amgc.methods.contract import Batch, Features, Task
from amgc.methods.lazy import covariance as covariances
from amgc.methods.lazy import gaussian, losses, running, torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.core.covariance import Covariances
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class AblationHyper(AMGCHyper):
    """Hyper-parameters of the ablations. With `margin` 0.4 and all others at their defaults, the method is AMGC."""

    margin: float = option(
        0.0, "λ of VE: by how much the variances of old classes are enlarged; 0: not at all", "DBGC", least=0
    )
    new_term: Literal["distribution", "samples"] = option(
        "distribution", "loss of the new classes: L_DB or cross-entropy", "paper, Eq. L-DBGC-N"
    )
    old_term: Literal["distribution", "samples"] = option(
        "distribution", "loss of the old classes: L_DB, or cross-entropy of pseudo features", "paper, Eq. L-DBGC-O"
    )
    softmax: Literal["global", "local"] = option(
        "global", "the softmax is over all seen classes (GC), or over new and old ones separately (LC)", "paper, 3.2"
    )
    enlarge: Literal["variances", "isotropic", "whole"] = option(
        "variances", "VE adds λ times: each variance, their mean, or the whole covariance", "paper, Eq. ve"
    )
    soft_margin: float = option(
        0.0, "SM: a constant margin of the old classes", "paper, Table 3; its value is not given", least=0
    )
    reset: Literal["epoch", "task"] = option(
        "epoch", "when the new classes' running statistics are reset; ISDA: task", "open in the paper"
    )
    decay: float = option(  # below 1: the running mean could be a single image's features
        0.0,
        "minimum weight of a batch in the running statistics; 0: all batches weigh the same",
        "open in the paper",
        least=0,
        below=1,
    )
    mean_gradient: Literal["running", "straight_through"] = option(
        "running", "the gradient of the mean: by the batch's weight in it, or as if that were 1", "open in the paper"
    )
    pseudo: int = option(
        0, "pseudo features per old class and step; 0: in total as many as the batch has images", "PASS, IL2A", least=0
    )
    new_samples: Literal["real", "pseudo"] = option(
        "real", "for new_term samples: the images' features, or draws from the running statistics", "open in the paper"
    )
    head_start: Literal["keep", "scratch"] = option(
        "keep", "before a task: keep the old classes' weights, or initialise all again", "paper, 3.1: either"
    )


class Ablation(AMGC[AblationHyper]):
    """AMGC with other terms."""

    def __init__(self, hyper: AblationHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self._draw: Any = None  # draws from the old classes' Gaussians, made once per task

    def begin(self, task: Task, generator: torch.Generator) -> None:
        if self.hyper.head_start == "scratch":
            self.head.set(self.head.weight[:0], self.head.bias[:0])
        super().begin(task, generator)
        self._draw = None

    def new_statistics(self, classes: int) -> Any:
        return running.RunningStatistics(
            classes, self.network.dim, decay=self.hyper.decay, gradient=self.hyper.mean_gradient, device=self.device
        )

    def begin_epoch(self) -> None:
        if self.hyper.reset == "epoch":
            super().begin_epoch()

    def new_loss(self, batch: Batch, among: torch.Tensor | None = None) -> torch.Tensor:
        among = self.among(self.task.new)
        if self.hyper.new_term == "distribution":
            return super().new_loss(batch, among)
        if self.hyper.new_samples == "real":
            return losses.sample_loss(self.head.weight, self.head.bias, batch.features, batch.labels, among=among)
        mean = self.running.update(batch.features, batch.labels - self.task.new.start)
        present = self.running.count > 0
        draws = gaussian.sample(mean, self.running.covariance, self.draws(batch, self.task.new), batch.generator)
        return self.drawn_loss(draws[present], torch.tensor(self.task.new, device=self.device)[present], among)

    def old_loss(self, batch: Batch) -> torch.Tensor:
        mean, spread, targets = self.old_statistics()
        among = self.among(self.task.old)
        if self.hyper.old_term == "distribution":
            return losses.soft_margin_loss(
                self.head.weight, self.head.bias, mean, spread, margin=self.hyper.soft_margin, targets=targets, among=among
            )
        if self._draw is None:
            self._draw = gaussian.Sampler(mean, spread)
        return self.drawn_loss(self._draw(self.draws(batch, self.task.old), batch.generator), targets, among)

    def drawn_loss(self, draws: torch.Tensor, labels: torch.Tensor, among: torch.Tensor | None) -> torch.Tensor:
        """Compute Eq. (sample) for pseudo features (classes, draws, d)."""
        targets = labels.repeat_interleave(draws.shape[1])
        return losses.sample_loss(self.head.weight, self.head.bias, draws.flatten(0, 1), targets, among=among)

    def old_statistics(self) -> tuple[torch.Tensor, Covariances, torch.Tensor]:
        """Return the same as AMGC, with the covariances of `enlarged`."""
        if self._old is None:
            mean, spread, labels = super().old_statistics()
            self._old = mean, self.enlarged(spread), labels
        return self._old

    def enlarged(self, spread: Covariances) -> Covariances:
        """Return VE of the covariances, Eq. (ve), or one of its two simpler variants."""
        if self.hyper.enlarge == "variances":
            return covariances.enlarge(spread, self.hyper.margin)
        if self.hyper.enlarge == "whole":
            return spread.scaled(1 + self.hyper.margin)
        level = spread.variances().mean(-1, keepdim=True).expand(-1, self.network.dim)
        return spread.plus_diagonal(self.hyper.margin * level)

    def among(self, side: range) -> torch.Tensor | None:
        """Return the classes in the softmax: None for all seen classes, otherwise the new or the old ones."""
        return torch.tensor(side, device=self.device) if self.hyper.softmax == "local" else None

    def draws(self, batch: Batch, side: range) -> int:
        """Return the number of pseudo features per class."""
        return self.hyper.pseudo or -(-len(batch.labels) // len(side))

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        self._draw = None
        super().end(task, features, generator)

    # ---- for the report --------------------------------------------------------------------------------------------------

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        mean, spread, enlarged = super().gaussian(label, axes)
        if enlarged is None or self.hyper.enlarge == "variances":
            return mean, spread, enlarged
        if self.hyper.enlarge == "whole":
            return mean, spread, (1 + self.hyper.margin) * spread
        axes, extra = axes.to(spread), self.variances([label])[0]
        return mean, spread, spread + (axes * self.hyper.margin * extra) @ axes.T

    def margins(self, *, pairs: bool) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Return the margins of VE plus the soft margin; None if the loss of old classes has neither, or no diagonal Λ_k."""
        hyper = self.hyper
        whole = bool(hyper.margin) and hyper.enlarge == "whole"
        if not (hyper.margin or hyper.soft_margin) or hyper.old_term == "samples" or whole:
            return None
        old, weight = list(self.task.old), self.head.weight
        own, against = self.margins_among(weight[: len(old)] if hyper.softmax == "local" else weight, pairs)
        own[old] += hyper.soft_margin
        if against is not None:
            against[old, : len(old) if hyper.softmax == "local" else None] += hyper.soft_margin
            against.fill_diagonal_(0.0)
        return own, against

    def variances(self, labels: Iterable[int]) -> torch.Tensor:
        rows = super().variances(labels)
        return rows if self.hyper.enlarge == "variances" else rows.mean(-1, keepdim=True).expand_as(rows)


def ablation(name: str, summary: str, **hyper: Any) -> None:
    """Register a row of Table 2 or 3."""
    method(name, AblationHyper(FIRST, LATER, **hyper), summary, SOURCES)(Ablation)


SAMPLES: Any = {"new_term": "samples", "old_term": "samples"}
ablation("sblc", "samples for new and old classes, local classifiers", **SAMPLES, softmax="local")
ablation("sbndbolc", "samples for new, distributions for old classes, local", new_term="samples", softmax="local")
ablation("sbgc", "samples for new and old classes, one global classifier", **SAMPLES)
ablation("dblc", "distributions for new and old classes, local classifiers", softmax="local")
ablation("dbgc", "distributions for new and old classes, one global classifier: AMGC without margins")
ablation("dbgc-sm", "dbgc with one constant margin for all old classes (soft margin)", soft_margin=1.0)
