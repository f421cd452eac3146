"""ADC (Goswami et al., CVPR 2024): new images, changed until the old network takes them for an old class, show its drift."""

from __future__ import annotations

from dataclasses import dataclass

from amgc.methods.compensated import SOURCES, Compensated, CompensatedHyper
from amgc.methods.contract import Task, TaskImages
from amgc.methods.lazy import torch
from amgc.methods.registry import method
from amgc.options import option


@dataclass(frozen=True)
class ADCHyper(CompensatedHyper):
    """Hyper-parameters of ADC."""

    step: float = option(
        25.0, "α: length of an attack's steps, of all images of a class together", "official lwf.json", least=0
    )
    steps: int = option(3, "steps of an attack", "official lwf.json", least=0)
    nearest: int = option(100, "new images that attack each old class: those nearest to its mean", "official lwf.json", least=1)


@method("adc", ADCHyper(), sources=SOURCES)
class ADC(Compensated[ADCHyper]):
    """ADC: the nearest class mean; old means move by the drift of new images that are changed to look like the old class.

    Differences from the official code: plain images, not augmented ones; all attacks aim at the means before any of them
    moved (officially, those of earlier classes have moved already).
    """

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        if self.old is None:
            return
        old, means = images.features(self.old).double(), self.means
        low, high = self.pixels(images)
        moves: list[torch.Tensor] = []
        for label, mean in enumerate(means):
            distance = torch.linalg.vector_norm(old - mean, dim=1)
            nearest = distance.argsort(stable=True)[: self.hyper.nearest]
            attacked = self.attacked(images, images.take(nearest), mean, len(nearest), low, high)
            with torch.no_grad():
                before, after = (images.gather(net(attacked).float()).double() for net in (self.old, self.network))
            hit = (torch.cdist(before, means).argmin(1) == torch.tensor(label, device=self.device)).nonzero()[:, 0]
            moved = after - before
            moves.append((moved[hit] if len(hit) else moved).mean(0))
        self.means = means + torch.stack(moves)

    def pixels(self, images: TaskImages) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the least and the largest normalised pixel value of the task."""
        low, high = [], []
        for batch, _ in images.batches(256):
            if len(batch):  # a process may have no part of a small batch
                low.append(batch.min())
                high.append(batch.max())
        empty = torch.zeros(0, device=self.device)
        return (
            images.gather(torch.stack(low) if low else empty).min(),
            images.gather(torch.stack(high) if high else empty).max(),
        )

    def attacked(
        self, images: TaskImages, shown: torch.Tensor, mean: torch.Tensor, count: int, low: torch.Tensor, high: torch.Tensor
    ) -> torch.Tensor:
        """Move this process's share of `count` images towards the mean (d,) of a class, in steps of the same length."""
        assert self.old is not None
        target = mean.to(shown.dtype).expand(len(shown), -1)
        for _ in range(self.hyper.steps):
            shown = shown.detach().requires_grad_()
            loss = (self.old(shown).float() - target).square().sum() / (count * len(mean))
            (gradient,) = torch.autograd.grad(loss, shown)
            length = images.sum(gradient.square().sum()).sqrt().clamp_min(torch.finfo(gradient.dtype).tiny)
            shown = (shown.detach() - self.hyper.step * gradient / length).clamp(low, high)
        return shown.detach()
