"""AMGC, the paper's method, and its ablations: one loss, put together from a new-class term and an old-class term."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from amgc.methods.contract import Batch, Features, Hyper, Method, Phase, Task, about
from amgc.methods.lazy import covariance, gaussian, losses, running, solver, statistics, torch
from amgc.methods.registry import method

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class AMGCHyper(Hyper):
    """Hyper-parameters of AMGC. The paper leaves many open; each such choice is a field here."""

    margin: float = about(0.4, "λ of VE, by which old classes' variances are enlarged; 0: none", "paper, 4.1")
    new_term: Literal["distribution", "samples"] = about(
        "distribution", "new classes: L_DB or cross-entropy", "paper, Eq. L-DBGC-N"
    )
    old_term: Literal["distribution", "samples"] = about(
        "distribution",
        "old classes: L_DB, or cross-entropy of pseudo features drawn from their Gaussians",
        "paper, Eq. L-AMarX-O",
    )
    softmax: Literal["global", "local"] = about(
        "global", "all seen classes compete (GC), or new among new and old among old (LC)", "paper, 3.2"
    )
    balance: Literal["two_means", "per_class"] = about(
        "two_means",
        "mean over new + mean over old classes, or every class equal",
        "paper, Eq. separate; Eq. L-DBGC says per_class",
    )
    enlarge: Literal["variances", "isotropic", "whole"] = about(
        "variances", "VE adds λ times: each variance; the class's mean variance; the whole covariance", "paper, Eq. ve"
    )
    soft_margin: float = about(0.0, "SM: a constant margin of the old classes", "paper, Table 3; its value is not given")
    reset: Literal["epoch", "task"] = about(
        "epoch", "when the new classes' running statistics start anew; task is ISDA's way", "open in the paper"
    )
    decay: float = about(
        0.0, "share that a batch gets at least in the running statistics; 0: all batches alike", "open in the paper"
    )
    mean_gradient: Literal["running", "straight_through"] = about(
        "running", "gradient to the network through the batch's share of the mean, or as if that were 1", "open in the paper"
    )
    pseudo: int = about(0, "pseudo features per old class and step; 0: as many in all as the batch has images", "PASS, IL2A")
    new_samples: Literal["real", "pseudo"] = about(
        "real", "new_term samples: the images' features, or draws from the running statistics", "open in the paper"
    )
    head_start: Literal["keep", "scratch"] = about(
        "keep", "before a task the old rows stay, or all are drawn anew", "paper, 3.1: either"
    )
    covariance: Literal["full", "lowrank", "diagonal", "shared"] = about(
        "full", "what is kept of each class's spread", "paper, 3.1"
    )
    rank: int = about(56, "columns of a lowrank covariance")
    freeze: bool = about(
        False, "the network stays as it is after task 1 and the head is solved exactly instead of trained; seconds, not hours"
    )
    ridge: float | None = about(
        0.0,
        "for freeze: added to every variance before the head is solved; None, if the covariance is shared: a share of each, "
        "chosen by leave-one-out in closed form",
    )

    def __post_init__(self) -> None:
        if self.ridge is None and self.covariance != "shared":
            raise ValueError(f"ridge can be None with a shared covariance only, not with a {self.covariance} one.")
        for name in ("margin", "soft_margin", "decay", "pseudo", "ridge"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, not {getattr(self, name)}.")
        if self.decay >= 1:  # the mean of a class would be that of a batch's images of it: of one image, perhaps
            raise ValueError(f"decay is a share below 1, not {self.decay}.")
        if self.freeze and (self.new_term, self.old_term, self.softmax) != ("distribution", "distribution", "global"):
            raise ValueError("freeze solves the global distribution-based loss; it does not go with samples or local softmax.")
        if self.freeze and (self.soft_margin or self.enlarge != "variances"):
            raise ValueError("freeze solves AMGC's own loss; it does not go with soft_margin or another enlarge.")


# Section 4.1; what it does not say is PyCIL's, or stated in docs/methods.md.
FIRST = Phase(epochs=400, extractor_lr=1e-2, head_lr=1e-2)
LATER = Phase(epochs=200, extractor_lr=1e-6, head_lr=5e-3, weight_decay=0.0, head_weight_decay=0.0, batchnorm="fixed")


SAID = ("first.epochs", "first.extractor_lr", "first.head_lr", "later.epochs", "later.extractor_lr", "later.head_lr")
SOURCES = dict.fromkeys((*SAID, "later.batchnorm"), "paper, 4.1") | {"later": "open in the paper"}


@method("amgc", AMGCHyper(FIRST, LATER), sources=SOURCES)
class AMGC(Method[AMGCHyper]):
    """AMGC: one global classifier from means and covariances, old classes' variances enlarged (AMarX)."""

    remembers = ("statistics", "running")

    def __init__(self, hyper: AMGCHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.statistics = statistics.ClassStatistics(network.dim, hyper.covariance, hyper.rank, device=device)
        self.running: Any = None  # RunningStatistics of the new classes, while they are trained on
        self._old: Callable[[Batch], torch.Tensor] | None = None

    def phase(self, task: Task) -> Phase:
        phase = super().phase(task)
        if self.hyper.freeze and not task.is_first:
            return Phase(epochs=0, batch_size=phase.batch_size, extractor_lr=0.0)
        return phase

    def begin(self, task: Task, generator: torch.Generator) -> None:
        if self.hyper.head_start == "scratch":
            self.head.set(self.head.weight[:0], self.head.bias[:0])
        super().begin(task, generator)
        self._old = None
        if not task.is_first and self.phase(task).epochs:
            self.running = running.RunningStatistics(
                len(task.new),
                self.network.dim,
                decay=self.hyper.decay,
                gradient=self.hyper.mean_gradient,
                device=self.device,
            )

    def begin_epoch(self) -> None:
        if self.running is not None and self.hyper.reset == "epoch":
            self.running.reset()

    def may_save(self, counts: Sequence[int]) -> bool:
        several = torch.tensor(counts, device=self.device) > 1  # the mean of a class of one image is never anything else
        return self.running is None or not bool((several & (self.running.count == 1)).any())

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        if self.task.is_first:
            return super().loss(batch)
        new, old = self.new_loss(batch), self.old_loss(batch)
        if self.hyper.balance == "two_means":  # Eq. (separate)
            return {"new": new, "old": old}
        share = len(self.task.new) / len(self.task.seen)
        return {"new": share * new, "old": (1 - share) * old}

    def new_loss(self, batch: Batch) -> torch.Tensor:
        """L^n: of the running statistics (Eq. L-DBGC-N), or of the batch's samples."""
        among = self.among(self.task.new)
        if self.hyper.new_term == "samples" and self.hyper.new_samples == "real":
            return losses.sample_loss(self.head.weight, self.head.bias, batch.features, batch.labels, among=among)
        mean = self.running.update(batch.features, batch.labels - self.task.new.start)
        targets = torch.tensor(self.task.new, device=self.device)
        present = self.running.count > 0
        if self.hyper.new_term == "samples":
            drawn = gaussian.sample(mean, self.running.covariance, self.draws(batch, self.task.new), batch.generator)
            features, targets = drawn[present].flatten(0, 1), targets[present].repeat_interleave(drawn.shape[1])
            return losses.sample_loss(self.head.weight, self.head.bias, features, targets, among=among)
        return losses.distribution_loss(
            self.head.weight,
            self.head.bias,
            mean,
            self.running.covariance,
            targets=targets,
            among=among,
            class_weight=present / present.sum(),
        )

    def old_loss(self, batch: Batch) -> torch.Tensor:
        """L^o: of the remembered statistics, enlarged (Eq. L-AMarX-O), or of pseudo features drawn from them."""
        if self._old is None:
            self._old = self.prepare_old_loss()  # what does not change during a task is computed once
        return self._old(batch)

    def prepare_old_loss(self) -> Callable[[Batch], torch.Tensor]:
        among = self.among(self.task.old)
        mean = self.statistics.mean.float()
        spread = self.enlarged(self.statistics.covariances)
        targets = torch.tensor(self.statistics.classes, device=self.device)
        if self.hyper.old_term == "distribution":
            return lambda batch: losses.soft_margin_loss(
                self.head.weight, self.head.bias, mean, spread, margin=self.hyper.soft_margin, targets=targets, among=among
            )
        draw = gaussian.Sampler(mean, spread)

        def sampled(batch: Batch) -> torch.Tensor:
            drawn = draw(self.draws(batch, self.task.old), batch.generator)
            rows = targets.repeat_interleave(drawn.shape[1])
            return losses.sample_loss(self.head.weight, self.head.bias, drawn.flatten(0, 1), rows, among=among)

        return sampled

    def enlarged(self, spread: covariance.Covariances) -> covariance.Covariances:
        """VE, Eq. (ve), or one of its two simpler relatives."""
        if not self.hyper.margin:
            return spread
        if self.hyper.enlarge == "variances":
            return covariance.as_covariances(covariance.enlarge(spread, self.hyper.margin))
        if self.hyper.enlarge == "whole":
            return spread.scaled(1 + self.hyper.margin)
        level = spread.variances().mean(-1, keepdim=True).expand(-1, self.network.dim)
        return spread.plus_diagonal(self.hyper.margin * level)

    @property
    def enlarged_classes(self) -> range:
        """The old ones; all, where a head is solved without any task before it."""
        untrained = self.task.is_first and self.hyper.freeze and not self.hyper.first.epochs
        return self.task.seen if untrained else self.task.old

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        mean, spread = gaussian.along(self.statistics, label, axes)
        if not self.hyper.margin or label not in self.enlarged_classes:
            return mean, spread, None
        if self.hyper.enlarge == "whole":
            return mean, spread, (1 + self.hyper.margin) * spread
        axes, extra = axes.to(spread), self.extra_variances([label])[0]
        return mean, spread, spread + (axes * self.hyper.margin * extra) @ axes.T

    def margins(self, *, pairs: bool) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Eq. (margin) with the head as it is; a soft margin is the same for all old classes, whoever they compete with.

        None where the old classes' loss is of samples, or VE has no diagonal matrix Λ_k.
        """
        hyper, old = self.hyper, self.enlarged_classes
        if (
            not (hyper.margin or hyper.soft_margin)
            or hyper.old_term == "samples"
            or (hyper.margin and hyper.enlarge == "whole")
        ):
            return None
        seen, count = len(self.task.seen), len(self.task.old) if hyper.softmax == "local" else len(self.task.seen)
        own, beaten = self.head.weight.new_zeros(seen), self.head.weight.new_zeros(seen, seen) if pairs else None
        if not old:
            return own, beaten
        weight, spread = self.head.weight[:count], self.extra_variances(old).to(self.head.weight)
        targets = torch.tensor(old, device=self.device)
        own[targets] = losses.margins(weight, spread.expand(len(old), -1), hyper.margin, targets) + hyper.soft_margin
        if beaten is not None:
            beaten[targets, :count] = losses.pairwise_margins(weight, spread, hyper.margin, targets) + hyper.soft_margin
            beaten.fill_diagonal_(0.0)
        return own, beaten

    def extra_variances(self, labels: Iterable[int]) -> torch.Tensor:
        """What VE adds λ times to the variances of these classes: (classes, d), or (1, d) for all."""
        kept = gaussian.variances(self.statistics)
        rows = kept if len(kept) < len(self.statistics) else kept[[self.statistics.index(label) for label in labels]]
        return rows if self.hyper.enlarge == "variances" else rows.mean(-1, keepdim=True).expand_as(rows)

    def among(self, side: range) -> torch.Tensor | None:
        """The classes in the softmax: all seen ones, or those of one side."""
        return torch.tensor(side, device=self.device) if self.hyper.softmax == "local" else None

    def draws(self, batch: Batch, side: range) -> int:
        return self.hyper.pseudo or -(-len(batch.labels) // len(side))

    def end(self, task: Task, features: Features) -> None:
        self.running = self._old = None
        for rows, labels in features:
            self.statistics.update(rows, labels)
        if self.hyper.freeze and (not task.is_first or not self.hyper.first.epochs):
            new = () if task.is_first else task.new
            solved = solver.solve_head(
                self.statistics,
                margin=self.hyper.margin,
                new=new,
                balance=self.hyper.balance,
                ridge="auto" if self.hyper.ridge is None else self.hyper.ridge,
            )
            order = [self.statistics.index(label) for label in task.seen]
            self.head.set(solved.weight[order], solved.bias[order])


def variant(name: str, summary: str, **hyper: Any) -> None:
    """An ablation of the paper's Tables 2 and 3: AMGC with other terms."""
    method(name, AMGCHyper(FIRST, LATER, **hyper), summary, SOURCES)(AMGC)


variant(
    "sblc",
    "samples for new and old classes, local classifiers",
    margin=0.0,
    new_term="samples",
    old_term="samples",
    softmax="local",
)
variant("sbndbolc", "samples for new, distributions for old classes, local", margin=0.0, new_term="samples", softmax="local")
variant("sbgc", "samples for new and old classes, one global classifier", margin=0.0, new_term="samples", old_term="samples")
variant("dblc", "distributions for new and old classes, local classifiers", margin=0.0, softmax="local")
variant("dbgc", "distributions for new and old classes, one global classifier: AMGC without margins", margin=0.0)
variant("dbgc-sm", "dbgc with one constant margin for all old classes (soft margin)", margin=0.0, soft_margin=1.0)
