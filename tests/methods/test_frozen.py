"""Frozen methods train nothing after task 1, even if a preset sets the training of later tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from amgc.engine.run import run
from amgc.features import build
from amgc.methods import Task
from amgc.methods.registry import find

pytestmark = pytest.mark.cpus


@pytest.mark.any_cpu
@pytest.mark.parametrize("method", ["ncm", "lda", "fecam", "acil", "ds-al", "ranpac"])
def test_settings_of_later_tasks_change_nothing(method: str, tmp_path: Path) -> None:
    lines = run(tiny.config(method), tmp_path / "one", dataset=tiny.images())
    others = run(tiny.config(method, later={"epochs": 2, "head_lr": 0.5}), tmp_path / "other", dataset=tiny.images())
    assert tiny.untimed(lines) == tiny.untimed(others)
    tiny.assert_equal(tiny.saved(tmp_path / "one")[1], tiny.saved(tmp_path / "other")[1])


@pytest.mark.parametrize("name", ["acil", "amgc-closed", "ds-al", "fecam", "lda", "ncm", "ranpac"])
def test_a_network_without_parameters_is_not_trained_in_task_1(name: str) -> None:
    """Training the head would be useless, because `end` replaces it."""
    entry, first = find(name), Task(0, range(2))
    for extractor, epochs in (({"name": "patches", "filters": 4}, 0), ({"name": "convnet"}, entry.hyper.first.epochs)):
        network = build(**extractor, image_shape=(1, 8, 8))
        assert entry.kind(entry.hyper, network, torch.device("cpu")).phase(first).epochs == epochs
    assert entry.hyper.first.epochs > 0
