"""A linear classifier as it was trained, without statistics: it answers, and can forget, but learns nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class FixedHead:
    """Weights (K, d) and biases (K,) of the named classes."""

    classes: tuple[str, ...]
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    @property
    def classes_(self) -> NDArray[Any]:
        return np.array(self.classes)

    def predict_proba(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Softmax of the scores, (n, K)."""
        scores = features @ self.weight.T + self.bias
        shares: NDArray[np.float64] = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        return shares

    def without(self, label: str) -> FixedHead:
        keep = [row for row, name in enumerate(self.classes) if name != label]
        return FixedHead(tuple(self.classes[row] for row in keep), self.weight[keep], self.bias[keep])

    def packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"classes": list(self.classes)}, {"weight": torch.from_numpy(self.weight), "bias": torch.from_numpy(self.bias)}

    @classmethod
    def from_packed(cls, header: dict[str, Any], tensors: dict[str, Tensor]) -> FixedHead:
        made = cls(tuple(header["classes"]), tensors["weight"].numpy(), tensors["bias"].numpy())
        if not len(made.classes) == len(made.weight) == len(made.bias) == len(set(made.classes)):
            raise ValueError("not every class has its weights")
        return made
