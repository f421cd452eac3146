"""Base classes of methods whose network is frozen after task 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from amgc.methods.contract import Features, Hyper, Method, Phase, Task
from amgc.methods.lazy import torch

FIRST = Phase(epochs=200, extractor_lr=0.1, head_lr=0.1)  # PyCIL's fetril.json, FeCAM's official configs
FROZEN = Phase(epochs=0, extractor_lr=0.0)


@dataclass(frozen=True)
class FrozenHyper(Hyper):
    """Hyper-parameters of methods that train the network in task 1 only, by cross-entropy."""

    first: Phase = FIRST
    later: Phase = FROZEN

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_training(self.later)


def refuse_training(later: Phase) -> None:
    """Raise if the phase of later tasks would train the network."""
    if later.epochs and later.extractor_lr:
        raise ValueError("the network is frozen after task 1: later.extractor_lr must be 0.")


H = TypeVar("H", bound=FrozenHyper)


class Frozen(Method[H]):
    """Base class of methods that train nothing after task 1. They ignore `later`, which a preset may set for all methods.

    Task 1 trains the network. If the network has no parameters, it trains nothing, because `end` replaces the head anyway.
    """

    def phase(self, task: Task) -> Phase:
        has_parameters = any(True for _ in self.network.parameters())
        return super().phase(task) if task.is_first and has_parameters else FROZEN


class RandomFeatures(Frozen[H]):
    """Base class of frozen methods with random features. Only the seed of their weights is stored."""

    seed = 0

    def begin(self, task: Task, generator: torch.Generator) -> None:
        super().begin(task, generator)
        if task.is_first:
            self.seed = int(torch.randint(2**62, (), generator=generator))


def class_means(features: Features, new: range) -> torch.Tensor:
    """Return the mean feature of each new class, (new classes, d) in float64."""
    sums: Any = 0.0
    counts: Any = 0.0
    for rows, labels in features:
        member = torch.nn.functional.one_hot(labels - new.start, len(new)).double()
        sums, counts = sums + member.T @ rows.double(), counts + member.sum(0)
    means: torch.Tensor = sums / counts[:, None]
    return means


def keep_means(method: Method[Any], new: range, features: Features) -> None:
    """Set the head's rows of the new classes to their means. Old classes have theirs already."""
    weight = method.head.weight.detach().clone()
    weight[new.start :] = class_means(features, new).to(weight)
    method.head.set(weight, torch.zeros_like(method.head.bias))
