"""The contract between a method and the engine.

    @method("mine", MineHyper())
    class Mine(Method[MineHyper]):
        remembers = ("means",)
        def begin(self, task, generator): ...
        def loss(self, batch): ...
        def end(self, task, features, generator): ...
        def scores(self, features): ...

A method declares its hyper-parameters and the attributes to save, and overrides `phase`, `begin`, `loss`, `end` or `scores`
where the default does not fit. The engine and the report also call the methods of `amgc.methods.optional` if they exist. The
engine is responsible for the training loop, optimiser, precision, devices, progress and checkpoints.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

from amgc.methods.lazy import torch
from amgc.options import Checked, option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

Features: TypeAlias = "Iterable[tuple[torch.Tensor, torch.Tensor]]"  # batches of features (n, d) and labels (n,)
Schedule: TypeAlias = Literal["cosine", "step", "constant"]


@dataclass(frozen=True)
class Phase(Checked):
    """How the network and the head are trained during a task."""

    epochs: int = option(200, "passes over the task's images; 0 trains nothing", "paper, 4.1", least=0, most=1_000_000)
    batch_size: int = option(128, "images per step, of all processes together", "PyCIL", least=1, most=1_000_000)
    extractor_lr: float = option(
        0.01, "learning rate of the network; 0 freezes it, and its features are computed once", least=0
    )
    head_lr: float = option(0.01, "learning rate of the classifier", least=0)
    schedule: Schedule = option("cosine", "schedule of both learning rates: cosine (to 0), step or constant")
    milestones: tuple[float, ...] = option(
        (0.3, 0.6, 0.85), "step: shares of the epochs after which the rates fall", "PyCIL", least=0, most=1
    )
    gamma: float = option(0.1, "step: factor by which the rates fall", "PyCIL", least=0)
    optimizer: Literal["sgd", "adam"] = option("sgd", "optimiser; the paper names none", "PyCIL")
    momentum: float = option(0.9, "momentum of SGD", "PyCIL", least=0)
    clip: float = option(0.0, "maximum norm of the gradient of all trained parameters together; 0: no limit", least=0)
    weight_decay: float = option(5e-4, "weight decay of the network", "PyCIL", least=0)
    head_weight_decay: float = option(5e-4, "weight decay of the classifier", "PyCIL", least=0)
    batchnorm: Literal["train", "fixed"] = option("train", "train, or fixed: statistics, scale and shift do not change")
    augment: bool = option(True, "random crops, flips and brightness (not if the network is frozen)", "PyCIL")


@dataclass(frozen=True)
class Hyper(Checked):
    """Hyper-parameters of every method: how task 1 and the later tasks are trained."""

    first: Phase = field(default_factory=Phase)
    later: Phase = field(default_factory=Phase)


@dataclass(frozen=True)
class Task:
    """A task and its new classes. Labels number the classes in order of arrival, so old classes are `range(new.start)`."""

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
    """The input of a loss. Every process gets the features of the whole batch.

    features : (n, d), with a gradient to the network.
    labels : (n,).
    generator : source of all random numbers in a loss.
    through : `through(network)` returns the features that another network computes for the same images, without gradient.
        If this task trains on features that were computed once, only a second stage can use it.
    copy : (n,), only for a method with `repeats`: the number of each row among its repetitions in this epoch, from 0. It
        refers to the batch before `views`.
    """

    features: torch.Tensor
    labels: torch.Tensor
    generator: torch.Generator
    through: Callable[[torch.nn.Module], torch.Tensor]
    copy: torch.Tensor | None = None


class TaskImages(Protocol):
    """The training images of a task, for passes after its training. Networks are in evaluation mode.

    labels : (n,), of all images, in the order of `features` and of the numbers that `take` gets.
    """

    labels: torch.Tensor

    def batches(
        self, size: int, generator: torch.Generator | None = None, *, augmented: bool = False
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images and labels (n,), at most `size` at a time. Each process gets its share of a batch.

        With a generator they are in random order, and can be augmented.
        """

    def take(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return this process's share of the images with these numbers, without augmentation."""

    def features(self, network: torch.nn.Module) -> torch.Tensor:
        """Return the features (n, d) of all images without augmentation, computed by this network, on every process."""

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows (n, …) of all processes, in the order of their shares."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all processes."""


class LinearHead:
    """A linear classifier to which classes can be added: weight (C, d), bias (C,).

    before : a module between the network's features and the classifier, for example a bottleneck. The method trains and
        remembers it like its other modules.
    """

    def __init__(self, dim: int, device: torch.device, before: torch.nn.Module | None = None) -> None:
        self.weight = torch.nn.Parameter(torch.empty(0, dim, device=device))
        self.bias = torch.nn.Parameter(torch.empty(0, device=device))
        self.before = before

    def __len__(self) -> int:
        return len(self.weight)

    def grow(self, count: int, generator: torch.Generator, initial: Literal["pycil", "torch"] = "pycil") -> None:
        """Add rows up to `count` classes. Existing rows do not change.

        New weights are uniform up to √(3/d) and biases 0, as in PyCIL, or both uniform up to 1/√d, as in `torch.nn.Linear`.
        """
        more, dim = count - len(self), self.weight.shape[1]
        bound = ((3 if initial == "pycil" else 1) / dim) ** 0.5
        rows = (torch.rand(more, dim, generator=generator) * 2 - 1) * bound
        bias = torch.zeros(more) if initial == "pycil" else (torch.rand(more, generator=generator) * 2 - 1) * bound
        self.set(torch.cat([self.weight.detach(), rows.to(self.weight)]), torch.cat([self.bias, bias.to(self.bias)]))

    def set(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Replace all rows."""
        self.weight = torch.nn.Parameter(weight.detach().to(self.weight).clone())
        self.bias = torch.nn.Parameter(bias.detach().to(self.bias).clone())

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Return scores (n, C)."""
        if self.before is not None:
            features = self.before(features)
        return features.to(self.weight.dtype) @ self.weight.T + self.bias


H = TypeVar("H", bound=Hyper)


class Method(Generic[H]):
    """Base class of class-incremental methods.

    remembers : names of the attributes to save, besides the network and the head: tensors, class statistics, heads, copies of
        the network, other modules or plain values. A module that is not a copy of the network must be made in `__init__`, so
        that a resumed run can fill it. `state` returns them. They are written to checkpoints and counted as the method's
        memory, and the tests search them for training images.
    common_start : whether task 1 is trained by plain cross-entropy. Such methods can share the training of task 1.
    sees_old_data : whether each task trains on the images of all seen classes. Only `joint` does.
    same_training : names of the hyper-parameters that decide, with `first` and `later`, how network and head are trained.
        Methods that inherit all functions of the training share the training of all tasks if these settings are equal.
        `__init__` and a second stage must not change network and head. Empty: the training is the method's own.
    """

    remembers: ClassVar[tuple[str, ...]] = ()
    common_start: ClassVar[bool] = True
    sees_old_data: ClassVar[bool] = False
    same_training: ClassVar[tuple[str, ...]] = ()

    def __init__(self, hyper: H, network: Extractor, device: torch.device) -> None:
        self.hyper = hyper
        self.network = network
        self.device = device
        self.head = LinearHead(network.dim, device)
        self.task = Task(0, range(0))

    # ---- the contract, in the order of calls ------------------------------------------------------------------------

    def phase(self, task: Task) -> Phase:
        """Return the training settings of this task."""
        return self.hyper.first if task.is_first else self.hyper.later

    def begin(self, task: Task, generator: torch.Generator) -> None:
        """Prepare for a task. By default, rows for the new classes are added to the head."""
        self.head.grow(task.new.stop, generator)

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the loss in named terms; their sum is minimised."""
        return {"cross-entropy": torch.nn.functional.cross_entropy(self.head(batch.features), batch.labels)}

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        """Store what is needed after the training of a task.

        `features` are the features of the task's images without augmentation, computed by the trained network.
        """

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        """Return scores (n, seen classes); the class with the largest score is predicted."""
        return self.head(features)

    # ---- provided; rarely overridden ---------------------------------------------------------------------------------

    def trains_network(self, phase: Phase | None = None) -> bool:
        """Return whether the network is trained in this task, or with the settings `phase`.

        If it is not, its features are computed once, and batches consist of these features.
        """
        phase = phase or self.phase(self.task)
        return phase.extractor_lr > 0 and phase.epochs > 0 and any(True for _ in self.network.parameters())

    def network_copy(self) -> Extractor:
        """Return a frozen copy of the network in evaluation mode."""
        return copy.deepcopy(self.network).requires_grad_(False).eval()

    def trainable(self) -> list[torch.Tensor]:
        """Return the tensors that are trained with the head's learning rate."""
        return [self.head.weight, self.head.bias]

    def state(self) -> dict[str, Any]:
        """Return everything that is saved, by name: tensors, class statistics, heads, modules, plain values."""
        kept = {name: getattr(self, name) for name in self.remembers}
        return {"head.weight": self.head.weight.detach(), "head.bias": self.head.bias.detach(), **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned. Heads and modules are passed as dicts of tensors."""
        self.head.set(state["head.weight"], state["head.bias"])
        for name in self.remembers:
            value = state[name]
            if isinstance(value, dict):
                made = getattr(self, name)
                if isinstance(made, LinearHead):
                    made.set(**value)
                else:
                    made = made if isinstance(made, torch.nn.Module) else self.network_copy()
                    made.load_state_dict(value)
                value = made
            elif isinstance(value, torch.Tensor):
                value = value.to(self.device)
            setattr(self, name, value)
