"""The training loop: learning rates, batches, batch norm, frozen networks, a loss of NaN."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import few

from amgc.engine import session as session_module
from amgc.engine.checkpoint import Checkpoints
from amgc.engine.run import resume, run
from amgc.engine.seeding import generator, seed_of, seed_torch, shuffled
from amgc.engine.training import make_optimizer, rate
from amgc.engine.watch import Stopped, TrainingError, Watch
from amgc.methods.contract import Phase, Task

pytestmark = pytest.mark.cpus

# ---- learning rates ------------------------------------------------------------------------------------------------------


def test_the_cosine_falls_from_one_towards_zero() -> None:
    expected = [1.0, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4]
    assert [rate(Phase(epochs=4), epoch) for epoch in range(4)] == pytest.approx(expected, rel=1e-12)


def test_a_step_schedule_falls_after_each_milestone() -> None:
    phase = Phase(epochs=10, schedule="step", milestones=(0.3, 0.6), gamma=0.5)
    assert [rate(phase, epoch) for epoch in range(10)] == [1] * 3 + [0.5] * 3 + [0.25] * 4


def test_pycils_milestones_of_200_epochs_are_60_120_and_170() -> None:
    phase = Phase(epochs=200, schedule="step")
    rates = [rate(phase, epoch) for epoch in range(200)]
    assert [epoch for epoch in range(1, 200) if rates[epoch] < rates[epoch - 1]] == [60, 120, 170]
    assert rates[-1] == pytest.approx(1e-3)


def test_a_constant_schedule_stays() -> None:
    assert {rate(Phase(epochs=9, schedule="constant"), epoch) for epoch in range(9)} == {1.0}


def test_head_and_network_have_separate_rates_and_decays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen by the optimiser in every step of a run."""
    groups: list[tuple[int, tuple[tuple[float, ...], ...]]] = []

    def record(self: Checkpoints, optimizer: Any, *, last: bool) -> None:
        kept = tuple((group["lr"], group["weight_decay"], len(group["params"])) for group in optimizer.param_groups)
        groups.append((self.session.position.task, kept))

    monkeypatch.setattr(Checkpoints, "save_if_due", record)
    first = {
        "epochs": 4,
        "extractor_lr": 0.1,
        "head_lr": 0.2,
        "weight_decay": 0.01,
        "head_weight_decay": 0.02,
        "batch_size": 18,
    }
    config = tiny.config(
        tasks=3,
        first=first | {"schedule": "step", "milestones": (0.5,), "gamma": 0.1},
        later={"epochs": 2, "extractor_lr": 0.3, "head_lr": 0.4, "batch_size": 18, "schedule": "cosine"},
    )
    run(config, tmp_path, dataset=tiny.images())
    whole, conv = 9, 3  # tensors of the network with batch norm's and without
    assert [kept for task, kept in groups if task == 0] == [
        ((pytest.approx(0.2 * factor), 0.02, 2), (pytest.approx(0.1 * factor), 0.01, whole)) for factor in (1, 1, 0.1, 0.1)
    ]
    for task in (1, 2):
        assert [kept for index, kept in groups if index == task] == [
            ((pytest.approx(0.4 * factor), 0.0, 2), (pytest.approx(0.3 * factor), 0.0, conv)) for factor in (1, 0.5)
        ]


def test_the_optimizer_is_the_one_that_the_phase_names() -> None:
    network, head = torch.nn.Linear(2, 2), [torch.zeros(1, requires_grad=True)]
    sgd = make_optimizer(network, head, Phase(momentum=0.7))
    assert isinstance(sgd, torch.optim.SGD) and {group["momentum"] for group in sgd.param_groups} == {0.7}
    assert isinstance(make_optimizer(network, head, Phase(optimizer="adam")), torch.optim.Adam)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_runs_of_either_optimizer_resume_bit_identically(optimizer: str, momentum: float, tmp_path: Path) -> None:
    class StopLater(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = False

        def wants_progress(self) -> bool:
            self.stop = True
            return False

    phase = {"optimizer": optimizer, "momentum": momentum}
    config = tiny.config(first=phase, later=phase | {"optimizer": "sgd"}, tasks=1)
    run(config, tmp_path / "one", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(config, tmp_path / "other", StopLater(), tiny.images())
    for _ in range(3):
        with pytest.raises(Stopped):
            resume(tmp_path / "other", StopLater(), tiny.images())
    resume(tmp_path / "other", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")


# ---- batches ---------------------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 200), size=st.integers(1, 50), seed=st.integers(0, 3))
@few
def test_batches_hold_every_index_once_and_are_of_equal_size(count: int, size: int, seed: int) -> None:
    batches = shuffled(count, size, seed, "shuffle", 0, 0)
    assert sorted(torch.cat(batches).tolist()) == list(range(count))
    lengths = {len(batch) for batch in batches}
    assert max(lengths) <= size and max(lengths) - min(lengths) <= 1
    assert len(batches) == math.ceil(count / size)


def test_every_epoch_task_and_seed_has_its_own_reproducible_shuffle() -> None:
    places = [(seed, "shuffle", task, epoch) for seed in (1, 2) for task in (0, 1) for epoch in (0, 1)]
    orders = [tuple(torch.cat(shuffled(30, 7, *place)).tolist()) for place in places]
    assert len(set(orders)) == len(places)
    assert orders == [tuple(torch.cat(shuffled(30, 7, *place)).tolist()) for place in places]


def test_random_numbers_depend_on_the_place_alone() -> None:
    assert seed_of(1, "a", 2) == seed_of(1, "a", 2) and 0 <= seed_of(1, "a", 2) < 2**63
    assert len({seed_of(1, "a", 2), seed_of(1, "a", 3), seed_of(1, "b", 2), seed_of(12, "a"), seed_of(1, "2a")}) == 5
    torch.manual_seed(5)
    one = torch.rand(3, generator=generator(0, "x"))
    torch.manual_seed(6)
    assert torch.equal(one, torch.rand(3, generator=generator(0, "x")))


def test_torchs_own_generator_is_seeded_as_by_manual_seed() -> None:
    torch.manual_seed(seed_of(1, "a"))
    expected = torch.rand(3)
    seed_torch(torch.device("cpu"), 1, "a")
    assert torch.equal(torch.rand(3), expected)


def test_dropout_is_the_same_when_a_run_is_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step seeds torch's own generator, which the layers of a network use."""
    whole = session_module.make_network

    def make_network(*arguments: Any) -> Any:
        network = whole(*arguments)
        network.layers.append(torch.nn.Dropout(0.5))
        return network

    class StopInTask2(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 1

    config = tiny.config("finetune")
    run(config, tmp_path / "without", dataset=tiny.images())
    monkeypatch.setattr(session_module, "make_network", make_network)
    run(config, tmp_path / "one", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(config, tmp_path / "other", StopInTask2(), tiny.images())
    torch.rand(7)  # something else has used the generator meanwhile
    resume(tmp_path / "other", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")
    one, without = (tiny.saved(tmp_path / name)[1]["method/head.weight"] for name in ("one", "without"))
    assert not tiny.identical(one, without), "dropout was on"


def test_a_run_sees_every_image_once_per_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from amgc.methods.finetune import Finetune

    seen: list[tuple[int, torch.Tensor]] = []
    whole = Finetune.loss

    def loss(self: Any, batch: Any) -> Any:
        seen.append((self.task.index, batch.labels))
        return whole(self, batch)

    monkeypatch.setattr(Finetune, "loss", loss)
    run(tiny.config("finetune", natural_order=True), tmp_path, dataset=tiny.images((9, 4, 6, 9, 1, 8)))
    for task, classes in enumerate([(9, 4), (6, 9), (1, 8)]):
        labels = torch.cat([labels for index, labels in seen if index == task])
        assert torch.bincount(labels - 2 * task).tolist() == [2 * count for count in classes], "two epochs"


# ---- batch norm, and a network that does not train ---------------------------------------------------------------------------


def networks(config: Any, folder: Path, dataset: Any = None) -> list[dict[str, torch.Tensor]]:
    """Return the network after each task."""
    kept: list[dict[str, torch.Tensor]] = []

    class Keep(Watch):
        def end_task(self, task: Task, line: dict[str, Any]) -> None:
            tensors = tiny.saved(folder)[1]
            kept.append({name: tensor for name, tensor in tensors.items() if name.startswith("network/")})

    run(config, folder, Keep(), dataset or tiny.images())
    return kept


def moved(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    """Return the kinds of tensors that differ."""
    names = [name.rpartition(".")[2] + ("" if one[name].ndim == 4 else " of batch norm") for name in one]
    return {kind for kind, name in zip(names, one, strict=True) if not tiny.identical(one[name], other[name])}


STATISTICS = {"running_mean of batch norm", "running_var of batch norm", "num_batches_tracked of batch norm"}
AFFINE = {"weight of batch norm", "bias of batch norm"}


def test_fixed_batch_norm_does_not_move_and_the_convolutions_do(tmp_path: Path) -> None:
    after = networks(tiny.config(later={"batchnorm": "fixed", "extractor_lr": 0.1}), tmp_path)
    assert moved(after[0], after[2]) == {"weight"}


def test_batch_norm_that_trains_moves(tmp_path: Path) -> None:
    after = networks(tiny.config(later={"batchnorm": "train", "extractor_lr": 0.1}), tmp_path)
    assert moved(after[0], after[1]) == {"weight"} | STATISTICS | AFFINE


@pytest.mark.parametrize("method", ["amgc", "finetune", "sbgc"])
def test_extractor_lr_zero_leaves_every_bit_of_the_network(method: str, tmp_path: Path) -> None:
    after = networks(tiny.config(method, later={"extractor_lr": 0.0, "batchnorm": "train"}), tmp_path)
    assert moved(after[0], after[1]) == moved(after[0], after[2]) == set()


def count_images(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the images that pass through the networks of new sessions, with and without gradients."""
    counts = {"trained": 0, "passed": 0}
    whole = session_module.make_network

    def make_network(*arguments: Any) -> Any:
        network = whole(*arguments)

        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
            counts["trained" if output.requires_grad else "passed"] += len(output)

        network.register_forward_hook(hook)
        return network

    monkeypatch.setattr(session_module, "make_network", make_network)
    return counts


@pytest.mark.parametrize("epochs", [1, 5])
def test_the_features_of_a_frozen_network_are_computed_once(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_images(monkeypatch)
    frozen = {"extractor_lr": 0.0, "epochs": epochs}
    run(tiny.config("finetune", first=frozen, later=frozen), tmp_path, dataset=tiny.images())
    assert counts == {"trained": 0, "passed": 54 + 6 * tiny.TESTS}, "each training and each test image once"


def test_batch_norm_that_is_fixed_in_task_1_alone_is_the_same_when_resumed(tmp_path: Path) -> None:
    class StopLater(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 1

    config = tiny.config("finetune", first={"batchnorm": "fixed"}, later={"batchnorm": "train"})
    after = networks(config, tmp_path / "one")
    assert moved(after[0], after[1]) >= STATISTICS, "in task 2 it trains"
    with pytest.raises(Stopped):
        run(config, tmp_path / "other", StopLater(), tiny.images())
    resume(tmp_path / "other", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")


# ---- a loss that is no number ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [1, 2])
def test_a_loss_that_is_no_number_stops_the_run_with_advice(task: int, tmp_path: Path) -> None:
    huge = {"extractor_lr": 1e18, "head_lr": 1e18}
    config = tiny.config("finetune", **{"first" if task == 1 else "later": huge})
    option = "first" if task == 1 else "later"
    pattern = rf"the loss 'cross-entropy' became infinite or not a number in task {task}\..*--{option}\.extractor-lr"
    with pytest.raises(TrainingError, match=pattern):
        run(config, tmp_path, dataset=tiny.images())
