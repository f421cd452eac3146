"""Learn from shards on many workers: `learn_shards`. The result is bit-identical for any number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amgc.lazy import lazy_names

if TYPE_CHECKING:
    from amgc.distributed.executors import LocalProcesses, OnRay, here
    from amgc.distributed.learn import Executor, ShardProgress, learn_shards

__all__ = ["Executor", "LocalProcesses", "OnRay", "ShardProgress", "here", "learn_shards"]

# Imported when first used: `amgc learn --help` needs no torch.
__getattr__ = lazy_names(
    __name__,
    {
        "executors": ("LocalProcesses", "OnRay", "here"),
        "learn": ("Executor", "ShardProgress", "learn_shards"),
    },
)
