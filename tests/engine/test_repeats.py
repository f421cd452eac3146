"""A method may use the features of a frozen network several times per epoch, and gets the number of each use."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc.engine import cost
from amgc.engine.run import run
from amgc.engine.session import Session
from amgc.engine.training import steps_left
from amgc.engine.watch import Watch
from amgc.methods.contract import Batch, Method, Task
from amgc.methods.finetune import Finetune

FROZEN = {"epochs": 2, "extractor_lr": 0.0, "batch_size": 5}


def test_an_epoch_uses_each_row_as_often_as_requested_in_batches_of_the_usual_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses: list[list[tuple[bytes, int, int]]] = []
    whole = Method.loss

    def repeats(self: Any, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert len(features) == len(labels) == 18
        return labels - self.task.new.start + 1  # rows of the first new class once, of the second twice

    def loss(self: Any, batch: Batch) -> Any:
        if batch.copy is not None:
            rows = zip(batch.features, batch.labels, batch.copy, strict=True)
            uses.append([(row.numpy().tobytes(), int(label), int(copy)) for row, label, copy in rows])
        return whole(self, batch)

    tiny.variant(monkeypatch, "finetune", repeats=repeats, loss=loss)
    run(tiny.config("finetune", tasks=3, later=FROZEN), tmp_path, dataset=tiny.images())
    assert len(uses) == 2 * 2 * 6  # tasks, epochs, 27 uses in batches of at most 5
    assert max(map(len, uses)) == 5 and min(map(len, uses)) == 4
    for epoch in range(4):
        here = Counter(use for batch in uses[6 * epoch : 6 * epoch + 6] for use in batch)
        assert len(here) == 27 and set(here.values()) == {1}
        start = 2 + 2 * (epoch // 2)
        assert Counter((label - start, copy) for _, label, copy in here) == {(0, 0): 9, (1, 0): 9, (1, 1): 9}
    assert uses[:6] != uses[6:12], "shuffled anew in each epoch"


def test_no_row_is_repeated_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Any] = []
    whole = Method.loss

    def loss(self: Any, batch: Batch) -> Any:
        copies.append(batch.copy)
        return whole(self, batch)

    monkeypatch.setattr(Finetune, "loss", loss)
    run(tiny.config("finetune", tasks=2, later=FROZEN), tmp_path, dataset=tiny.images())
    assert Task(0, range(1)).is_first and copies and all(copy is None for copy in copies)


def test_the_promised_steps_are_those_of_all_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    class Note(Watch):
        def begin_task(self, task: Task, tasks: int, steps_of_task: int, done: int) -> None:
            steps.append(steps_of_task)

    monkeypatch.setattr(cost, "PATIENCE", 0.0)
    tiny.variant(monkeypatch, "finetune", repeats=lambda self, features, labels: labels - self.task.new.start + 1)
    config = tiny.config("finetune", tasks=3, later=FROZEN)
    session = Session(config, tmp_path, Watch(), tiny.images())
    trials = cost.measure(session)
    run(config, tmp_path, Note(), dataset=tiny.images())
    assert [trial.stages[0].repeats for trial in trials] == [1.0, 1.5]
    counts = [session.features.image_count(index) for index in range(3)]
    stages = [trials[min(index, 1)].stages[0] for index in range(3)]
    left = [steps_left(stage.phase, round(count * stage.repeats), 0) for stage, count in zip(stages, counts, strict=True)]
    assert [promised for promised, _ in left] == steps == [6, 12, 12]
