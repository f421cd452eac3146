"""Fine-tuning, joint training, and what all methods share: the growing head and the registry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from reference import cross_entropy, tensor

from amgc.engine.run import run
from amgc.engine.session import Identity
from amgc.methods.contract import Batch, Hyper, LinearHead, Method, Task
from amgc.methods.joint import Joint
from amgc.methods.registry import find, method, methods

pytestmark = pytest.mark.cpus


@pytest.mark.parametrize(("softmax", "among"), [("seen", range(5)), ("new", range(3, 5))])
def test_fine_tuning_lets_the_seen_or_the_new_classes_compete(softmax: str, among: range) -> None:
    rng, entry = np.random.default_rng(0), find("finetune")
    weight, bias, rows, labels = rng.normal(size=(5, 4)), rng.normal(size=5), rng.normal(size=(6, 4)), [3, 4, 4, 3, 3, 4]
    learner = entry.kind(replace(entry.hyper, softmax=softmax), Identity(4), torch.device("cpu"))
    learner.task = Task(1, range(3, 5))
    learner.head.set(tensor(weight, torch.float32), tensor(bias, torch.float32))
    batch = Batch(tensor(rows, torch.float32), torch.tensor(labels), torch.Generator(), lambda network: torch.zeros(0))
    actual = learner.loss(batch)["cross-entropy"]
    scores = (rows @ weight.T + bias)[:, among.start :]
    expected = np.mean([cross_entropy(score, label - among.start) for score, label in zip(scores, labels, strict=True)])
    assert actual.item() == pytest.approx(expected, rel=1e-5)
    gradient = torch.autograd.grad(actual, learner.head.weight)[0]
    assert [bool(row.any()) for row in gradient] == [label in among for label in range(5)]


def test_joint_training_starts_every_task_from_the_same_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, torch.Tensor]] = []
    whole = Joint.begin

    def begin(self: Joint, task: Task, generator: torch.Generator) -> None:
        whole(self, task, generator)
        begun.append({name: value.clone() for name, value in self.network.state_dict().items()})
        assert len(self.head) == len(task.seen)

    monkeypatch.setattr(Joint, "begin", begin)
    run(tiny.config("joint"), tmp_path, dataset=tiny.images())
    assert len(begun) == 3
    for network in begun[1:]:
        tiny.assert_equal(begun[0], network)
    after = {name.removeprefix("network/"): value for name, value in tiny.saved(tmp_path)[1].items()}
    assert not all(tiny.identical(after[name], value) for name, value in begun[0].items()), "it was trained"


def test_joint_training_sees_every_image_of_every_seen_class_once_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, torch.Tensor]] = []
    whole = Joint.loss

    def loss(self: Any, batch: Batch) -> Any:
        seen.append((self.task.index, batch.labels))
        return whole(self, batch)

    monkeypatch.setattr(Joint, "loss", loss)
    counts = (9, 4, 6, 9, 1, 8)
    run(tiny.config("joint", natural_order=True), tmp_path, dataset=tiny.images(counts))
    for task in range(3):
        labels = torch.cat([labels for index, labels in seen if index == task])
        assert torch.bincount(labels).tolist() == [2 * count for count in counts[: 2 * task + 2]]


def test_joint_alone_sees_old_data() -> None:
    assert [name for name, entry in methods().items() if entry.kind.sees_old_data] == ["joint"]


def test_a_head_that_grows_keeps_its_rows_and_draws_the_new_ones_within_pycils_bound() -> None:
    head = LinearHead(12, torch.device("cpu"))
    head.grow(2, torch.Generator().manual_seed(0))
    before = head.weight.detach().clone()
    head.grow(500, torch.Generator().manual_seed(1))
    assert torch.equal(head.weight[:2], before) and head.weight.requires_grad and head.bias.requires_grad
    fresh = head.weight[2:].detach()
    assert 0.499 < fresh.abs().max() <= 0.5, "sqrt(3 / 12)"
    assert abs(float(fresh.mean())) < 0.02 and not head.bias.any()


def test_two_methods_of_one_name_are_refused() -> None:
    assert "amgc" in methods()

    class Other(Method[Hyper]):
        """Another."""

    with pytest.raises(ValueError, match="two methods called 'amgc'"):
        method("amgc", Hyper())(Other)


def test_a_method_is_read_from_the_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from amgc.methods.contract import Hyper, Method, Phase\nfrom amgc.methods.registry import method\n\n"
        '@method("mine-alone", Hyper(Phase(epochs=1), Phase(epochs=1)))\nclass Mine(Method[Hyper]):\n    """Mine alone."""\n'
    )
    before = dict(methods())
    try:
        assert find(str(path)).summary == "Mine alone."
        lines = run(tiny.config(str(path)), tmp_path / "run", dataset=tiny.images())
        assert len(lines) == 3
    finally:
        from amgc.methods import registry

        registry.METHODS.entries.clear()
        registry.METHODS.entries.update(before)


def test_a_file_without_a_method_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match=r"registers no method; decorate"):
        find(str(tmp_path / "empty.py"))
    with pytest.raises(ValueError, match="there is no file"):
        find(str(tmp_path / "absent.py"))
