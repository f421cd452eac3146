"""Fewer directions for rows of few samples. They are ordered beforehand, without looking at the samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from amgc.core.background import Background, background, mixed
from amgc.core.spread import random_directions

# Chosen on held-out training images: identity mixed with the covariances within and between public classes, and how much longer
# than 1 rows may be after the projection; longer ones are scaled down.
WITHIN, BETWEEN, LENGTH = 0.3, 0.1, 0.8


@dataclass(frozen=True, eq=False)
class Narrowing:
    """Projections of rows (n, d) to the first of ordered directions (d, d), scaled to keep them about as long.

    lengths (d,) : about the length of rows of length 1 in the first one, two, … directions.
    """

    directions: Tensor
    lengths: Tensor

    def __call__(self, count: int) -> Tensor:
        """Return the matrix (d, count) that projects rows; the identity for all directions."""
        if count >= len(self.directions):
            return torch.eye(len(self.directions), dtype=torch.float64)
        return self.directions[:, :count] / self.lengths[count - 1]

    def further(self, count: int, fewer: int) -> Tensor:
        """Return the matrix (count, fewer) that makes rows in `fewer` directions of those in `count` directions."""
        if count >= len(self.directions):
            return self(fewer)
        return torch.eye(count, dtype=torch.float64)[:, :fewer] * (self.lengths[count - 1] / self.lengths[fewer - 1])


@lru_cache(maxsize=4)
def narrowing(dim: int, public: str | None = None) -> Narrowing:
    """Return the directions for rows of d features.

    public : name of a background (`amgc.core.background`). Its directions come first in which classes of public images differ
        most, in units of what varies within them. None: random directions.
    """
    if public is not None and background(public).dim == dim:
        return discriminants(background(public))
    counts = torch.arange(1, dim + 1, dtype=torch.float64)
    return Narrowing(random_directions(dim, dim), (counts / dim).sqrt())


def discriminants(known: Background) -> Narrowing:
    """Return the directions in which public classes differ, the best one first."""
    level = torch.ones(known.dim, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(mixed(known.within, level, WITHIN))
    white = vectors / values.sqrt()
    _, turned = torch.linalg.eigh(white.T @ mixed(known.between, level, BETWEEN) @ white)
    found = white @ turned.flip(1)
    # Machines differ in the signs of eigenvectors. The largest entry gets a positive one.
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    found = found * largest.sign()
    total = known.within + known.between
    squares = ((total @ found) * found).sum(0).cumsum(0) / total.trace()
    return Narrowing(found, LENGTH * squares.sqrt())
