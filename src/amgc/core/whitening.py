"""Coordinates in which a covariance is the identity."""

from __future__ import annotations

import torch
from torch import Tensor

from amgc.core import memory


class Whitener:
    """The change of variables u = w L with Σ = L Lᵀ. Σ is one matrix for all rows w, (d, d) or diagonal (d,), or one per row.

    flat : whether `spread` (J, d) holds the diagonals of J matrices, one per row, instead of one dense matrix.
    """

    def __init__(self, spread: Tensor, flat: bool = False) -> None:
        if not bool(torch.isfinite(spread).all()):
            raise ValueError("the covariances are not finite: the features are too large, or a margin or ridge is.")
        self.flat = flat or spread.ndim == 1
        variances = spread if self.flat else spread.diagonal(dim1=-2, dim2=-1)
        variances = torch.where(variances > 0, variances, 1.0)  # constant features
        if self.flat:
            self.root = variances.sqrt()
            self.inverse = 1 / self.root
            return
        memory.check(
            spread.shape[-1],
            spread.dtype,
            4 * spread[..., 0, 0].numel(),
            0,
            spread.device,
            "solving by iteration",
            "Use fewer features; or covariance='shared' with a margin of 0, whose closed form needs one matrix.",
        )
        unit = torch.eye(spread.shape[-1], dtype=spread.dtype, device=spread.device)
        floor = torch.finfo(spread.dtype).eps  # a share of each variance, independent of units
        raised = spread.clone()
        while True:
            raised.diagonal(dim1=-2, dim2=-1).add_(variances, alpha=floor)
            self.root, failed = torch.linalg.cholesky_ex(raised)
            if not bool(failed.any()):
                break
            floor *= 10
        self.inverse = torch.linalg.solve_triangular(self.root, unit.expand_as(self.root), upper=False)

    def whiten(self, weight: Tensor) -> Tensor:
        """Return u = w L."""
        return self._times(weight, self.root)

    def unwhiten(self, white: Tensor) -> Tensor:
        """Return w = u L⁻¹."""
        return self._times(white, self.inverse)

    def push(self, rows: Tensor) -> Tensor:
        """Return L⁻¹ x for each row x: whitens features, and turns gradients in w into gradients in u."""
        return self._times(rows, self.inverse if self.flat else self.inverse.mT)

    def _times(self, rows: Tensor, matrix: Tensor) -> Tensor:
        if self.flat:
            return rows * matrix
        if matrix.ndim == 2:
            return rows @ matrix
        return torch.bmm(rows.to(matrix.dtype)[:, None], matrix)[:, 0].to(rows.dtype)
