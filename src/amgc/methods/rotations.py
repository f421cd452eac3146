"""Rotations of an image by quarter turns as classes of their own, as PASS introduced them. EFC and AdaGauss use them too."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from amgc.methods.contract import Hyper, LinearHead, Method, Task
from amgc.methods.lazy import augment, torch

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

H = TypeVar("H", bound=Hyper)


class Rotated(Method[H]):
    """Base class of methods that also learn to tell the rotations of each class.

    The official heads have outputs 4y + turn and score with 0, 4, 8, …. Here `head` has these outputs and `turned` the
    others, which are not used for scores. Images are not rotated if they are not square or if the network is frozen.
    """

    def __init__(self, hyper: H, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.turned = LinearHead(network.dim, device)  # row 3y + turn - 1: class y, rotated by `turn` quarter turns

    @property
    def turns(self) -> bool:
        """Whether the images of this task are rotated."""
        return self.trains_network() and self.network.image_shape[1] == self.network.image_shape[2]

    def begin(self, task: Task, generator: torch.Generator) -> None:
        self.head.grow(len(task.seen), generator, "torch")
        if self.turns:
            self.turned.grow(3 * len(task.seen), generator, "torch")

    def views(
        self, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.turns:
            return images, labels
        images, fourfold = augment.rotations(images, labels)
        label, turn = fourfold // 4, fourfold % 4
        return images, torch.where(turn == 0, label, len(self.task.seen) + 3 * label + turn - 1)

    def outputs(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores in the loss: those of the seen classes, then those of their rotations."""
        upright = self.head(features)
        return torch.cat([upright, self.turned(features)], 1) if self.turns else upright

    def trainable(self) -> list[torch.Tensor]:
        return super().trainable() + ([self.turned.weight, self.turned.bias] if self.turns else [])
