"""Runs with the extractor `layers`: its network learns task 1 only, can be stopped, and is counted in the cost estimate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from engine.test_patches import two_data_sets

from amgc.engine import cost as cost_module
from amgc.engine.config import Config
from amgc.engine.cost import estimate
from amgc.engine.run import fit_network, resume, run
from amgc.engine.session import Session
from amgc.engine.watch import Stopped, TrainingProgress, Watch
from amgc.features.layers import Layers
from amgc.methods.contract import Task

pytestmark = pytest.mark.cpus

OPTIONS = {"filters": 6, "widths": (4, 6), "steps": 5, "networks": 1}


def config(method: str = "amgc-closed", **changes: Any) -> Config:
    still = {"first": {"epochs": 0}, "later": {"epochs": 0}, "features_options": OPTIONS}
    return tiny.config(method, features="layers", **still | changes)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Recorder(Watch):
    """Records the progress, and requests a stop at a step of the fit."""

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at, self.seen, self.begun = stop_at, [], []  # type: ignore[var-annotated]

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.begun.append((task.index, steps))

    def wants_progress(self) -> bool:
        return True

    def progress(self, now: TrainingProgress) -> None:
        self.seen.append((now.step, now.steps))
        assert math.isnan(now.accuracy) and math.isfinite(*now.losses.values())
        self.stop = now.step == self.stop_at


def test_the_network_learns_from_task_1_alone(tmp_path: Path) -> None:
    few, many = (Session(config(tasks=3, natural_order=True), tmp_path, Watch(), made) for made in two_data_sets())
    for session in (few, many):
        fit_network(session)
    tiny.assert_equal(few.network.state_dict(), many.network.state_dict())
    other = Session(config(tasks=3, natural_order=True, seed=2), tmp_path, Watch(), tiny.images())
    fit_network(other)
    assert isinstance(other.network, Layers) and isinstance(few.network, Layers)
    changed = [each.averages[0].network.state_dict()["blocks.0.mix.weight"] for each in (other.network, few.network)]
    assert not torch.equal(*changed)


def test_the_progress_of_the_fit_is_shown(tmp_path: Path) -> None:
    watch = Recorder()
    run(config(), tmp_path, watch, tiny.images())
    assert watch.seen == [(step, 5) for step in range(1, 6)]
    assert watch.begun[0] == (0, 5)


@pytest.mark.parametrize("step", [1, 4])
def test_a_run_that_was_stopped_during_the_fit_ends_with_the_same_bits(step: int, tmp_path: Path) -> None:
    run(config(), tmp_path / "whole", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(config(), tmp_path / "parts", Recorder(step), tiny.images())
    resume(tmp_path / "parts", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "parts", tmp_path / "whole")


def test_nothing_of_the_watch_stays_in_the_network(tmp_path: Path) -> None:
    session = Session(config(), tmp_path, Watch(), tiny.images())
    fit_network(session)
    assert "report" not in vars(session.network) and not session.network.needs_fit


def test_the_cost_counts_the_steps_of_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "PATIENCE", 0.0)
    few, many = (
        Session(config(features_options=OPTIONS | {"steps": steps}), tmp_path, Watch(), tiny.images()) for steps in (5, 50_000)
    )
    before = {name: tensor.clone() for name, tensor in many.network.state_dict().items()}
    assert estimate(many).tasks[0] > 20 * estimate(few).tasks[0]
    assert many.network.fit_steps == 50_000 and many.network.needs_fit
    tiny.assert_equal(before, many.network.state_dict())
