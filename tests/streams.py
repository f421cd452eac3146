"""Feature vectors for the tests of the methods, and methods that learn them task by task without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from amgc.engine.session import Identity
from amgc.methods.contract import Method, Task
from amgc.methods.registry import find

Block = tuple[torch.Tensor, torch.Tensor]


def blocks(sizes: Sequence[int], each: int = 12, dim: int = 6, seed: int = 0) -> list[Block]:
    """Return for each task non-negative features (n, dim), with a covariance per class, and labels in order of arrival."""
    drawing = torch.Generator().manual_seed(seed)
    result, start = [], 0
    for size in sizes:
        labels = torch.arange(start, start + size).repeat_interleave(each)
        mix = torch.randn(size, dim, dim, generator=drawing)
        noise = torch.randn(size, each, dim, generator=drawing) @ mix
        centre = 3 * torch.randn(size, 1, dim, generator=drawing)
        order = torch.randperm(len(labels), generator=drawing)
        result.append(((noise + centre).abs().flatten(0, 1)[order], labels[order]))
        start += size
    return result


def learned(name: str, stream: Sequence[Block], seed: int = 0, batch: int = 7, **hyper: Any) -> Method[Any]:
    """Return a method after all tasks of the stream, without training steps."""
    entry = find(name)
    method = entry.kind(replace(entry.hyper, **hyper), Identity(stream[0][0].shape[1]), torch.device("cpu"))
    stop = 0
    for index, (features, labels) in enumerate(stream):
        task = Task(index, range(stop, int(labels.max()) + 1))
        stop = task.new.stop
        method.task = task
        method.begin(task, torch.Generator().manual_seed(seed + index))
        batches = list(zip(features.split(batch), labels.split(batch), strict=True))
        method.end(task, batches, torch.Generator().manual_seed(seed))
    return method


def together(stream: Sequence[Block]) -> Block:
    return torch.cat([features for features, _ in stream]), torch.cat([labels for _, labels in stream])
