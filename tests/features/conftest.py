"""Helpers for the tests of the extractors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


class Pixels:
    """Images in memory, with the interface of `amgc.data`. Counts the reads of pixels."""

    def __init__(self, count: int = 10, shape: tuple[int, int, int] = (1, 8, 8)) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
        self.labels = torch.arange(count) % 3
        self.largest = 0

    def take(self, indices: Tensor) -> Tensor:
        self.largest = max(self.largest, len(indices))
        return self.pixels[indices]


@pytest.fixture
def pixels() -> Pixels:
    return Pixels()


@pytest.fixture
def empty() -> Pixels:
    return Pixels(0)
