"""Determine from the class statistics alone whether a sample was learned before.

The n samples of a class differ from its mean in n - 1 directions at most, which the covariance spans. In more dimensions than
that, a new sample has a part outside of them, and a learned one has none. Nothing else about the samples is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from amgc.core.inputs import Label
from amgc.core.statistics import ClassStatistics

MOST = 512  # directions; more take seconds
# A sample was learned if its part outside of the directions is at most this share of its length. For training photos (flowers
# and leaves, lite0, 1 to 80 a class), learned ones had at most 2.3e-5, because features are float32, and new ones 0.07 or more.
NONE = 1e-3


class LearnedBefore:
    """Test whether a class has learned a sample. `can_tell` : the class has few samples, and its whole covariance is stored."""

    def __init__(self, statistics: ClassStatistics, label: Label) -> None:
        row = statistics.index(label)
        self.mean = statistics.mean[row].double()
        freedom = statistics.freedom if statistics.form == "shared" else int(statistics.count[row]) - 1
        self.can_tell = statistics.form in ("full", "shared") and freedom <= min(MOST, statistics.dim // 2)
        self.directions = self.mean.new_zeros(statistics.dim, 0)
        if self.can_tell and freedom:
            # The products with random vectors span the same directions, at less cost than eigenvectors.
            generator = torch.Generator().manual_seed(0)
            random = torch.randn(statistics.dim, freedom, generator=generator, dtype=torch.float64).to(self.mean)
            self.directions = torch.linalg.qr(_times(statistics, row, random))[0]

    def __call__(self, sample: Tensor) -> bool:
        """Return whether the class has learned the sample (d,)."""
        found = sample.to(self.mean)
        apart = found - self.mean
        outside = apart - self.directions @ (self.directions.T @ apart)
        return self.can_tell and bool(outside.norm() <= NONE * found.norm())


def _times(statistics: ClassStatistics, row: int, columns: Tensor) -> Tensor:
    """Return the product of a class's covariance with columns (d, r)."""
    if statistics.form == "shared":
        return statistics.shared().times(columns).double()
    full = statistics.covariances.full
    assert full is not None
    return full[row].double() @ columns
