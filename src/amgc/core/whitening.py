"""Coordinates in which a covariance is the identity."""

from __future__ import annotations

import torch
from torch import Tensor

from amgc.core import memory


class Whitener:
    """The change of variables u = w L with Σ = L Lᵀ: one Σ for all rows w, dense (d, d) or diagonal (d,), or one each.

    `flat` says that (J, d) are the diagonals of J matrices, one for each row, and not one dense matrix.
    """

    def __init__(self, spread: Tensor, flat: bool = False) -> None:
        if not bool(torch.isfinite(spread).all()):
            raise ValueError("the covariances are not finite: the features are too large, or a margin or ridge is.")
        self.flat = flat or spread.ndim == 1
        variances = spread if self.flat else spread.diagonal(dim1=-2, dim2=-1)
        variances = torch.where(variances > 0, variances, 1.0)  # nothing varies there, so any unit will do
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
        floor = torch.finfo(spread.dtype).eps  # a share of each variance, so that the features' units do not matter
        raised = spread.clone()
        while True:
            raised.diagonal(dim1=-2, dim2=-1).add_(variances, alpha=floor)
            self.root, failed = torch.linalg.cholesky_ex(raised)
            if not bool(failed.any()):
                break
            floor *= 10
        self.inverse = torch.linalg.solve_triangular(self.root, unit.expand_as(self.root), upper=False)

    def whiten(self, weight: Tensor) -> Tensor:
        """u = w L."""
        return self._times(weight, self.root)

    def unwhiten(self, white: Tensor) -> Tensor:
        """w = u L⁻¹."""
        return self._times(white, self.inverse)

    def push(self, rows: Tensor) -> Tensor:
        """L⁻¹ x for each row x: a feature becomes white, a gradient in w becomes one in u."""
        return self._times(rows, self.inverse if self.flat else self.inverse.mT)

    def _times(self, rows: Tensor, matrix: Tensor) -> Tensor:
        if self.flat:
            return rows * matrix
        if matrix.ndim == 2:
            return rows @ matrix
        return torch.bmm(rows.to(matrix.dtype)[:, None], matrix)[:, 0].to(rows.dtype)
