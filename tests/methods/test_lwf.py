"""LwF: the distillation against its formula; its target is the old network."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from scipy.special import log_softmax, softmax

from amgc.engine.run import run
from amgc.engine.session import Session
from amgc.engine.watch import Watch
from amgc.methods.contract import Batch, Task
from amgc.methods.lwf import LwF, distillation

pytestmark = pytest.mark.cpus


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_distillation_is_the_written_cross_entropy(temperature: float) -> None:
    rng = np.random.default_rng(0)
    scores, old = rng.normal(size=(2, 7, 4)) * 3
    expected = -np.mean(np.sum(softmax(old / temperature, 1) * log_softmax(scores / temperature, 1), 1))
    got = distillation(torch.from_numpy(scores), torch.from_numpy(old), temperature)
    assert float(got) == pytest.approx(expected, rel=1e-12)


def test_the_distillation_is_a_divergence_plus_the_old_entropy() -> None:
    scores, old = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p, q = torch.softmax(old / 2, 1), torch.softmax(scores / 2, 1)
    divergence, entropy = (p * (p / q).log()).sum(1).mean(), -(p * p.log()).sum(1).mean()
    assert float(distillation(scores, old, 2.0)) == pytest.approx(float(divergence + entropy), rel=1e-12)


def test_there_is_no_gradient_where_old_and_new_agree() -> None:
    old = torch.randn(6, 3, dtype=torch.float64)
    scores = old.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(distillation(scores, old, 2.0), scores)
    assert float(gradient.abs().max()) < 1e-15


def prepared(tmp_path: Path, **changes: Any) -> tuple[Session, Batch, torch.Tensor]:
    """Return a session in its second task, and a batch of that task."""
    session = Session(tiny.config("lwf", natural_order=True, **changes), tmp_path, Watch(), tiny.images())
    method = session.method
    for index in range(2):
        method.task = session.task(index)
        method.begin(method.task, torch.Generator().manual_seed(index))
        if not index:
            method.end(method.task, [], torch.Generator())
    session.network.eval()
    images = session.augment.plain(session.stream.train(1).take(torch.arange(8)))

    def through(network: Any) -> torch.Tensor:
        with torch.no_grad():
            return network(images)

    labels = session.stream.train(1).labels[:8]
    return session, Batch(session.network(images), labels, torch.Generator(), through), images


def test_the_loss_is_that_of_the_old_network_and_head_whatever_became_of_them(tmp_path: Path) -> None:
    session, _, images = prepared(tmp_path)
    method = session.method
    assert isinstance(method, LwF)
    old, weight, bias = copy.deepcopy(session.network), method.head.weight[:2].detach().clone(), method.head.bias[:2].clone()
    with torch.no_grad():
        for parameter in [*session.network.parameters(), method.head.weight, method.head.bias]:
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    features = session.network(images)
    labels = session.stream.train(1).labels[:8]
    terms = method.loss(Batch(features, labels, torch.Generator(), lambda network: network(images).detach()))
    scores = (features @ method.head.weight.T + method.head.bias).detach().double().numpy()
    old_scores = (old(images) @ weight.T + bias).detach().double().numpy()
    distilled = -np.mean(np.sum(softmax(old_scores / 2, 1) * log_softmax(scores[:, :2] / 2, 1), 1))
    new = -np.mean(log_softmax(scores[:, 2:], 1)[np.arange(8), labels.numpy() - 2])
    assert float(terms["distillation"].detach()) == pytest.approx(3 * distilled, rel=1e-5)
    assert float(terms["cross-entropy"].detach()) == pytest.approx(new, rel=1e-5)


def test_at_a_tasks_begin_the_distillation_moves_nothing(tmp_path: Path) -> None:
    session, batch, _ = prepared(tmp_path)
    trained = [*session.network.parameters(), session.method.head.weight, session.method.head.bias]
    gradients = torch.autograd.grad(session.method.loss(batch)["distillation"], trained)
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-6


def test_a_network_that_does_not_train_is_not_kept_twice(tmp_path: Path) -> None:
    run(tiny.config("lwf", later={"extractor_lr": 0.0}), tmp_path, dataset=tiny.images())
    header, tensors = tiny.saved(tmp_path)
    assert header["method"]["old"] == {"is": "value", "value": None}
    assert {name for name in tensors if name.startswith("method/")} == {
        f"method/{name}" for name in ("head.weight", "head.bias", "old_weight", "old_bias")
    }


def test_the_old_network_stays_as_it_was_during_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its batch norm, although that of the new network trains."""
    kept: list[dict[str, torch.Tensor]] = []
    whole = LwF.end

    def end(self: LwF, task: Task, features: Any, generator: torch.Generator) -> None:
        if self.old is not None:
            for name, tensor in self.old.state_dict().items():
                assert tiny.identical(tensor, kept[-1][name])
        whole(self, task, features, generator)
        kept.append(copy.deepcopy(self.network.state_dict()))

    monkeypatch.setattr(LwF, "end", end)
    run(tiny.config("lwf"), tmp_path, dataset=tiny.images())
    assert len(kept) == 3 and not tiny.identical(kept[0]["layers.1.running_mean"], kept[1]["layers.1.running_mean"])
