"""What a method is: hyper-parameters, what it trains, what it remembers, how it scores.

    @method("mine", MineHyper)
    class Mine(Method[MineHyper]):
        remembers = ("statistics",)
        def begin(self, task): ...
        def loss(self, batch): ...
        def end(self, task, features): ...
        def scores(self, features): ...

The engine owns the loop, the optimiser, precision, devices, progress and checkpoints.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from amgc.methods.lazy import torch
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

Features: TypeAlias = "Iterable[tuple[torch.Tensor, torch.Tensor]]"  # batches of features (n, d) and labels (n,)
Schedule: TypeAlias = Literal["cosine", "step", "constant"]


about = option  # the former name


@dataclass(frozen=True)
class Phase:
    """How the network and the head are trained during a task."""

    epochs: int = about(200, "passes over the task's images; 0 trains nothing", "paper, 4.1")
    batch_size: int = about(128, "images per step, of all processes together", "PyCIL")
    extractor_lr: float = about(0.01, "learning rate of the network; 0 freezes it, and its features are computed once")
    head_lr: float = about(0.01, "learning rate of the classifier")
    schedule: Schedule = about("cosine", "of both learning rates over the epochs: cosine (to 0), step or constant")
    milestones: tuple[float, ...] = about((0.3, 0.6, 0.85), "for step: shares of the epochs after which they fall", "PyCIL")
    gamma: float = about(0.1, "for step: the factor by which they fall", "PyCIL")
    optimizer: Literal["sgd", "adam"] = about("sgd", "the optimiser; the paper names none", "PyCIL")
    momentum: float = about(0.9, "of SGD", "PyCIL")
    weight_decay: float = about(5e-4, "of the network", "PyCIL")
    head_weight_decay: float = about(5e-4, "of the classifier", "PyCIL")
    batchnorm: Literal["train", "fixed"] = about("train", "fixed: statistics, scale and shift stay as they are")
    augment: bool = about(True, "random crops, flips and brightness (not if the network is frozen)", "PyCIL")

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        for name in ("extractor_lr", "head_lr", "momentum", "weight_decay", "head_weight_decay", "gamma"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, not {getattr(self, name)}.")
        if any(not 0 <= share <= 1 for share in self.milestones):
            raise ValueError(f"milestones are shares of the epochs, between 0 and 1; not {self.milestones}.")


@dataclass(frozen=True)
class Hyper:
    """What every method can be told: how task 1 is trained, and how the later ones are."""

    first: Phase = field(default_factory=Phase)
    later: Phase = field(default_factory=Phase)


@dataclass(frozen=True)
class Task:
    """Which classes are new in this task. Labels count classes in order of arrival: old ones are `range(new.start)`."""

    index: int
    new: range

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def old(self) -> range:
        return range(self.new.start)

    @property
    def seen(self) -> range:
        return range(self.new.stop)


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step sees: the same on every process, because each gets the features of all.

    features (n, d), with a gradient to the network; labels (n,); `generator`: for all chance in a loss;
    `through(network)`: what another network (an old copy, say) makes of the same images, without gradient;
    `copy` (n,): which of its row's `repeats` in this epoch each is, from 0, where the method asked for them (before `views`).
    """

    features: torch.Tensor
    labels: torch.Tensor
    generator: torch.Generator
    through: Callable[[torch.nn.Module], torch.Tensor]
    copy: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Plain:
    """A task's training images without augmentation, for a pass after the training (with gradients, if need be).

    `batches(size)`: images and labels (n,), no more than `size` at a time; on several processes each gets its share of every
    batch. `sum`: a tensor's sum over processes.
    """

    batches: Callable[[int], Iterator[tuple[torch.Tensor, torch.Tensor]]]
    sum: Callable[[torch.Tensor], torch.Tensor]


class LinearHead:
    """A linear classifier that grows: weight (C, d), bias (C,)."""

    def __init__(self, dim: int, device: torch.device) -> None:
        self.weight = torch.nn.Parameter(torch.empty(0, dim, device=device))
        self.bias = torch.nn.Parameter(torch.empty(0, device=device))

    def __len__(self) -> int:
        return len(self.weight)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Rows for `count` classes: those that are there stay, new ones are drawn as PyCIL draws them."""
        more, dim = count - len(self), self.weight.shape[1]
        bound = (3 / dim) ** 0.5
        rows = (torch.rand(more, dim, generator=generator) * 2 - 1) * bound
        self.set(torch.cat([self.weight.detach(), rows.to(self.weight)]), torch.cat([self.bias, self.bias.new_zeros(more)]))

    def set(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Replace all rows."""
        self.weight = torch.nn.Parameter(weight.detach().to(self.weight).clone())
        self.bias = torch.nn.Parameter(bias.detach().to(self.bias).clone())

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Scores (n, C)."""
        return features.to(self.weight.dtype) @ self.weight.T + self.bias


H = TypeVar("H", bound=Hyper)


class Method(Generic[H]):
    """A class-incremental method. `remembers` names the attributes, beside network and head, that outlive a step.

    What a method keeps is what `state` returns, and nothing else: it is saved, restored, counted and searched for images.
    """

    remembers: ClassVar[tuple[str, ...]] = ()
    sees_old_data: ClassVar[bool] = False  # `joint` alone: training images of all seen classes, in every task
    rehearsal_rows: ClassVar[int] = 0  # rows per class with which the cost of `end` is measured, and extrapolated; 0: usual
    common_start: ClassVar[bool] = True  # task 1 is plain cross-entropy, so that methods can share its training

    def __init__(self, hyper: H, network: Extractor, device: torch.device) -> None:
        self.hyper = hyper
        self.network = network
        self.device = device
        self.head = LinearHead(network.dim, device)
        self.task = Task(0, range(0))

    # ---- what a method says, in the order in which it happens -------------------------------------------------------

    def phase(self, task: Task) -> Phase:
        """How this task is trained."""
        return self.hyper.first if task.is_first else self.hyper.later

    def begin(self, task: Task, generator: torch.Generator) -> None:
        """Before a task: by default the head grows rows for the new classes."""
        self.head.grow(task.new.stop, generator)

    def begin_epoch(self) -> None:
        """Before each pass over the images."""

    def views(
        self, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the network sees of a batch of augmented images (rotations, mixtures): one forward pass for all of it.

        The whole batch, whatever the number of processes; where the network does not train, its features (n, d) instead.
        Classes that a method makes up have labels from `len(task.seen)` on.
        """
        return images, labels

    def repeats(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
        """Before training on a frozen network's features (n, d): how often an epoch uses each row, (n,); None: once.

        All uses are shuffled together and `Batch.copy` tells them apart, so that a loss can make something else of each
        (the pseudo features of an old class, say). Asked again when a run is resumed: what it prepares need not be saved.
        """
        return None

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The loss in named terms; their sum is minimised."""
        return {"cross-entropy": torch.nn.functional.cross_entropy(self.head(batch.features), batch.labels)}

    def study(self, task: Task, images: Plain) -> None:
        """After a task's training, before `end`: for a method that needs the task's images themselves, for gradients at them or
        for an old network. The network is in evaluation mode."""

    def end(self, task: Task, features: Features) -> None:
        """After a task's training: remember. `features` are those of the task's images, plain, of the trained network."""

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """(n, seen classes), the largest wins."""
        return self.head(features)

    # ---- what the report shows, for a method that remembers Gaussians or keeps margins -------------------------------

    def compared(self, features: torch.Tensor) -> torch.Tensor:
        """Features (n, d) in the space that `gaussian` speaks of."""
        return features

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
        """What is remembered of a class along axes (m, d): mean (m,), covariance (m, m), and the enlarged covariance by which
        the method replaces it, if this is an old class and the method does. None: no Gaussian is remembered."""
        return None

    def margins(self, *, pairs: bool) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """m_k of each seen class (K,), 0 of those that keep none; with `pairs` also by how much class k must beat class j,
        (K, K). None: a method without margins."""
        return None

    # ---- what the engine needs; a method seldom changes it -----------------------------------------------------------

    def settled(self, counts: Sequence[int]) -> bool:
        """Whether a checkpoint may be written now, the new classes having so many images: not while a mean is that of one
        image of several, which would be that image's row. True again at the latest when an epoch ends."""
        return True

    def trains_network(self, phase: Phase | None = None) -> bool:
        """Whether the network changes during this task, or in another phase. If not, a batch is made of its features,
        computed once."""
        phase = phase or self.phase(self.task)
        return phase.extractor_lr > 0 and phase.epochs > 0 and any(True for _ in self.network.parameters())

    def trains(self, name: str) -> bool:
        """Whether this parameter of the network is trained in a task that trains the network."""
        return True

    def network_copy(self) -> Extractor:
        """The network as it is now, not to be trained."""
        return copy.deepcopy(self.network).requires_grad_(False).eval()

    def reshape_network(self, ended: int, begun: bool) -> None:
        """Before a checkpoint is loaded, by a method that changes the network's structure: change it as it was changed after
        `ended` tasks, and after the beginning of the next one (then `task`) if it had `begun`."""

    def unshape_network(self) -> None:
        """After the last task, by such a method, if it can: the layers that the network was built with again, which in
        evaluation mode give the same features. Only then can a model for own images be made from a run."""

    def trainable(self) -> list[torch.Tensor]:
        """What is trained beside the network, at the head's learning rate."""
        return [self.head.weight, self.head.bias]

    def state(self) -> dict[str, Any]:
        """Everything that is remembered, by name: tensors, class statistics, networks, plain values."""
        kept = {name: getattr(self, name) for name in self.remembers}
        return {"head.weight": self.head.weight.detach(), "head.bias": self.head.bias.detach(), **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """The opposite of `state`. Copies of the network come as state dicts."""
        self.head.set(state["head.weight"], state["head.bias"])
        for name in self.remembers:
            value = state[name]
            if isinstance(value, dict):
                old = self.network_copy()
                old.load_state_dict(value)
                value = old
            elif isinstance(value, torch.Tensor):
                value = value.to(self.device)
            setattr(self, name, value)


def described(hyper: type[Hyper]) -> Sequence[tuple[str, Any, str, str]]:
    """Name, default, help and source of each of a method's own hyper-parameters."""
    return [
        (f.name, f.default, f.metadata.get("help", ""), f.metadata.get("source", "") or "ours")
        for f in fields(hyper)
        if f.name not in ("first", "later")
    ]
