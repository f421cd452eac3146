"""Learn from shards on many workers: `learn_shards`. The result is bit-identical for any number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amgc.lazy import lazy_names

if TYPE_CHECKING:
    from amgc.distributed.engines import OnRay, Processes, here
    from amgc.distributed.learn import Engine, Progress, learn_shards

__all__ = ["Engine", "OnRay", "Processes", "Progress", "here", "learn_shards"]

# Imported when first used: `amgc learn --help` needs no torch.
__getattr__ = lazy_names(__name__, {"engines": ("OnRay", "Processes", "here"), "learn": ("Engine", "Progress", "learn_shards")})
