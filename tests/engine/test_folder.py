"""The folder of a run: one run, one process at a time, and errors for damaged and foreign files."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc import tensor_files
from amgc.data import Images
from amgc.engine import checkpoint
from amgc.engine.run import resume, run
from amgc.engine.watch import Stopped, Watch
from amgc.files import FileFormatError
from amgc.methods.contract import Task
from amgc.runs.folder import CHECKPOINT, RunExistsError, RunFolder


class StopLater(Watch):
    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.stop = task.index == 1


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stopped):
        run(tiny.config(), folder, StopLater(), tiny.images())
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """Return a run that was stopped in task 2."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def test_a_folder_holds_one_run(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(RunExistsError, match="already contains a run; resume it"):
        run(tiny.config(), folder, dataset=tiny.images())
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("count", [0, 2, 21])
def test_images_that_were_left_out_are_written_down(count: int, tmp_path: Path) -> None:
    bad = tuple(f"photos/cat/{number}.png" for number in range(count))
    run(tiny.config("ncm", tasks=1), tmp_path, dataset=replace(tiny.images(), skipped=bad))
    assert json.loads((tmp_path / "run.json").read_text())["skipped"] == {"count": count, "names": list(bad[:20])}


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    assert run(tiny.config(), tmp_path / "run", dataset=tiny.images(), dry_run=True) == []
    assert not (tmp_path / "run").exists()


def test_a_finished_run_resumes_to_its_metrics(tmp_path: Path) -> None:
    lines = run(tiny.config(tasks=1), tmp_path, dataset=tiny.images())
    assert resume(tmp_path, dataset=tiny.images()) == lines


def test_a_run_that_another_one_works_on_is_left_alone(folder: Path) -> None:
    before = (folder / CHECKPOINT).read_bytes()
    with RunFolder(folder).locked(), pytest.raises(RunExistsError, match="another process is working on"):
        resume(folder, dataset=tiny.images())
    assert (folder / CHECKPOINT).read_bytes() == before
    resume(folder, dataset=tiny.images())


def _hold(folder: Path, ready: Any) -> None:
    with RunFolder(folder).locked():
        ready.set()
        multiprocessing.Event().wait(600)  # until it is killed


def test_the_lock_goes_with_a_process_that_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(300)
    with pytest.raises(RunExistsError), RunFolder(tmp_path).locked():
        pass
    holder.kill()
    holder.join()
    with RunFolder(tmp_path).locked():
        pass


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no run in .* it has no run\.json"):
        resume(tmp_path, dataset=tiny.images())


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: c[: len(c) // 2], lambda c: c[:7], lambda c: b"", lambda c: b"x" * 99]
)
def test_a_truncated_checkpoint_is_reported(folder: Path, damage: Any) -> None:
    path = folder / CHECKPOINT
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileFormatError, match=r"checkpoint\.safetensors' (is damaged|was not written)"):
        resume(folder, dataset=tiny.images())


def test_a_changed_byte_in_a_checkpoint_is_noticed(folder: Path) -> None:
    path = folder / CHECKPOINT
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(FileFormatError, match="checksum"):
        resume(folder, dataset=tiny.images())


def test_a_checkpoint_of_another_kind_is_refused(folder: Path) -> None:
    shutil.copy(folder / "task-1.safetensors", folder / CHECKPOINT)
    with pytest.raises(FileFormatError, match="holds a 'first task', not a 'checkpoint'"):
        resume(folder, dataset=tiny.images())


def test_a_checkpoint_of_another_run_is_refused(folder: Path, tmp_path: Path) -> None:
    run(tiny.config(seed=2), tmp_path / "two", dataset=tiny.images())
    shutil.copy(tmp_path / "two" / CHECKPOINT, folder / CHECKPOINT)
    with pytest.raises(FileFormatError, match="belongs to a run with another config"):
        resume(folder, dataset=tiny.images())


@pytest.mark.parametrize("gone", ["position", "method", "lines", "count", "network/layers.0.weight", "method/head.bias"])
def test_a_checkpoint_that_lacks_something_does_not_fit(folder: Path, gone: str) -> None:
    header, tensors = checkpoint.read(folder / CHECKPOINT)
    (header if gone in header else tensors).pop(gone)
    tensor_files.write(folder / CHECKPOINT, checkpoint.KIND, header, tensors)
    with pytest.raises(FileFormatError, match=r"checkpoint\.safetensors' do not fit together"):
        resume(folder, dataset=tiny.images())


def test_a_checkpoint_with_a_head_of_another_shape_does_not_fit(folder: Path) -> None:
    header, tensors = checkpoint.read(folder / CHECKPOINT)
    tensor_files.write(folder / CHECKPOINT, checkpoint.KIND, header, tensors | {"network/layers.0.weight": torch.zeros(1)})
    with pytest.raises(FileFormatError, match="do not fit together"):
        resume(folder, dataset=tiny.images())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "null",
        "[]",
        '"text"',
        "{}",
        '{"version": 1, "config": null}',
        '{"version": 1, "config": []}',
        '{"version": 1, "config": {"method": "amgc"}}',
        '{"version": 1, "config": {"method": 3, "hyper": {}, "machine": {}}}',
        '{"version": 1, "config": {"method": "amgc", "hyper": [], "machine": {}}}',
        '{"version": 1, "config": {"method": "amgc", "hyper": {}, "machine": 4}}',
        '{"version": 1, "config": {"method": "amgc", "hyper": {}, "machine": {}, "sizes": 5}}',
        b"\xff\xfe\x00",
    ],
)
def test_a_damaged_run_json_is_reported(folder: Path, content: str | bytes) -> None:
    (folder / "run.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileFormatError, match=r"run\.json' (is damaged|cannot be read|was not written by amgc)"):
        resume(folder, dataset=tiny.images())


def test_a_run_of_a_newer_version_is_refused(folder: Path) -> None:
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"version": 2}))
    with pytest.raises(FileFormatError, match=r"run\.json' has version 2; this amgc reads up to 1"):
        resume(folder, dataset=tiny.images())


def test_a_run_is_not_resumed_on_other_classes(folder: Path) -> None:
    """Otherwise a new class in a folder of images would silently change the class order."""
    with pytest.raises(ValueError, match="the data set has changed"):
        resume(folder, dataset=tiny.images(prefix="other"))


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_run_is_not_resumed_on_other_numbers_of_images(folder: Path, split: str) -> None:
    """Otherwise the accuracies and statistics of task 1 would be of other images than the later ones."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    dataset = tiny.images()
    images: Images = getattr(dataset, split)
    fewer = replace(dataset, **{split: images.subset(torch.arange(1, len(images)))})
    had, kind = {"train": (9, "training"), "test": (3, "test")}[split]
    with pytest.raises(ValueError, match=f"class 'class 0' had {had} {kind} images, and has {had - 1}. Restore the data, or"):
        resume(folder, dataset=fewer)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_several_classes_that_changed_are_counted(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"(class 'class \d' had 9 training images, and has 8; ){3}and 3 more\. Restore"):
        resume(folder, dataset=tiny.images((8,) * 6))


def test_a_run_that_did_not_count_its_images_resumes(folder: Path) -> None:
    about = json.loads((folder / "run.json").read_text())
    assert about.pop("class_counts") == {"training": [9] * 6, "test": [3] * 6}
    (folder / "run.json").write_text(json.dumps(about))
    assert len(resume(folder, dataset=tiny.images())) == 3


def test_a_machine_setting_that_does_not_exist_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no setting 'thread'; did you mean 'threads'") as caught:
        resume(folder, dataset=tiny.images(), thread=1)
    assert not isinstance(caught.value, FileFormatError), "the file is all right"


def test_a_state_that_cannot_be_saved_is_named() -> None:
    with pytest.raises(TypeError, match="a method remembers 'rows', a set, which cannot be saved"):
        checkpoint.pack({"rows": {1, 2}})


def test_every_kind_of_state_comes_back_as_it_was(tmp_path: Path) -> None:
    network = torch.nn.Linear(2, 3)
    state = {"tensor": torch.randn(3), "none": None, "flag": True, "number": 0.1, "list": [1, "a"], "network": network}
    header, tensors = checkpoint.pack(state)
    tensor_files.write(tmp_path / "file", checkpoint.KIND, header, tensors)
    back = checkpoint.unpack(*checkpoint.read(tmp_path / "file"), torch.device("cpu"))
    assert tiny.identical(back["tensor"], state["tensor"])
    assert {name: back[name] for name in ("none", "flag", "number", "list")} == {
        name: state[name] for name in ("none", "flag", "number", "list")
    }
    tiny.assert_equal(back["network"], network.state_dict())
    with pytest.raises(FileFormatError):
        tensor_files.read(tmp_path / "file", "model")
