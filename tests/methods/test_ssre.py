"""SSRE: the loss against its definition, frozen kernels, and changes of structure that keep the outputs."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from scipy.spatial.distance import cdist
from scipy.special import log_softmax

from amgc.engine.run import run
from amgc.engine.session import Session
from amgc.engine.training import rate
from amgc.engine.watch import Watch
from amgc.features.branches import branched
from amgc.methods.contract import Batch, Task
from amgc.methods.registry import find
from amgc.methods.ssre import SSRE, similarity

pytestmark = pytest.mark.cpus


def test_task_1_is_trained_as_by_pycil_and_later_ones_as_by_the_official_code() -> None:
    first, later = find("ssre").hyper.first, find("ssre").hyper.later
    falls = [[epoch for epoch in range(1, p.epochs) if rate(p, epoch) < rate(p, epoch - 1)] for p in (first, later)]
    assert falls == [[45, 90], [45]] and (first.epochs, later.epochs) == (101, 60)
    assert [(p.optimizer, p.extractor_lr, p.weight_decay, p.head_weight_decay, p.batch_size) for p in (first, later)] == [
        ("adam", 1e-3, 5e-4, 5e-4, 64),
        ("adam", 2e-4, 5e-4, 5e-4, 128),
    ]


def test_the_similarity_is_the_largest_cosine() -> None:
    rng = np.random.default_rng(0)
    features, means = rng.uniform(size=(7, 5)), rng.uniform(size=(3, 5))
    expected = (1 - cdist(features, means, "cosine")).max(1)
    np.testing.assert_allclose(similarity(torch.from_numpy(features), torch.from_numpy(means)), expected, rtol=1e-12)


def test_the_loss_is_the_written_one() -> None:
    rng = np.random.default_rng(1)
    features, old, means = (torch.from_numpy(rng.uniform(size=(n, tiny.DIM))).float() for n in (6, 6, 2))
    network = torch.nn.Identity()
    network.dim = tiny.DIM
    method = SSRE(tiny.config("ssre").hyper, network, torch.device("cpu"))  # type: ignore[arg-type]
    method.task, method.means = Task(1, range(2, 4)), means
    method.head.grow(4, torch.Generator().manual_seed(0))
    labels = torch.tensor([2, 3, 3, 2, 3, 2])
    terms = method.loss(Batch(features.requires_grad_(), labels, torch.Generator().manual_seed(5), lambda network: old))
    terms = {name: term.detach() for name, term in terms.items()}
    x, y, w, b = (t.detach().double().numpy() for t in (features, old, method.head.weight, method.head.bias))
    s = (1 - cdist(x, means.double().numpy(), "cosine")).max(1)
    cross_entropy = -log_softmax((x @ w.T + b) / 0.1, 1)[np.arange(6), labels.numpy()]
    assert float(terms["cross-entropy"]) == pytest.approx(np.mean((1 - s) * cross_entropy), rel=1e-4)
    assert float(terms["distillation"]) == pytest.approx(np.sum(s * np.linalg.norm(x - y, axis=1)), rel=1e-5)
    of_prototypes = -log_softmax((means.double().numpy() @ w.T + b) / 0.1, 1)[np.arange(2), np.arange(2)]
    drawn = torch.randint(2, (6,), generator=torch.Generator().manual_seed(5)).numpy()
    assert float(terms["prototypes"]) == pytest.approx(10 * of_prototypes[drawn].mean(), rel=1e-4)


def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[dict[str, Any]]:
    """Return a run, and for each task the network's state before and after `end`, its features and the means."""
    seen: list[dict[str, Any]] = []
    whole, images = SSRE.end, torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def end(self: SSRE, task: Task, features: Any, generator: torch.Generator) -> None:
        now: dict[str, Any] = {"before": copy.deepcopy(self.network.state_dict()), "branched": len(branched(self.network))}
        self.network.eval()
        with torch.no_grad():
            now["features"] = self.network(images)
            whole(self, task, features, generator)
            now["merged"] = self.network(images)
        rows = list(features)
        now["means"] = [torch.cat([r[y == label] for r, y in rows]).mean(0) for label in task.new]
        seen.append(now | {"after": copy.deepcopy(self.network.state_dict()), "remembered": self.means.clone()})

    monkeypatch.setattr(SSRE, "end", end)
    run(tiny.config("ssre", **changes), tmp_path, dataset=tiny.images())
    return seen


def test_the_network_loses_batch_norm_after_task_1_and_gains_branches_in_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = observed(tmp_path, monkeypatch, later={"extractor_lr": 0.01})
    assert [now["branched"] for now in seen] == [0, 2, 2]
    plain = {f"layers.{layer}.{part}" for layer in (0, 4, 8) for part in ("weight", "bias")}
    for now in seen:
        assert set(now["after"]) == plain
        torch.testing.assert_close(now["merged"], now["features"], rtol=1e-5, atol=1e-5)
    for before, now in pairwise(seen):
        assert set(now["before"]) == plain | {"layers.4.branch", "layers.8.branch"}
        for name in plain:  # kernels stay during a task
            assert tiny.identical(before["after"][name], now["before"][name])
        for layer in (4, 8):  # and take the branch into their middles at its end
            moved = now["after"][f"layers.{layer}.weight"] - now["before"][f"layers.{layer}.weight"]
            branch = now["before"][f"layers.{layer}.branch"]
            assert float(branch.abs().max()) > 1e-4
            torch.testing.assert_close(moved[:, :, 1:2, 1:2], branch, rtol=0, atol=1e-6)
            assert int(moved.count_nonzero()) <= branch.numel()


def test_prototypes_are_the_means_of_plain_features_and_old_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observed(tmp_path, monkeypatch)
    for index, now in enumerate(seen):
        assert len(now["remembered"]) == 2 * index + 2
        torch.testing.assert_close(now["remembered"][-2:], torch.stack(now["means"]), rtol=1e-5, atol=1e-6)
        if index:
            assert tiny.identical(now["remembered"][:-2], seen[index - 1]["remembered"])


def test_the_old_features_are_those_of_the_network_before_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old: dict[int, torch.nn.Module] = {}
    checked: list[int] = []
    whole_loss, whole_end = SSRE.loss, SSRE.end

    def loss(self: SSRE, batch: Batch) -> Any:
        if not self.task.is_first:
            expected = batch.through(old[self.task.index - 1])
            torch.testing.assert_close(self.old_features(batch), expected, rtol=0, atol=0)
            checked.append(self.task.index)
        return whole_loss(self, batch)

    def end(self: SSRE, task: Task, features: Any, generator: torch.Generator) -> None:
        whole_end(self, task, features, generator)
        old[task.index] = copy.deepcopy(self.network).eval()

    monkeypatch.setattr(SSRE, "loss", loss)
    monkeypatch.setattr(SSRE, "end", end)
    run(tiny.config("ssre"), tmp_path, dataset=tiny.images())
    assert set(checked) == {1, 2}


def test_a_frozen_network_gets_no_branches_and_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observed(tmp_path, monkeypatch, later={"extractor_lr": 0.0})
    assert [now["branched"] for now in seen] == [0, 0, 0]
    for before, now in pairwise(seen):
        tiny.assert_equal(before["after"], now["after"])


def test_a_finished_run_with_a_resnet_can_be_loaded(tmp_path: Path) -> None:
    options = {"features": "resnet18", "features_options": {"width": 0.0625}, "tasks": 2}
    run(tiny.config("ssre", **options), tmp_path, dataset=tiny.images(shape=(3, 8, 8)))
    again = Session(tiny.config("ssre", **options), tmp_path, Watch(), tiny.images(shape=(3, 8, 8)))
    again.checkpoints.restore()
    saved = {name.removeprefix("network/"): t for name, t in tiny.saved(tmp_path)[1].items() if name.startswith("network/")}
    tiny.assert_equal(again.network.state_dict(), saved)
    assert not any("running_mean" in name or "branch" in name for name in saved)
