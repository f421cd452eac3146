"""The sum of squares Σ x xᵀ of many rows in many dimensions, stored as one triangle of a d × d matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from amgc.core import memory, symmetric

ROWS = 2048  # per matrix product, so that memory access costs little compared with the arithmetic


class Scatter:
    """Σ x xᵀ (d, d) of rows that are added in batches of any size.

    Rows are buffered until there are `ROWS` of them. Reading, copying or pickling the sum adds them and drops the buffer, so
    no row is ever stored. A solve needs a second matrix. If both do not fit into memory, the constructor raises, not the solve.

    freedom : the degrees of freedom of the sum, Σ_k (n_k - 1) over the classes. The owner counts them.
    """

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        memory.check(
            dim,
            dtype,
            2,
            2 * ROWS,
            device,
            "a shared covariance and its factor",
            "Use fewer features (of patches: fewer filters), or covariance='diagonal'.",
        )
        self._upper = torch.zeros(dim, dim, dtype=dtype, device=device)
        self._rows: Tensor | None = None
        self._waiting = 0
        self.freedom = 0

    @property
    def upper(self) -> Tensor:
        """The upper triangle of the sum, with zeros below."""
        self._flush()
        self._rows = None
        return self._upper

    def add(self, features: Tensor, groups: Sequence[Tensor], centres: Tensor) -> None:
        """Add x xᵀ of the rows of each group of features (n, d), minus the group's centre, of centres (K, d) in float64."""
        for centre, group in zip(centres, groups, strict=True):
            for rows in torch.split(group, ROWS):
                if self._rows is None:
                    self._rows = self._upper.new_empty(ROWS, len(self._upper))
                if self._waiting + len(rows) > len(self._rows):
                    self._flush()
                self._rows[self._waiting : self._waiting + len(rows)].copy_(features[rows] - centre)
                self._waiting += len(rows)

    def _flush(self) -> None:
        if self._rows is not None and self._waiting:
            symmetric.add_gram(self._upper, self._rows[: self._waiting])
        self._waiting = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_upper": self.upper, "_rows": None, "_waiting": 0, "freedom": self.freedom}


def group_moments(features: Tensor, groups: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the mean (K, d) and the trace of the covariance (K,) of each group of rows, in float64.

    Only `ROWS` rows are copied at a time.
    """
    means = torch.zeros(len(groups), features.shape[1], dtype=torch.float64, device=features.device)
    traces = torch.zeros(len(groups), dtype=torch.float64, device=features.device)
    for k, (mean, group) in enumerate(zip(means, groups, strict=True)):
        for rows in torch.split(group, ROWS):
            mean += features[rows].sum(0, dtype=torch.float64)
        mean /= len(group)
        for rows in torch.split(group, ROWS):
            traces[k] += (features[rows] - mean).square().sum(dtype=torch.float64)
        traces[k] /= max(len(group) - 1, 1)
    return means, traces
