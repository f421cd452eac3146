"""Fine-tuning, the lower bound: each task is trained as if it were the only one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amgc.methods.contract import Batch, Hyper, Method, Phase
from amgc.methods.lazy import torch
from amgc.methods.registry import method
from amgc.options import option


@dataclass(frozen=True)
class FinetuneHyper(Hyper):
    """Hyper-parameters of fine-tuning."""

    softmax: Literal["seen", "new"] = option(
        "seen", "classes in the softmax: all seen so far, or only the new ones (PyCIL's finetune.py)"
    )


STEPS = Phase(epochs=200, extractor_lr=0.1, head_lr=0.1, schedule="step")
LATER = Phase(
    80, extractor_lr=0.1, head_lr=0.1, schedule="step", milestones=(0.5, 0.875), weight_decay=2e-4, head_weight_decay=2e-4
)


@method(
    "finetune",
    FinetuneHyper(first=STEPS, later=LATER),
    sources={"first": "PyCIL's finetune.py", "later": "PyCIL's finetune.py"},
)
class Finetune(Method[FinetuneHyper]):
    """Fine-tuning, the lower bound: cross-entropy on the new images, nothing against forgetting."""

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        start = self.task.new.start if self.hyper.softmax == "new" else 0
        scores = self.head(batch.features)[:, start:]
        return {"cross-entropy": torch.nn.functional.cross_entropy(scores, batch.labels - start)}
