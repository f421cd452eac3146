"""The cost of a task's end, where it is measured with few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc.engine import cost
from amgc.engine.session import Session
from amgc.engine.watch import Watch
from amgc.methods.finetune import Finetune


def test_an_end_that_takes_long_per_row_is_measured_with_few_and_extrapolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock by which an end takes 5 seconds and 2 per row, and all else nothing."""
    ends: list[int] = []

    def end(self: Any, task: Any, features: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        ends.append(sum(len(labels) for _, labels in features))

    def seconds(action: Callable[[], Any], repeat: bool = True) -> float:
        before = len(ends)
        action()
        return sum(5.0 + 2.0 * rows for rows in ends[before:])

    monkeypatch.setattr(Finetune, "end", end)
    monkeypatch.setattr(Finetune, "rehearsal_rows", 4)
    monkeypatch.setattr(cost, "_seconds", seconds)
    config = tiny.config("finetune", tasks=2, first={"epochs": 0}, later={"epochs": 0})
    session = Session(config, tmp_path, Watch(), tiny.images((200,) * 6))
    assert cost.estimate(session).tasks == (5.0 + 2.0 * 600, 5.0 + 2.0 * 600)
    # Each with few rows and with three times as many: the first task; a later one, which has half of the classes behind it.
    assert ends == [12, 36, 12, 12, 36]
