"""EFC and EFC++ against their definitions in numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from scipy.special import log_softmax, softmax

from amgc.engine.run import run
from amgc.engine.session import make_network
from amgc.methods.contract import Batch, Task
from amgc.methods.efc import EFC
from amgc.methods.registry import find

pytestmark = pytest.mark.cpus


def begun(name: str = "efc", **changes: Any) -> EFC[Any]:
    """Return the method in its second task, after two classes with random features."""
    config = tiny.config(name, **changes)
    made: Any = find(name).kind(config.hyper, make_network(config, tiny.images()), torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(12, tiny.DIM, generator=draw), torch.arange(12) % 2
    for index in range(2):
        made.task = Task(index, range(2 * index, 2 * index + 2))
        made.begin(made.task, draw)
        if not index:
            made.end(made.task, [(rows[:5], labels[:5]), (rows[5:], labels[5:])], draw)
            made.rows = rows.double().numpy()
    return made


def test_the_feature_matrix_is_the_mean_fisher_information_of_the_scores() -> None:
    """Σ_c p_c j_c j_cᵀ of each row, with j_c = w_c - Σ_k p_k w_k, the gradient of log p_c."""
    made = begun()
    weight, bias = (part.detach().double().numpy()[:2] for part in (made.head.weight, made.head.bias))
    expected = np.zeros((tiny.DIM, tiny.DIM))
    for row in made.rows:  # type: ignore[attr-defined]
        p = softmax(weight @ row + bias)
        for c in range(2):
            gradient = weight[c] - p @ weight
            expected += p[c] * np.outer(gradient, gradient) / 12
    np.testing.assert_allclose(made.matrix.numpy(), expected, rtol=1e-5, atol=1e-7)


def batch_of(made: EFC[Any], count: int = 7) -> tuple[Batch, np.ndarray, np.ndarray]:
    draw = torch.Generator().manual_seed(1)
    new, old = torch.randn(2, count, tiny.DIM, generator=draw)
    labels = 2 + torch.arange(count) % 2
    return Batch(new.requires_grad_(), labels, draw, lambda network: old), new.detach().numpy(), old.numpy()


def test_the_loss_is_that_of_new_classes_plus_the_elastic_distance_plus_all_classes() -> None:
    made = begun(later={"batch_size": 8})
    batch, new, old = batch_of(made)
    start = batch.generator.get_state()
    terms = {name: float(term.detach()) for name, term in made.loss(batch).items()}
    weight, bias = (part.detach().double().numpy() for part in (made.head.weight, made.head.bias))
    scores, labels = new @ weight.T + bias, batch.labels.numpy()
    assert terms["cross-entropy"] == pytest.approx(-log_softmax(scores[:, 2:], 1)[np.arange(7), labels - 2].mean(), rel=1e-5)
    matrix = 10 * made.matrix.numpy() + 0.1 * np.eye(tiny.DIM)
    assert terms["elastic"] == pytest.approx(np.mean([d @ matrix @ d for d in new - old]), rel=1e-5)
    batch.generator.set_state(start)
    drawn, classes = made.prototypes(4, batch.generator)  # half of the classes are old, so half of a batch of 8
    features = np.concatenate([drawn.numpy(), new[:4]])
    targets = np.concatenate([classes.numpy(), labels[:4]])
    expected = -log_softmax(features @ weight.T + bias, 1)[np.arange(8), targets].mean()
    assert terms["prototypes"] == pytest.approx(expected, rel=1e-5)


def test_prototypes_come_evenly_from_the_gaussians_of_old_classes() -> None:
    made = begun(hyper={"noise": 0.5})
    drawn, labels = made.prototypes(40_001, torch.Generator().manual_seed(0))
    assert np.bincount(labels.numpy()).tolist() in ([20_000, 20_001], [20_001, 20_000])
    for label in range(2):
        rows = made.rows[label::2]  # type: ignore[attr-defined]
        own = drawn[labels == label].double().numpy()
        assert np.abs(own.mean(0) - rows.mean(0)).max() < 0.05
        np.testing.assert_allclose(np.cov(own.T), np.cov(rows.T) + 0.5 * np.eye(tiny.DIM), atol=0.15)


def test_the_second_stage_of_efc_plus_has_the_share_of_new_classes_in_its_batches() -> None:
    made: Any = begun("efc++")
    made.hyper = replace(made.hyper, second=replace(made.hyper.second, batch_size=256))
    made.task = Task(9, range(90, 100))
    assert made.second_phase(made.task).batch_size == 26 and made.second_phase(Task(0, range(10))) is None


def test_in_efc_plus_only_new_rows_of_the_head_change_before_the_second_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = find("efc++").kind
    whole_begin, whole_second, whole_end, heads = kind.begin, kind.begin_second, kind.end, {}

    def begin(self: Any, task: Task, generator: Any) -> None:
        whole_begin(self, task, generator)
        heads["begin"] = self.head.weight.detach().clone()

    def begin_second(self: Any, task: Task, images: Any, generator: Any) -> None:
        heads["second"], start = self.head.weight.detach().clone(), task.new.start
        assert torch.equal(heads["second"][:start], heads["begin"][:start])
        assert not torch.equal(heads["second"][start:], heads["begin"][start:])
        whole_second(self, task, images, generator)

    def end(self: Any, task: Task, features: Any, generator: Any) -> None:
        if not task.is_first:
            assert (self.head.weight.detach() != heads["second"]).any(1).all(), "then all of them"
            heads["checked"] = True
        whole_end(self, task, features, generator)

    tiny.variant(monkeypatch, "efc++", begin=begin, begin_second=begin_second, end=end)
    lines = run(tiny.config("efc++"), tmp_path, dataset=tiny.images())
    assert heads["checked"] and set(lines[-1]["losses"]) == {"balance"}
    assert lines[-1]["steps"] == 2 * 3 + 2 * -(-18 // 2)  # 2 of 7 images in a batch are new
