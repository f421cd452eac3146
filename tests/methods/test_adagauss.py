"""AdaGauss against its definition in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from scipy.special import log_softmax

from amgc.engine.run import run
from amgc.engine.session import make_network
from amgc.methods.adagauss import AdaGauss, anti_collapse
from amgc.methods.contract import Batch, Task
from amgc.methods.registry import find

pytestmark = pytest.mark.cpus
SMALL = {"bottleneck": 3, "multiplier": 2, "draws": 50_000}


def begun(**hyper: Any) -> AdaGauss:
    """Return the method in its second task, after two classes with random features of the network."""
    config = tiny.config("adagauss", hyper=SMALL | hyper)
    made = AdaGauss(config.hyper, make_network(config, tiny.images()), torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    for index in range(2):
        made.task = Task(index, range(2 * index, 2 * index + 2))
        made.begin(made.task, draw)
        if not index:
            rows = torch.randn(30, tiny.DIM, generator=draw) + 2 * (torch.arange(30) % 2)[:, None]
            made.end(made.task, [(rows, torch.arange(30) % 2)], draw)
    return made


def test_the_anti_collapse_loss_is_minus_the_mean_cut_off_diagonal_of_the_cholesky_factor() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 4)) * [0.2, 0.5, 2.0, 3.0]
    diagonal = np.diag(np.linalg.cholesky(np.cov(rows.T)))
    assert diagonal.min() < 1 < diagonal.max()
    got = anti_collapse(torch.from_numpy(rows), 1.0)
    assert float(got) == pytest.approx(-np.minimum(diagonal, 1).mean(), rel=1e-4)


def test_the_loss_is_the_written_one() -> None:
    made, draw = begun(), torch.Generator().manual_seed(1)
    new, old = torch.randn(2, 9, tiny.DIM, generator=draw)
    labels = 2 + torch.arange(9) % 2
    terms = made.loss(Batch(new.requires_grad_(), labels, draw, lambda network: old))
    with torch.no_grad():
        made.bottleneck.weight += 0.1  # the old one must not follow
        assert float((made.old_bottleneck.weight - made.bottleneck.weight).abs().max()) > 0.05
        made.bottleneck.weight -= 0.1
        narrow = made.bottleneck(new)
        distance = (made.distiller(narrow) - made.old_bottleneck(old)).double().square().mean()
        scores = (narrow @ made.head.weight.T + made.head.bias).double().numpy()
    expected = -log_softmax(scores[:, 2:], 1)[np.arange(9), labels.numpy() - 2].mean()
    assert terms["cross-entropy"].item() == pytest.approx(expected, rel=1e-5)
    assert terms["distillation"].item() == pytest.approx(10 * distance.item(), rel=1e-5)
    assert terms["anti-collapse"].item() == pytest.approx(anti_collapse(narrow, 1.0).item(), rel=1e-5)


def test_a_linear_adapter_transforms_the_gaussians_exactly_but_for_the_draws() -> None:
    made: Any = begun()
    matrix = torch.randn(3, 3, generator=torch.Generator().manual_seed(2))
    made.adapter = torch.nn.Linear(3, 3, bias=False)
    made.adapter.weight.data.copy_(matrix)
    given: list[int] = []
    made.adapter.register_forward_hook(lambda _, rows, __: given.append(rows[0].numel() // 3))
    mean, covariance = made.statistics.mean.clone(), made.statistics.covariance.double().clone()
    with torch.no_grad():
        made.adapt_gaussians(range(2), torch.Generator().manual_seed(3))
    matrix = matrix.double()
    torch.testing.assert_close(made.statistics.mean, mean @ matrix.T, rtol=0.05, atol=0.05)
    torch.testing.assert_close(made.statistics.covariance.double(), matrix @ covariance @ matrix.T, rtol=0.05, atol=0.05)
    assert given == [50_000, 50_000]  # one class at a time, so that the memory does not grow with the classes


def test_scores_are_mahalanobis_distances_by_shrunk_correlations_of_unit_vectors() -> None:
    made, queries = begun(), torch.randn(5, tiny.DIM, generator=torch.Generator().manual_seed(4))
    rows = made.bottleneck(queries).detach().double().numpy()
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = np.zeros((5, 2))
    for label in range(2):
        covariance = made.statistics.covariance[label].double().numpy()  # type: ignore[index]
        covariance = covariance + 3 * np.diag(covariance).mean() * np.eye(3)
        deviation = np.sqrt(np.diag(covariance))
        mean = made.statistics.mean[label].numpy()
        difference = rows - mean / np.linalg.norm(mean)
        inverse = np.linalg.inv(covariance / np.outer(deviation, deviation))
        expected[:, label] = -np.einsum("ni,ij,nj->n", difference, inverse, difference)
    np.testing.assert_allclose(made.scores(queries), expected, rtol=1e-4)


def test_head_and_gaussians_are_behind_the_bottleneck(tmp_path: Path) -> None:
    lines = run(tiny.config("adagauss", hyper=SMALL), tmp_path, dataset=tiny.images())
    tensors = tiny.saved(tmp_path)[1]
    assert tensors["method/head.weight"].shape == (6, 3) and tensors["method/statistics/mean"].shape == (6, 3)
    assert tensors["method/bottleneck/weight"].shape == (3, tiny.DIM)
    assert set(lines[-1]["losses"]) == {"adapter", "anti-collapse"} and lines[-1]["steps"] == 6 + 6
    assert find("adagauss").hyper.later.clip == 1.0
