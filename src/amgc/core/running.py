"""Statistics of classes during their training, updated from mini-batches, with a gradient to the current batch.

The update is that of ISDA, the exact merge of population moments. After a pass over constant features the result is their mean
and (1/n) covariance.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

MeanGradient: TypeAlias = Literal["running", "straight_through"]


class RunningStatistics:
    """Count (K,), mean (K, d) and covariance (K, d, d) of K classes since the last `reset`.

    decay : the minimum weight of a new batch, for a moving average. With 0 all batches since the reset weigh the same.
    gradient : "running" scales the gradient by the batch's weight in the running mean, m / (n + m). "straight_through"
        uses weight 1, with the same value.
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        *,
        decay: float = 0.0,
        gradient: MeanGradient = "running",
        device: torch.device | str = "cpu",
    ) -> None:
        self.count = torch.zeros(classes, device=device)
        self.mean = torch.zeros(classes, dim, device=device)
        self.covariance = torch.zeros(classes, dim, dim, device=device)
        self.decay, self.gradient = decay, gradient

    def reset(self) -> None:
        """Forget all batches."""
        for tensor in (self.count, self.mean, self.covariance):
            tensor.zero_()

    def update(self, features: Tensor, labels: Tensor) -> Tensor:
        """Add a batch, features (n, d) and labels (n,) in 0..K-1. Return the means (K, d), with a gradient to the features.

        Covariances have no gradient. A class without samples so far has mean and covariance 0.
        """
        features = features.float()
        member = torch.nn.functional.one_hot(labels, len(self.count)).to(features.dtype)  # (n, K)
        count = member.sum(0)
        batch_mean = (member / count.clamp_min(1)).T @ features
        with torch.no_grad():
            total = self.count + count
            share = count / total.clamp_min(1)
            if self.decay:
                share = torch.where(count > 0, share.clamp_min(self.decay), share)
            shift = batch_mean - self.mean
            centred = features - batch_mean[labels]
            weighted = (member * (share / count.clamp_min(1))).T[:, :, None] * centred  # (K, n, d)
            moved = ((share * (1 - share)).sqrt()[:, None] * shift)[:, None]
            self.covariance.mul_((1 - share)[:, None, None])
            self.covariance.baddbmm_(weighted.mT, centred.expand(len(count), -1, -1))
            self.covariance.baddbmm_(moved.mT, moved)
        mean = (1 - share)[:, None] * self.mean + share[:, None] * batch_mean
        self.count.copy_(total)
        self.mean = mean.detach()
        if self.gradient == "straight_through":
            mean = self.mean + (count > 0).to(mean)[:, None] * (batch_mean - batch_mean.detach())
        return mean

    def header(self) -> dict[str, Any]:
        """Return what `from_file` needs besides the tensors, for JSON."""
        return {"decay": self.decay, "gradient": self.gradient}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        return {"count": self.count, "mean": self.mean, "covariance": self.covariance}

    @classmethod
    def from_file(
        cls, header: dict[str, Any], tensors: dict[str, Tensor], device: torch.device | str = "cpu"
    ) -> RunningStatistics:
        """Return the statistics with this `header()` and these `tensors()`."""
        result = cls(*tensors["mean"].shape, **header, device=device)
        for name, value in result.tensors().items():
            value.copy_(tensors[name])
        return result
