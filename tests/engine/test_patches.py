"""Runs with patches: fitted on task 1 only, resumed bit-identically, streamed if large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from contract.test_privacy import found
from torch.nn.functional import unfold

from amgc.data import Images
from amgc.engine import cost as cost_module
from amgc.engine import features as features_module
from amgc.engine.config import Config
from amgc.engine.cost import estimate
from amgc.engine.run import fit_network, resume, run
from amgc.engine.session import Session
from amgc.engine.watch import Stopped, Watch
from amgc.features.patches import Patches
from amgc.methods.contract import Task

pytestmark = pytest.mark.cpus


def config(method: str = "amgc-closed", machine: dict[str, Any] | None = None, **changes: Any) -> Config:
    """Return the config of a run without training."""
    changes = {"first": {"epochs": 0}, "later": {"epochs": 0}, "features_options": {"filters": 6}} | changes
    return tiny.config(method, features="patches", machine=machine, **changes)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_run_without_training_knows_all_classes(tmp_path: Path) -> None:
    lines = run(config(features_options={"filters": 30}), tmp_path, dataset=tiny.images((30,) * 6))
    right, total = sum(lines[-1]["correct"]), sum(lines[-1]["total"])
    assert right / total > 0.8 and len(lines) == 3


def test_how_the_classes_are_split_into_tasks_does_not_matter(tmp_path: Path) -> None:
    """With the same first task and therefore the same filters. The ridge chosen by leave-one-out is the same too."""
    heads = []
    for sizes in ((2, 1, 1, 1, 1), (2, 4)):
        folder = tmp_path / str(len(sizes))
        settings = config(sizes=sizes, tasks=None, features_options={"filters": 30})
        run(settings, folder, dataset=tiny.images((30,) * 6))
        tensors = tiny.saved(folder)[1]
        head = torch.cat([tensors["method/head.weight"], tensors["method/head.bias"][:, None]], 1).double()
        heads.append(head - head.mean(0))  # what all classes have in common does not matter
    assert float((heads[0] - heads[1]).norm() / heads[1].norm()) < 1e-4


@pytest.mark.parametrize(
    ("method", "hyper"),
    [("lda", {}), ("ncm", {}), ("fecam", {}), ("acil", {"expansion": 300}), ("ranpac", {"projections": 300})],
)
def test_methods_of_a_frozen_network_need_no_epoch(method: str, hyper: dict[str, int], tmp_path: Path) -> None:
    lines = run(config(method, hyper=hyper, features_options={"filters": 30}), tmp_path, dataset=tiny.images((30,) * 6))
    assert sum(lines[-1]["correct"]) / sum(lines[-1]["total"]) > 0.5


@pytest.mark.parametrize("method", ["finetune", "fetril", "amgc"])
def test_methods_that_train_a_head_can(method: str, tmp_path: Path) -> None:
    trained = {"first": {"epochs": 2}, "later": {"epochs": 2}}
    settings = tiny.config(method, features="patches", features_options={"filters": 6}, **trained)
    before = Session(settings, tmp_path / "other", Watch(), tiny.images())
    fit_network(before)
    lines = run(settings, tmp_path / "run", dataset=tiny.images())
    assert lines[-1]["losses"]
    kept = tiny.saved(tmp_path / "run")[1]
    tiny.assert_equal(
        {f"network/{name}": tensor for name, tensor in before.network.state_dict().items()},
        {name: tensor for name, tensor in kept.items() if name.startswith("network/")},
    )


def test_one_class_at_a_time_works(tmp_path: Path) -> None:
    lines = run(config(tasks=6, features_options={"filters": 30}), tmp_path, dataset=tiny.images((30,) * 6))
    assert lines[0]["correct"] == lines[0]["total"]
    assert sum(lines[-1]["correct"]) / sum(lines[-1]["total"]) > 0.7


def test_filters_come_from_task_1_alone(tmp_path: Path) -> None:
    """With other classes in later tasks, the fitted extractor is bit-identical."""
    few, many = (Session(config(tasks=3, natural_order=True), tmp_path, Watch(), made) for made in two_data_sets())
    for session in (few, many):
        fit_network(session)
    tiny.assert_equal(few.network.state_dict(), many.network.state_dict())
    other = Session(config(tasks=3, natural_order=True, seed=2), tmp_path, Watch(), tiny.images())
    fit_network(other)
    assert not torch.equal(other.network.get_buffer("weight0"), few.network.get_buffer("weight0"))


def two_data_sets() -> Any:
    one = tiny.images()
    later = tiny.images(seed=5)
    pixels = torch.cat([one.train.take(torch.arange(18)), later.train.take(torch.arange(18, 54))])
    yield one
    yield type(one)(Images.of(pixels, one.train.labels), one.test, one.class_names, "tiny", one.mean, one.std)


class StopBefore(Watch):
    """Request a stop when a task begins."""

    def __init__(self, task: int) -> None:
        self.task = task

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.stop = task.index >= self.task


@pytest.mark.parametrize("task", [0, 1, 2])
def test_a_stopped_and_resumed_run_is_bit_identical(task: int, tmp_path: Path) -> None:
    run(config(), tmp_path / "whole", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(config(), tmp_path / "parts", StopBefore(task), tiny.images())
    resume(tmp_path / "parts", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "parts", tmp_path / "whole")


def test_a_resumed_run_does_not_fit_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped):
        run(config(), tmp_path, StopBefore(1), tiny.images())
    monkeypatch.setattr(Patches, "fit", None)
    resume(tmp_path, dataset=tiny.images())


def test_the_start_of_another_run_brings_its_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(config("ncm"), tmp_path / "giver", dataset=tiny.images())
    monkeypatch.setattr(Patches, "fit", None)
    run(config(machine={"start": str(tmp_path / "giver")}), tmp_path / "taker", dataset=tiny.images())
    giver, taker = (
        {name: tensor for name, tensor in tiny.saved(tmp_path / who)[1].items() if name.startswith("network/")}
        for who in ("giver", "taker")
    )
    tiny.assert_equal(giver, taker)


def test_features_too_large_to_keep_are_streamed_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(config(), tmp_path / "kept", dataset=tiny.images())
    monkeypatch.setattr(features_module, "TRAINING_ROOM", 0)
    monkeypatch.setattr(features_module, "TEST_ROOM", 0)
    monkeypatch.setattr(features_module.FeatureSource, "extract_all", None)
    streamed = run(config(), tmp_path / "streamed", dataset=tiny.images())
    assert tiny.untimed(streamed) == tiny.untimed(expected)
    tiny.assert_same_bits(tmp_path / "kept", tmp_path / "streamed")


def test_the_feature_cache_gives_the_same_run(tmp_path: Path) -> None:
    plain = run(config(), tmp_path / "plain", dataset=tiny.images())
    cached = config(machine={"feature_cache": str(tmp_path / "cache")})
    for name in ("first", "again"):
        assert tiny.untimed(run(cached, tmp_path / name, dataset=tiny.images())) == tiny.untimed(plain)


def test_the_cost_is_known_before_anything_is_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "PATIENCE", 0.0)
    session = Session(config(), tmp_path, Watch(), tiny.images())
    cost = estimate(session)
    assert session.network.needs_fit
    assert cost.trained == 0 and cost.passed == 54 + 18 + 18  # each image, task 1's once more to fit, the test images


def test_the_cost_of_many_features_is_extrapolated_from_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are extrapolated with the square of the number of features, and are never too few."""
    monkeypatch.setattr(cost_module, "PATIENCE", 0.0)
    session = Session(config(features_options={"filters": 12}), tmp_path, Watch(), tiny.images())
    whole = estimate(session)
    monkeypatch.setattr(cost_module, "WIDE", 31)
    narrow = estimate(session)
    assert whole.disk <= narrow.disk < 1.05 * whole.disk and narrow.passed == whole.passed


def test_the_memory_estimate_counts_the_features_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "PATIENCE", 0.0)
    monkeypatch.setattr(cost_module, "peak_memory", lambda: 0)
    session = Session(config(), tmp_path, Watch(), tiny.images())
    kept = estimate(session).memory
    monkeypatch.setattr(features_module, "TRAINING_ROOM", 0)
    monkeypatch.setattr(features_module, "TEST_ROOM", 0)
    streamed = estimate(session)
    assert kept - streamed.memory == 4 * session.network.dim * (18 + 18)
    assert streamed.passed == 54 + 18 + (6 + 12 + 18), "test images go through the network again after every task"


@pytest.mark.any_cpu
@pytest.mark.parametrize("draw", ["patches", "gaussian"])
def test_neither_images_nor_features_nor_raw_patches_are_in_the_folder(draw: str, tmp_path: Path) -> None:
    """Nor is the normalised patch from which a filter was computed."""
    dataset, settings = tiny.images(), config(features_options={"filters": 40, "draw": draw})
    run(settings, tmp_path, dataset=dataset)
    session = Session(settings, tmp_path, Watch(), dataset)
    session.checkpoints.restore()
    images = dataset.train.take(torch.arange(54))
    rows = torch.cat([rows for rows, _ in session.features.extract(dataset.train)])
    patches = unfold(images.float(), 3).transpose(1, 2).flatten(0, 1)
    normal = patches - patches.mean(1, keepdim=True)
    normal = normal / (normal.std(1, keepdim=True, correction=0) + 10)
    assert found(tmp_path, images, [*rows, *patches, *normal]) == []
    assert found(tmp_path, patches.to(torch.uint8), []) == []
    weight = session.network.get_buffer("weight0")
    there = found(tmp_path, images[:0], [weight.flatten()])
    assert sorted(there) == ["checkpoint.safetensors", "task-1.safetensors"], "the search finds what is there"
