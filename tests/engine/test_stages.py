"""A second training stage, parameter groups, gradient clipping, and images in another order: what the engine gives a method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc.engine.features import ImagesOfTask
from amgc.engine.run import resume, run
from amgc.engine.session import Session
from amgc.engine.training import Trainer
from amgc.engine.watch import Stopped, Watch
from amgc.methods import registry
from amgc.methods.contract import Batch, LinearHead, Phase, Task
from amgc.methods.finetune import Finetune


class StopAt(Watch):
    """Request a stop after a step of a task, and note what is promised."""

    def __init__(self, task: int, step: int) -> None:
        self.when, self.now, self.promised = (task, step), (0, 0), dict[int, tuple[int, int]]()

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.now, self.promised[task.index] = (task.index, done), (steps, done)

    def wants_progress(self) -> bool:
        self.now = self.now[0], self.now[1] + 1
        self.stop = self.now >= self.when
        return False


@pytest.mark.parametrize("step", [6, 8])  # the end of the first stage, and in the second
def test_a_run_that_is_stopped_in_the_second_stage_continues_there(step: int, tmp_path: Path) -> None:
    """LDC has six steps of LwF, and six of its map."""
    run(tiny.config("ldc"), tmp_path / "one", dataset=tiny.images())
    watch = StopAt(1, step)
    with pytest.raises(Stopped):
        run(tiny.config("ldc"), tmp_path / "other", watch, tiny.images())
    assert watch.promised == {0: (6, 0), 1: (12, 0)}
    position = tiny.saved(tmp_path / "other")[0]["position"]
    assert position == {"task": 1, "begun": True} | (
        {"step": 6, "stage": 0, "earlier": 0} if step == 6 else {"step": 2, "stage": 1, "earlier": 6}
    )
    watch = StopAt(9, 0)
    resume(tmp_path / "other", watch, tiny.images())
    assert watch.promised == {1: (12, step), 2: (12, 0)}
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")


@pytest.mark.parametrize("augment", [True, False])
def test_the_second_stage_sees_both_networks_and_trains_only_what_it_names(
    augment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Twice(Finetune):
        remembers = ("module", "old")

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.module, self.old = torch.nn.Linear(tiny.DIM, tiny.DIM), None

        def begin(self, task: Task, generator: torch.Generator) -> None:
            super().begin(task, generator)
            self.old = self.network_copy()

        def second_phase(self, task: Task) -> Phase | None:
            return Phase(2, batch_size=9, extractor_lr=0.0, augment=augment) if task.index else None

        def begin_second(self, task: Task, images: Any, generator: torch.Generator) -> None:
            self.frozen = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}

        def second_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
            old = batch.through(self.old)
            batches.append((batch.features, old))
            assert not batch.features.requires_grad and not any(layer.training for layer in self.network.modules())
            return {"second": (self.module(old) - batch.features).square().mean()}

        def second_trainable(self) -> list[torch.Tensor]:
            return list(self.module.parameters())

        def end(self, task: Task, features: Any, generator: torch.Generator) -> None:
            if task.index:
                tiny.assert_equal(self.frozen, self.network.state_dict())

    monkeypatch.setitem(registry.METHODS.entries, "finetune", replace(registry.find("finetune"), make=Twice))
    run(tiny.config("finetune", tasks=2), tmp_path, dataset=tiny.images((9, 9)))
    assert len(batches) == 2 and all(new.shape == old.shape == (9, tiny.DIM) for new, old in batches)
    assert not any(torch.equal(new, old) for new, old in batches)
    epochs = [set(map(tuple, new.tolist())) for new, _ in batches]
    assert (epochs[0] == epochs[1]) == (not augment), "without augmentation, the same features in another order"
    assert "method/module/weight" in tiny.saved(tmp_path)[1]


def trainer(tmp_path: Path, **changes: Any) -> Trainer:
    session = Session(tiny.config("finetune", **changes), tmp_path, Watch(), tiny.images())
    session.method.task = session.task(0)
    session.method.begin(session.method.task, torch.Generator().manual_seed(0))
    return Trainer(session, session.method.task, session.method.phase(session.method.task))


def test_gradients_are_clipped_to_the_norm_of_all_together(tmp_path: Path) -> None:
    norms = []
    for name, clip in (("one", 0.0), ("other", 0.01)):
        made = trainer(tmp_path / name, first={"clip": clip})
        made.step(next(made.batches(0, 0)))
        gradients = [p.grad for group in made.optimizer.param_groups for p in group["params"]]
        norms.append(float(torch.stack([gradient.norm() for gradient in gradients if gradient is not None]).norm()))
    assert norms[0] > 0.02 and norms[1] == pytest.approx(0.01, rel=1e-3)


def test_a_method_may_choose_its_own_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parameter_groups(self: Finetune, phase: Phase, network: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": network[:2], "lr": 0.5}, {"params": network[2:]}, {"params": self.trainable(), "weight_decay": 0.25}]

    tiny.variant(monkeypatch, "finetune", parameter_groups=parameter_groups)
    groups = trainer(tmp_path, first={"extractor_lr": 0.1, "weight_decay": 0.125}).optimizer.param_groups
    assert [(group["lr"], group["base_lr"], group["weight_decay"]) for group in groups] == [
        (0.5, 0.5, 0.125),
        (0.1, 0.1, 0.125),
        (0.1, 0.1, 0.25),
    ]


def test_a_method_with_its_own_groups_and_clipping_resumes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parameter_groups(self: Finetune, phase: Phase, network: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": network[:2], "lr": 0.5}, {"params": self.trainable()}]  # the rest of the network stays

    tiny.variant(monkeypatch, "finetune", parameter_groups=parameter_groups)
    config = tiny.config("finetune", first={"clip": 0.5}, later={"clip": 0.5, "extractor_lr": 0.05})
    run(config, tmp_path / "whole", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(config, tmp_path / "stopped", StopAt(1, 4), dataset=tiny.images())
    resume(tmp_path / "stopped", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "whole", tmp_path / "stopped")


def test_images_come_in_random_order_and_augmented_if_requested(tmp_path: Path) -> None:
    session = Session(tiny.config("finetune"), tmp_path, Watch(), tiny.images())
    images = ImagesOfTask(session.features, session.task(1))

    def all_of(*arguments: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found = list(images.batches(5, *arguments, **options))
        assert [len(labels) for _, labels in found] == [5, 5, 5, 3]
        return torch.cat([batch for batch, _ in found]), torch.cat([labels for _, labels in found])

    plain, labels = all_of()
    mixed, mixed_labels = all_of(torch.Generator().manual_seed(1))
    order = torch.randperm(18, generator=torch.Generator().manual_seed(1))
    assert torch.equal(mixed, plain[order]) and torch.equal(mixed_labels, labels[order]) and torch.equal(images.labels, labels)
    augmented, _ = all_of(torch.Generator().manual_seed(1), augmented=True)
    assert augmented.shape == plain.shape and not torch.equal(augmented, mixed)
    assert torch.equal(images.take(torch.tensor([3, 1])), plain[[3, 1]])
    with torch.no_grad():
        torch.testing.assert_close(images.features(session.network), session.network(plain))


def test_a_bottleneck_lies_between_features_and_head() -> None:
    before = torch.nn.Linear(5, 2)
    head = LinearHead(2, torch.device("cpu"), before)
    head.grow(3, torch.Generator().manual_seed(0))
    rows = torch.randn(4, 5)
    torch.testing.assert_close(head(rows), before(rows) @ head.weight.T + head.bias)


def test_new_rows_are_drawn_as_in_pycil_or_as_in_torch() -> None:
    draw = torch.Generator().manual_seed(0)
    pycil, like_torch = (LinearHead(12, torch.device("cpu")) for _ in range(2))
    pycil.grow(500, draw)
    like_torch.grow(500, draw, "torch")
    assert 0.99 * 0.5 < float(pycil.weight.detach().abs().max()) <= 0.5 and not bool(pycil.bias.any())
    for part in (like_torch.weight, like_torch.bias):
        assert 0.99 * 12**-0.5 < float(part.detach().abs().max()) <= 12**-0.5
