"""Optional hooks of a method: a pass over images, a part of the network, another structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc.engine.run import resume, run
from amgc.engine.session import Session
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Task, TaskImages
from amgc.methods.finetune import Finetune


def test_collect_sees_each_image_of_the_task_once_and_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def collect(self: Finetune, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        for batch, labels in images.batches(4):
            assert len(batch) <= 4 and not any(layer.training for layer in self.network.modules())
            assert batch.is_contiguous(memory_format=torch.channels_last) and torch.is_grad_enabled()
            collected.append((task.index, batch, labels))
        assert images.sum(torch.ones(2)).tolist() == [1, 1]

    tiny.variant(monkeypatch, "finetune", collect=collect)
    run(tiny.config("finetune"), tmp_path, dataset=tiny.images())
    session = Session(tiny.config("finetune"), tmp_path, Watch(), tiny.images())
    for task in range(3):
        expected = session.stream.train(task)
        images = torch.cat([batch for index, batch, _ in collected if index == task])
        labels = torch.cat([labels for index, _, labels in collected if index == task])
        assert torch.equal(images, session.augment.plain(expected.take(torch.arange(len(expected)))))
        assert torch.equal(labels, expected.labels)


def test_only_the_parameters_that_a_method_names_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.variant(monkeypatch, "finetune", trains=lambda self, name: name == "layers.8.weight")
    before = Session(tiny.config("finetune"), tmp_path, Watch(), tiny.images()).network.state_dict()
    run(tiny.config("finetune"), tmp_path, dataset=tiny.images())
    after = tiny.saved(tmp_path)[1]
    same = {name for name, tensor in before.items() if tiny.identical(tensor, after[f"network/{name}"])}
    moved = set(before) - same
    assert {name for name in moved if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))} == {
        "layers.8.weight"
    }


def test_a_resumed_network_has_its_structure_before_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that gains a parameter in each task. Without the hook its checkpoint could not be loaded."""

    def begin(self: Finetune, task: Task, generator: torch.Generator) -> None:
        self.head.grow(task.new.stop, generator)
        self.network.register_parameter(f"extra{task.index}", torch.nn.Parameter(torch.ones(task.index + 1)))

    def loss(self: Finetune, batch: Any) -> dict[str, torch.Tensor]:
        extra = torch.stack([p.sum() for name, p in self.network.named_parameters() if name.startswith("extra")])
        return {"cross-entropy": batch.features.square().mean(), "extra": extra.square().sum()}

    def reshape_network(self: Finetune, ended: int, begun: bool) -> None:
        for index in range(ended + begun):
            self.network.register_parameter(f"extra{index}", torch.nn.Parameter(torch.zeros(index + 1)))

    class StopLater(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 1

    tiny.variant(monkeypatch, "finetune", begin=begin, loss=loss, reshape_network=reshape_network)
    run(tiny.config("finetune"), tmp_path / "one", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(tiny.config("finetune"), tmp_path / "other", StopLater(), tiny.images())
    resume(tmp_path / "other", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")
