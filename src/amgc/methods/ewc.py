"""EWC (Kirkpatrick et al. 2017): a penalty on changes of weights with large Fisher information in old tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from amgc.methods.contract import Batch, Features, Hyper, Method, Task, TaskImages
from amgc.methods.finetune import STEPS
from amgc.methods.lazy import torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

Tensors: TypeAlias = "dict[str, torch.Tensor]"
Scores: TypeAlias = "Callable[[Tensors, torch.Tensor], torch.Tensor]"  # weights and batch to scores (n, C)
HEAD = ".weight", ".bias"  # names that cannot be parameters of a network
CHUNK = 8  # gradients of single images in memory at once: 8 × 11 million numbers for a ResNet-18


@dataclass(frozen=True)
class EWCHyper(Hyper):
    """Hyper-parameters of EWC."""

    penalty: float = option(1000.0, "weight of ½ Σ F (θ - θ*)²", "PyCIL, ewc.py", least=0)
    fisher: Literal["sample", "batch"] = option(
        "sample", "squared gradients of single images (Fisher information), or of batch means", "paper; PyCIL: batch"
    )
    clip: float = option(1e-4, "maximum of the Fisher information", "PyCIL, ewc.py", least=0)
    merge: Literal["classes", "half", "sum"] = option(
        "classes", "weights of old and new Fisher information: by number of classes, equal, or their sum", "PyCIL; FACIL: half"
    )
    softmax: Literal["new", "seen"] = option("new", "classes in the softmax after task 1", "PyCIL, ewc.py")


# PyCIL, ewc.py: milestones 70, 120, 150 of 180 epochs.
LATER = replace(STEPS, epochs=180, milestones=(70 / 180, 120 / 180, 150 / 180), weight_decay=2e-4, head_weight_decay=2e-4)


@method("ewc", EWCHyper(first=STEPS, later=LATER), sources={"first": "PyCIL's ewc.py", "later": "PyCIL's ewc.py"})
class EWC(Method[EWCHyper]):
    """EWC: cross-entropy among the new classes, and a penalty on changes of weights that matter to old tasks.

    F is the mean over a task's images of the squared gradient of log p(label | image), with all seen classes in the softmax. It
    uses plain images in evaluation mode. PyCIL uses augmented images in training mode, which updates batch norm again, and the
    gradients of batch means (`fisher="batch"`), which are much smaller.
    """

    remembers = ("old", "old_head", "fisher", "fisher_head")

    def __init__(self, hyper: EWCHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.old: torch.nn.Module | None = None  # θ*, the network after the last task; None if it is frozen
        self.fisher: torch.nn.Module | None = None  # a network whose weights are F
        self.old_head = joined(self.head.weight.detach(), self.head.bias.detach())
        self.fisher_head = torch.zeros_like(self.old_head)

    def loss(self, batch: Batch) -> Tensors:
        if self.task.is_first:
            return super().loss(batch)
        start = self.task.new.start if self.hyper.softmax == "new" else 0
        new = torch.nn.functional.cross_entropy(self.head(batch.features)[:, start:], batch.labels - start)
        return {"cross-entropy": new, "penalty": self.hyper.penalty * self.distance()}

    def distance(self) -> torch.Tensor:
        """Return ½ Σ F (θ - θ*)² over the network and the old rows of the head."""
        head = joined(self.head.weight, self.head.bias)[: len(self.old_head)]
        total = (self.fisher_head * (head - self.old_head).square()).sum()
        if self.old is not None and self.fisher is not None:
            for now, old, fisher in zip(*(net.parameters() for net in (self.network, self.old, self.fisher)), strict=True):
                if now.requires_grad:  # other parameters have not changed
                    total = total + (fisher * (now - old).square()).sum()
        return total / 2

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        if not self.trains_network(self.hyper.later):
            return  # the network is frozen; `end` handles the head
        weights = {name: parameter.detach() for name, parameter in self.network.named_parameters()}

        def scores(weights: Tensors, batch: torch.Tensor) -> torch.Tensor:
            own = {name: weight for name, weight in weights.items() if name not in HEAD}
            features: torch.Tensor = torch.func.functional_call(self.network, own, (batch,))
            return features @ weights[HEAD[0]].T + weights[HEAD[1]]

        size = CHUNK if self.hyper.fisher == "sample" else self.phase(task).batch_size
        information = self.information(scores, weights, images.batches(size), images.sum)
        before = dict(self.fisher.named_parameters()) if self.fisher is not None else {}
        self.old, self.fisher = self.network_copy(), self.network_copy()
        for name, parameter in self.fisher.named_parameters():
            parameter.copy_(self.merged(before.get(name), information[name]))
        self.remember_head(information)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        if self.fisher is None:
            self.remember_head(self.information(lambda head, rows: rows @ head[HEAD[0]].T + head[HEAD[1]], {}, features))

    def remember_head(self, information: Tensors) -> None:
        fisher = joined(information[HEAD[0]], information[HEAD[1]])
        fisher[: len(self.fisher_head)] = self.merged(self.fisher_head, fisher[: len(self.fisher_head)])
        self.fisher_head, self.old_head = fisher, joined(self.head.weight.detach(), self.head.bias.detach())

    def merged(self, old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        """Return F of all tasks so far."""
        if old is None:
            return new
        if self.hyper.merge == "sum":
            return old + new
        share = len(self.task.old) / len(self.task.seen) if self.hyper.merge == "classes" else 0.5
        return share * old + (1 - share) * new

    def information(
        self, scores: Scores, weights: Tensors, batches: Features, total: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    ) -> Tensors:
        """Return F of these weights and of the head: clipped mean squares of the gradients of -log p(label | input).

        `total` sums over processes. Each process has a part of every batch.
        """
        weights = weights | {HEAD[0]: self.head.weight.detach(), HEAD[1]: self.head.bias.detach()}
        squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        count = torch.zeros((), device=self.device)

        def negative_log_likelihood(weights: Tensors, batch: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(scores(weights, batch), labels, reduction="sum")

        gradient = torch.func.grad(negative_log_likelihood)
        each = torch.func.vmap(lambda one, label: gradient(weights, one[None], label[None]))
        for batch, labels in batches:
            if self.hyper.fisher == "batch":
                size = total(torch.tensor(float(len(labels)), device=self.device))
                for name, summed in gradient(weights, batch, labels).items():
                    squares[name] += (total(summed) / size).square()
                count += 1
            elif len(labels):  # a process may have no part of a small batch
                for name, gradients in each(batch, labels).items():
                    squares[name] += gradients.square().sum(0)
                count += len(labels)
        if self.hyper.fisher == "sample":
            squares, count = {name: total(square) for name, square in squares.items()}, total(count)
        return {name: (square / count).clamp(max=self.hyper.clip) for name, square in squares.items()}


def joined(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return weight (C, d) and bias (C,) of a head as one tensor (C, d + 1)."""
    return torch.cat([weight, bias[:, None]], 1)
