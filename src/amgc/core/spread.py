"""Compute and merge the covariance of one class, in each form that `ClassStatistics` stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SKETCH = 64  # number of random directions


@dataclass(frozen=True)
class Spread:
    """A form of class covariance: named tensors per class.

    "full": full (d, d). "diagonal": diagonal (d,), the variances, and sketch (`SKETCH`,), the variances along fixed random
    directions, which show how correlated the features are. "lowrank": factor (d, rank) and diagonal (d,). "shared": size (),
    the trace.
    """

    form: str
    dim: int
    rank: int
    dtype: torch.dtype

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of one class."""
        if self.form == "lowrank":
            return {"factor": (self.dim, self.rank), "diagonal": (self.dim,)}
        if self.form == "diagonal":
            return {"diagonal": (self.dim,), "sketch": (SKETCH,)}
        return {"size": ()} if self.form == "shared" else {"full": (self.dim, self.dim)}

    def of(self, centred: Tensor) -> dict[str, Tensor]:
        """Return the unbiased covariance of rows (n, d) whose mean is 0."""
        freedom = max(len(centred) - 1, 1)
        if self.form == "shared":
            return {"size": centred.square().sum() / freedom}
        if self.form == "full":
            product = (centred.T @ centred).div_(freedom)
            return {"full": product.triu_().add_(product.triu(1).T)}  # exactly symmetric
        diagonal = centred.square().sum(0) / freedom
        if self.form == "diagonal":
            return {"diagonal": diagonal, "sketch": (centred @ self._directions(centred)).square().sum(0) / freedom}
        return {"factor": self.leading(centred.T / math.sqrt(freedom), diagonal), "diagonal": diagonal}

    def check(self, spreads: Sequence[Tensor]) -> None:
        """Raise if covariances are not finite, because features were too large."""
        if not all(bool(torch.isfinite(spread).all()) for spread in spreads):
            raise ValueError(
                f"the features are too large for covariances in {str(self.dtype).removeprefix('torch.')}; "
                "scale them down, or use float64."
            )

    def merged(
        self, one: dict[str, Tensor], count: int, other: dict[str, Tensor], other_count: int, shift: Tensor
    ) -> dict[str, Tensor]:
        """Return the covariance of two groups together: Chan, Golub and LeVeque's formula for unbiased covariances.

        shift (d,) : the other group's mean minus this one's.
        """
        total = count + other_count
        kept, added = (count - 1) / (total - 1), (other_count - 1) / (total - 1)
        moved = count * other_count / total / (total - 1)
        shift = shift.to(self.dtype)
        result = {}
        if self.form == "full":
            result["full"] = (one["full"] * kept).add_(other["full"], alpha=added)
            result["full"].add_(torch.outer(shift, shift), alpha=moved)
        for name in ("diagonal", "sketch", "size"):
            if name in other:
                along = shift @ self._directions(shift) if name == "sketch" else shift.norm() if name == "size" else shift
                result[name] = (one[name] * kept).add_(other[name], alpha=added).addcmul_(along, along, value=moved)
        if self.form == "lowrank":
            parts = kept**0.5 * one["factor"], added**0.5 * other["factor"], moved**0.5 * shift[:, None]
            result["factor"] = self.leading(torch.cat(parts, 1), result["diagonal"])
        return result

    def _directions(self, like: Tensor) -> Tensor:
        return random_directions(self.dim, SKETCH).to(like)

    def leading(self, factor: Tensor, variances: Tensor) -> Tensor:
        """Return the `rank` largest orthogonal columns of a factor (d, m), padded with zeros.

        Their size is measured in the features' own units. In units of standard deviations, the same rank has 0.6 points less
        accuracy on real features.
        """
        wide = factor.double()
        wide = wide[:, wide.any(0)]  # with many zeros, as of classes with few samples, LAPACK may not converge
        if wide.shape[1] <= self.dim:
            values, vectors = torch.linalg.eigh(wide.T @ wide)
            columns = wide @ vectors
        else:
            values, vectors = torch.linalg.eigh(wide @ wide.T)
            columns = vectors * values.clamp_min(0).sqrt()
        noise = len(values) * torch.finfo(values.dtype).eps * values[-1:].clamp_min(0)
        columns = (columns * (values > noise)).flip(1)[:, : self.rank]
        filled = torch.zeros(self.dim, self.rank, dtype=columns.dtype, device=columns.device)
        filled[:, : columns.shape[1]] = columns * (variances > 0)[:, None]  # no rounding errors in constant features
        return filled.to(self.dtype)


@lru_cache(maxsize=8)
def random_directions(dim: int, count: int) -> Tensor:
    """Return random signs divided by √d, (d, count) in float64.

    They are the same on every machine and with every numpy, which guarantees never to change the raw bits of PCG64.
    """
    words = np.random.PCG64(0).random_raw(dim * count // 64 + 1)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[: dim * count].reshape(dim, count)
    signs: Tensor = torch.from_numpy(bits).double() * 2 - 1
    return signs / math.sqrt(dim)
