"""Random directions that are the same on every machine and with every version of numpy."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


@lru_cache(maxsize=8)
def random_directions(dim: int, count: int) -> Tensor:
    """Return random signs divided by √d, (d, count) in float64.

    They come from the raw bits of PCG64, which numpy guarantees never to change.
    """
    words = np.random.PCG64(0).random_raw(dim * count // 64 + 1)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8))[: dim * count].reshape(dim, count)
    signs: Tensor = torch.from_numpy(bits).double() * 2 - 1
    return signs / math.sqrt(dim)
