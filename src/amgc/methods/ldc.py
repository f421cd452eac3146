"""LDC (Gomez-Villa et al., ECCV 2024): a linear map from old to new features, learned on the new images, moves old means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from amgc.methods.compensated import SOURCES, Compensated, CompensatedHyper
from amgc.methods.contract import Batch, Features, Phase, Task, TaskImages
from amgc.methods.lazy import torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

# The official lwf.py of LDC: Adam, 20 epochs of augmented images.
MAP = Phase(20, extractor_lr=0.0, head_lr=1e-3, schedule="constant", optimizer="adam", head_weight_decay=0.0)


@dataclass(frozen=True)
class LDCHyper(CompensatedHyper):
    """Hyper-parameters of LDC."""

    second: Phase = MAP
    initial: Literal["random", "identity"] = option(
        "random", "initial map; identity needs fewer steps if tasks are small", "official lwf.py"
    )


@method("ldc", LDCHyper(), sources=SOURCES | {"second": "official lwf.py"})
class LDC(Compensated[LDCHyper]):
    """LDC: the nearest class mean; old means go through a linear map that is trained to predict new features from old ones."""

    remembers: ClassVar[tuple[str, ...]] = (*Compensated.remembers, "projector")

    def __init__(self, hyper: LDCHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.projector: torch.nn.Linear | None = torch.nn.Linear(network.dim, network.dim, bias=False, device=device)

    def second_phase(self, task: Task) -> Phase | None:
        return None if self.old is None else self.hyper.second

    def begin_second(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        dim = self.network.dim
        self.projector = torch.nn.Linear(dim, dim, bias=False, device=self.device)
        weight = (2 * torch.rand(dim, dim, generator=generator) - 1) / dim**0.5  # as torch.nn.Linear
        self.projector.weight.data.copy_(weight if self.hyper.initial == "random" else torch.eye(dim))

    def second_trainable(self) -> list[torch.Tensor]:
        assert self.projector is not None
        return [self.projector.weight]

    def second_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        assert self.projector is not None and self.old is not None
        mapped = self.projector(batch.through(self.old))
        return {"map": torch.nn.functional.mse_loss(mapped, batch.features)}

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        if self.old is not None and self.projector is not None:
            with torch.no_grad():
                self.means = self.means @ self.projector.weight.double().T
        self.projector = None
        super().end(task, features, generator)
