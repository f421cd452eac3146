"""`machine.start`: a run starts from the task 1 of another run if all settings of task 1 agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny

from amgc import tensor_files
from amgc.engine.run import resume, run
from amgc.engine.sharing import KIND
from amgc.engine.watch import Stopped, Watch
from amgc.files import FileFormatError
from amgc.methods.contract import Task
from amgc.methods.registry import find

pytestmark = pytest.mark.cpus

PHASE = {"epochs": 2, "batch_size": 7, "extractor_lr": 0.05, "head_lr": 0.05, "schedule": "constant"}


def config(method: str, start: Path | None = None, **changes: Any) -> Any:
    machine = {} if start is None else {"start": str(start)}
    return tiny.config(method, **({"first": PHASE, "machine": machine} | changes))


class Listen(Watch):
    """Record the tasks that are trained."""

    def __init__(self) -> None:
        self.trained: list[int] = []

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.trained.append(task.index)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "run"
    run(config("finetune"), folder, dataset=tiny.images())
    return folder


@pytest.mark.parametrize("method", ["amgc", "sbgc", "finetune", "joint", "lwf"])  # lwf has other milestones
def test_a_start_is_bit_identical_to_training(method: str, start: Path, tmp_path: Path) -> None:
    """Metrics are the same too. The seconds of task 1 are those of the run that trained it."""
    own = run(config(method), tmp_path / "own", dataset=tiny.images())
    listen = Listen()
    taken = run(config(method, start), tmp_path / "taken", listen, tiny.images())
    tiny.assert_same_bits(tmp_path / "own", tmp_path / "taken")
    assert listen.trained == [1, 2]
    assert taken[0]["losses"] == own[0]["losses"] and taken[0]["seconds"]["train"] > 0


def test_a_started_run_resumes_bit_identically(start: Path, tmp_path: Path) -> None:
    class StopLater(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 1

    run(config("amgc"), tmp_path / "own", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(config("amgc", start), tmp_path / "taken", StopLater(), tiny.images())
    resume(tmp_path / "taken", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "own", tmp_path / "taken")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 2}, "seed"),
        ({"first": PHASE | {"head_lr": 0.1}}, "first"),
        ({"features_options": {"dim": 12}}, "features_options"),
        ({"tasks": None, "sizes": (2, 4)}, "sizes, tasks"),
        ({"natural_order": True, "seed": 3}, "natural_order, seed"),
        ({"data": "other"}, "data"),
    ],
)
def test_a_start_that_was_trained_otherwise_is_refused_by_name(
    changes: dict[str, Any], named: str, start: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"task 1 of '.*' was trained with another {named}; leave --start out"):
        run(config("amgc", start, **changes), tmp_path, dataset=tiny.images())


def test_later_phases_and_the_methods_own_settings_may_differ(start: Path, tmp_path: Path) -> None:
    """Task 1 is not trained again, and its result is that of the other run."""
    listen = Listen()
    lines = run(config("amgc", start, later={"epochs": 1}, hyper={"margin": 0.1}), tmp_path, listen, tiny.images())
    assert listen.trained == [1, 2]
    assert lines[0]["losses"] == tiny.saved(start)[0]["lines"][0]["losses"] != []


def test_a_start_without_a_first_task_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"task-1\.safetensors"):
        run(config("amgc", tmp_path / "nothing"), tmp_path / "run", dataset=tiny.images())


def test_a_damaged_first_task_is_refused(start: Path, tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    content = (start / "task-1.safetensors").read_bytes()
    (tmp_path / "start" / "task-1.safetensors").write_bytes(content[:-5])
    with pytest.raises(FileFormatError, match="damaged"):
        run(config("amgc", tmp_path / "start"), tmp_path / "run", dataset=tiny.images())


def test_a_method_that_sees_old_data_leaves_no_first_task(tmp_path: Path) -> None:
    run(config("joint"), tmp_path, dataset=tiny.images())
    assert not (tmp_path / "task-1.safetensors").exists()


# ---- all tasks -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "run"
    run(config("sdc", machine={"keep_tasks": True}), folder, dataset=tiny.images())
    return folder


@pytest.mark.parametrize("method", ["sdc", "adc", "ldc", "dpcr", "amgc-drift"])
def test_methods_of_one_family_share_the_training_of_all_tasks_bit_identically(method: str, kept: Path, tmp_path: Path) -> None:
    """Only LDC trains in later tasks: its own second stage."""
    own = run(config(method), tmp_path / "own", dataset=tiny.images())
    listen = Listen()
    taken = run(config(method, kept), tmp_path / "taken", listen, tiny.images())
    tiny.assert_same_bits(tmp_path / "own", tmp_path / "taken")
    assert listen.trained == ([1, 2] if method == "ldc" else [])
    assert [line["correct"] for line in taken] == [line["correct"] for line in own]
    assert all(line["seconds"]["train"] > 0 for line in taken)


def test_what_a_run_with_a_second_stage_keeps_is_that_of_the_first(kept: Path, tmp_path: Path) -> None:
    """The steps, losses and seconds of the second stage are LDC's own."""
    given = run(config("ldc", machine={"keep_tasks": True}), tmp_path / "ldc", dataset=tiny.images())
    for task in (1, 2, 3):
        (one, tensors), (other, others) = (
            tensor_files.read(folder / f"task-{task}.safetensors", KIND) for folder in (kept, tmp_path / "ldc")
        )
        assert other.pop("seconds") < given[task - 1]["seconds"]["train"] or task == 1
        assert other == {name: value for name, value in one.items() if name != "seconds"}
        tiny.assert_equal(tensors, others)


@pytest.mark.parametrize("changed", ["old_scores", "views", "trains_network"])
def test_a_method_that_trains_with_code_of_its_own_shares_only_task_1(
    changed: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it inherits `begin` and `loss`."""
    base = find("dpcr").kind
    own = {"views": lambda self, images, labels, generator: (images, labels)}.get(changed) or (
        lambda self, *arguments: getattr(base, changed)(self, *arguments)
    )
    own.__qualname__ = f"Own.{changed}"
    tiny.variant(monkeypatch, "dpcr", **{changed: own})
    listen = Listen()
    run(config("dpcr", kept), tmp_path, listen, tiny.images())
    assert listen.trained == [1, 2]


def test_a_shared_second_stage_that_is_interrupted_resumes_bit_identically(kept: Path, tmp_path: Path) -> None:
    class StopIn(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 2

    run(config("ldc"), tmp_path / "own", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(config("ldc", kept), tmp_path / "taken", StopIn(), tiny.images())
    resume(tmp_path / "taken", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "own", tmp_path / "taken")


@pytest.mark.parametrize(
    ("method", "changes"),
    [("sdc", {"hyper": {"distillation": 3.0}}), ("dpcr", {"later": PHASE | {"epochs": 1}}), ("finetune", {}), ("lwf", {})],
)
def test_later_tasks_that_are_trained_otherwise_are_trained(
    method: str, changes: dict[str, Any], kept: Path, tmp_path: Path
) -> None:
    """LwF itself weighs the distillation by 3, the others by 10."""
    listen = Listen()
    run(config(method, kept, **changes), tmp_path, listen, tiny.images())
    assert listen.trained == [1, 2]


def test_later_tasks_are_kept_only_if_asked_for_and_only_of_methods_that_share_them(
    start: Path, kept: Path, tmp_path: Path
) -> None:
    run(config("finetune", machine={"keep_tasks": True}), tmp_path, dataset=tiny.images())
    names = ["task-1.safetensors", "task-2.safetensors", "task-3.safetensors"]
    assert sorted(path.name for path in kept.glob("task-*")) == names
    assert [path.name for folder in (start, tmp_path) for path in folder.glob("task-*")] == [names[0], names[0]]
