"""A stopped run loses no step, wherever it is stopped, and its final result is that of an uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny

from amgc.data import Dataset
from amgc.engine.checkpoint import Checkpoints, read
from amgc.engine.config import Config
from amgc.engine.features import FeatureSource, TaskFeatures
from amgc.engine.run import resume, run
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Task
from amgc.runs.folder import CHECKPOINT

pytestmark = pytest.mark.cpus


class StopAfter(Watch):
    """Request a stop at a step of the second task, and count the steps of that task."""

    def __init__(self, step: int | None = None) -> None:
        self.step, self.done, self.task = step, 0, 0

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.task, self.done = task.index, 0

    def wants_progress(self) -> bool:
        self.done += 1
        self.stop = self.stop or (self.task == 1 and self.done == self.step)
        return False


def stopped_at(config: Config, folder: Path, dataset: Dataset, step: int) -> dict[str, Any]:
    """Return where a run is saved if a stop is requested at this step of task 2. Check that the resumed run ends the same."""
    with pytest.raises(Stopped):
        run(config, folder / "stopped", StopAfter(step), dataset)
    position: dict[str, Any] = read(folder / "stopped" / CHECKPOINT)[0]["position"]
    resume(folder / "stopped", dataset=dataset)
    run(config, folder / "whole", dataset=dataset)
    tiny.assert_same_bits(folder / "stopped", folder / "whole")
    return position


def test_a_class_of_one_image_does_not_keep_a_stop_from_being_saved(tmp_path: Path) -> None:
    """Its mean is always the features of that image, so waiting does not help."""
    config = tiny.config("amgc", sizes=(2, 2), natural_order=True, later={"batch_size": 64, "epochs": 6})
    at = stopped_at(config, tmp_path, tiny.images((9, 9, 9, 1)), step=4)
    assert at == {"task": 1, "stage": 0, "earlier": 0, "step": 4, "begun": True}


def test_a_stop_waits_for_a_second_image_of_a_class_that_has_one(tmp_path: Path) -> None:
    """The mean of one image would put the features of that image into the checkpoint."""
    config = tiny.config("amgc", sizes=(2, 1), natural_order=True, later={"batch_size": 1})
    at = stopped_at(config, tmp_path, tiny.images((9, 9, 5)), step=1)
    assert at == {"task": 1, "stage": 0, "earlier": 0, "step": 2, "begun": True}


def test_a_class_of_one_image_does_not_keep_checkpoints_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, saved = Checkpoints.save, []

    def save(self: Checkpoints, optimizer: Any = None) -> None:
        saved.append((self.session.position.task, self.session.position.step))
        whole(self, optimizer)

    monkeypatch.setattr(Checkpoints, "save", save)
    machine = {"checkpoint_minutes": 0.0}
    config = tiny.config("amgc", sizes=(2, 2), natural_order=True, later={"batch_size": 64, "epochs": 4}, machine=machine)
    run(config, tmp_path, dataset=tiny.images((9, 9, 9, 1)))
    assert saved[-5:] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 0)]


@pytest.mark.parametrize(("kind", "place"), [(TaskFeatures, "__init__"), (FeatureSource, "test_batches")])
@pytest.mark.parametrize("method", ["amgc", "lwf", "fetril"])
def test_a_stop_after_the_training_keeps_all_of_it(
    method: str, kind: type, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, watch, whole = tiny.config(method, sizes=(2, 2)), StopAfter(), getattr(kind, place)
    dataset = tiny.images((9,) * 4)

    def stopping(*arguments: Any) -> Any:
        watch.stop = watch.task == 1
        return whole(*arguments)

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr(kind, place, stopping)
        run(config, tmp_path / "stopped", watch, dataset)
    assert watch.done > 0
    assert read(tmp_path / "stopped" / CHECKPOINT)[0]["position"] == {
        "task": 1,
        "stage": 0,
        "earlier": 0,
        "step": watch.done,
        "begun": True,
    }
    again = StopAfter()
    resume(tmp_path / "stopped", again, dataset)
    assert again.task == 1 and again.done == 0, "no step is done twice"
    run(config, tmp_path / "whole", dataset=dataset)
    tiny.assert_same_bits(tmp_path / "stopped", tmp_path / "whole")
