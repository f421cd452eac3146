"""Solving for many classes: shortcuts that give what the direct computation gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from amgc.core import covariance, shrinkage, within
from amgc.core.incremental import IncrementalClassifier
from amgc.core.shared import closed_bias
from amgc.core.shrinkage import regularisation
from amgc.core.statistics import ClassStatistics


def statistics(form: str, classes: int = 9, dim: int = 4) -> ClassStatistics:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), 12)
    rows = rng.normal(size=(classes, dim))[labels] * 2 + rng.normal(size=(len(labels), dim)) * (1 + labels[:, None] / classes)
    return ClassStatistics(dim, form, dtype=torch.float64).update(rows, labels.tolist())


@pytest.mark.cpus
@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal", "shared"])
def test_residuals_drawn_in_few_dimensions_have_the_same_covariance(monkeypatch, form):
    given = statistics(form)
    metric = torch.diag(torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)) if form != "diagonal" else torch.ones(4).double()
    direct = within.Within.of(given, metric, torch.ones(9))
    monkeypatch.setattr(within, "MANY", 5)
    short = within.Within.of(given, metric, torch.ones(9))
    assert len(direct.roots[0]) == 9 and len(short.roots[0]) == 4
    for one, two in zip(direct.roots, short.roots, strict=True):
        torch.testing.assert_close(one.T @ one, two.T @ two, rtol=1e-9, atol=1e-9)


@pytest.mark.cpus
def test_the_closed_bias_solves_its_equation():
    """x_j Σ_k E_jk x_k = c_j, also if classes are far apart or nearly the same."""
    rng = np.random.default_rng(1)
    for scale in (0.01, 1.0, 40.0):
        mean = torch.from_numpy(rng.normal(size=(30, 5)) * scale)
        weight = torch.from_numpy(rng.dirichlet(np.ones(30)))
        inner = mean @ mean.T
        x = (closed_bias(inner, weight) + inner.diagonal() / 4).exp()
        e = torch.exp(-torch.cdist(mean, mean).square() / 8)
        found = x * (e @ x)
        torch.testing.assert_close(found / found.sum(), weight, rtol=1e-9, atol=1e-12)


def test_with_very_many_classes_all_get_the_pooled_covariance(monkeypatch):
    given = statistics("lowrank")
    assert bool(regularisation(given, None, "auto").own.all())
    monkeypatch.setattr(shrinkage, "MOST_OWN", 8)
    assert not bool(regularisation(given, None, "auto").own.any())
    assert bool(regularisation(statistics("diagonal"), None, "auto").own.all())


@pytest.mark.cpus
@pytest.mark.parametrize("size", [1, 4, 9])
def test_factors_are_averaged_a_few_classes_at_a_time(monkeypatch, size):
    given = statistics("lowrank").covariances
    share = torch.linspace(1, 2, 9).double() / torch.linspace(1, 2, 9).double().sum()
    whole = sum(s * (f @ f.T + torch.diag(d)) for s, f, d in zip(share, given.factor, given.diagonal, strict=True))
    monkeypatch.setattr(covariance, "CLASSES", size)
    torch.testing.assert_close(given.average(share), whole, rtol=1e-12, atol=1e-12)
    own = torch.stack([f.square().sum(1) + d for f, d in zip(given.factor, given.diagonal, strict=True)])
    torch.testing.assert_close(given.variances(), own, rtol=1e-12, atol=1e-12)


def test_a_classifier_of_statistics_is_that_of_their_samples():
    given = statistics("full")
    rng = np.random.default_rng(0)
    made = IncrementalClassifier.of_statistics(given, dtype="float64")
    assert made.classes_.tolist() == list(range(9)) and made.head_.converged
    rows = given.mean.numpy() + rng.normal(size=(9, 4)) * 0.01
    assert (made.predict_proba(rows).argmax(1) == np.arange(9)).mean() > 0.8
