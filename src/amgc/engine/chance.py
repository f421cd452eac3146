"""All chance of a run, from its seed and the place where it is used.

No generator's state has to be saved: a resumed run draws at task t, step s what it would have drawn anyway.
"""

from __future__ import annotations

import hashlib

import torch


def seed_of(*place: int | str) -> int:
    """A number of 63 bits for a place such as (seed, "shuffle", task, epoch)."""
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest(), "big") >> 1


def generator(*place: int | str) -> torch.Generator:
    """A generator on the CPU, so that a GPU run draws the same."""
    return torch.Generator().manual_seed(seed_of(*place))


def shuffled(count: int, batch_size: int, *place: int | str) -> list[torch.Tensor]:
    """Indices 0..count-1 in random order, in batches of (almost) equal size, none larger than `batch_size`.

    >>> [len(batch) for batch in shuffled(10, 4, 0)]
    [4, 3, 3]
    """
    order = torch.randperm(count, generator=generator(*place))
    return list(order.tensor_split(-(-count // batch_size)))
