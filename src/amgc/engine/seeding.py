"""Random numbers of a run, derived from its seed and the place where they are used.

No random state has to be saved: in task t, step s a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib

import torch


def seed_of(*place: int | str) -> int:
    """Return a 63-bit seed for a place such as (seed, "shuffle", task, epoch)."""
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest(), "big") >> 1


def generator(*place: int | str) -> torch.Generator:
    """Return a seeded generator. It is on the CPU, so that a run on a GPU draws the same numbers."""
    return torch.Generator().manual_seed(seed_of(*place))


def seed_torch(device: torch.device, *place: int | str) -> None:
    """Seed torch's own generators, from which layers draw: their first weights, dropout."""
    if device.type == "cpu":  # torch.manual_seed formats the call stack for each kind of GPU, also where there is none
        torch.default_generator.manual_seed(seed_of(*place))
    else:
        torch.manual_seed(seed_of(*place))


def shuffled(count: int, batch_size: int, *place: int | str) -> list[torch.Tensor]:
    """Return the indices 0..count-1 in random order, in batches of almost equal size, none larger than `batch_size`.

    >>> [len(batch) for batch in shuffled(10, 4, 0)]
    [4, 3, 3]
    """
    order = torch.randperm(count, generator=generator(*place))
    return list(order.tensor_split(-(-count // batch_size)))
