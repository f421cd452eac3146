"""Leave-one-out in closed form, against classifiers that are fitted again without each sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import assert_close, tensor
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from amgc.core import within as within_module
from amgc.core.shared import Factor
from amgc.core.shrinkage import pooled_covariance
from amgc.core.statistics import ClassStatistics
from amgc.core.within import Within, dependence, left_out

pytestmark = pytest.mark.cpus

COUNTS = (9, 4, 6)


def world(counts=COUNTS, dim=8, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    mixing = np.eye(dim) + 0.3 * rng.normal(size=(dim, dim))
    return 3 + rng.normal(size=(len(labels), dim)) @ mixing + 1.5 * rng.normal(size=(len(counts), dim))[labels], labels


def spread(found):
    """Return the covariances of z that the roots stand for, (chosen, K, K)."""
    return torch.stack([root.T @ root for root in found.roots])


def moments(features, labels, keep=slice(None)):
    """Return the class means, and the sum of squares about them, of the samples in `keep`."""
    rows, own = features[keep], labels[keep]
    mean = np.array([rows[own == k].mean(0) for k in range(labels.max() + 1)])
    return mean, (rows - mean[own]).T @ (rows - mean[own])


@pytest.mark.parametrize(("counts", "dim"), [(COUNTS, 8), ((2, 2), 3), ((3, 5, 2, 4), 30)])
def test_scores_of_a_left_out_sample_are_those_of_a_fit_without_it(counts, dim):
    features, labels = world(counts, dim)
    rng = np.random.default_rng(1)
    freedom, ridge = len(labels) - len(counts), np.diag(rng.uniform(0.3, 2, dim))
    mean, scatter = moments(features, labels)
    inverse = np.linalg.inv(scatter / freedom + ridge)
    centred, keep = mean - mean.mean(0), np.linspace(0.3, 0.9, len(counts))
    for row in range(len(counts)):
        own = np.flatnonzero(labels == row)
        residuals = features[own] - mean[row]
        z = residuals @ inverse @ centred.T
        h = np.einsum("ni,ij,nj->n", residuals, inverse, residuals)
        found = left_out(tensor(centred @ inverse @ centred.T), tensor(z), tensor(h), row, counts[row], freedom)
        expected = {"to_means": [], "means": [], "own": [], "around": [], "scores": []}
        for sample, residual in zip(own, residuals, strict=True):
            means, squares = moments(features, labels, np.delete(np.arange(len(labels)), sample))
            metric = np.linalg.inv(squares / freedom + ridge)  # divided by the same freedom
            x, m = features[sample] - means.mean(0), means - means.mean(0)
            drawn = keep[:, None] * m
            expected["to_means"].append(m @ metric @ x)
            expected["means"].append(np.diag(m @ metric @ m.T))
            expected["own"].append(x @ metric @ x)
            expected["around"].append(residual @ metric @ residual)
            expected["scores"].append((drawn @ metric @ x - np.diag(drawn @ metric @ drawn.T) / 2) / 2)
        for name, values in expected.items():
            actual = found.scores(tensor(keep)) if name == "scores" else getattr(found, name)
            assert_close(actual, np.array(values), 1e-9, name)


def test_a_leverage_of_one_gives_finite_scores():
    """A trace that was estimated by random signs may be a little too large."""
    one = left_out(torch.eye(2).double(), torch.zeros(1, 2).double(), torch.tensor([5.0]).double(), 0, 3.0, 2.0)
    assert all(torch.isfinite(part).all() for part in one)


def of(form, features, labels, ridge, dense=False):
    statistics = ClassStatistics(features.shape[1], form, features.shape[1], dtype=torch.float64).update(features, labels)
    keep = torch.ones(len(statistics), dtype=torch.float64)
    if form == "diagonal":
        return Within.of(statistics, statistics.pooled() + ridge, keep)
    if dense:
        return Within.of(statistics, statistics.pooled() + torch.diag(ridge), keep)
    factor = Factor(pooled_covariance(statistics).plus_diagonal(ridge), torch.finfo(torch.float64).eps)
    return Within.of(statistics, factor, keep)


@pytest.mark.parametrize("form", ["full", "lowrank", "shared", "diagonal"])
@pytest.mark.parametrize("dense", [False, True])
def test_products_of_means_and_covariances_of_scores_are_those_of_the_samples(monkeypatch, form, dense):
    monkeypatch.setattr(within_module, "PRIOR", 0.0)  # each class by its own samples
    features, labels = world((7, 7, 7))
    ridge = torch.linspace(0.5, 2, 8, dtype=torch.float64)
    found = of(form, features, labels, ridge, dense)
    mean, scatter = moments(features, labels)
    pooled = scatter / 18 if form != "diagonal" else np.diag(np.diag(scatter)) / 18
    inverse = np.linalg.inv(pooled + np.diag(ridge))
    order = found.order.tolist()
    centred = (mean - mean.mean(0))[order]
    assert sorted(order) == [0, 1, 2] and found.count.tolist() == [7, 7, 7]
    assert_close(found.mean, centred, 1e-12)
    assert_close(found.inner, centred @ inverse @ centred.T, 1e-9)
    residuals = features - mean[labels]
    h = np.einsum("ni,ij,nj->n", residuals, inverse, residuals)
    z = residuals @ inverse @ centred.T
    if form == "diagonal":  # correlations are not known: z varies as if there were none, times their average effect
        by_class = [np.diag((residuals[labels == k] ** 2).mean(0)) for k in order]
        factor = dependence(ClassStatistics(8, form, dtype=torch.float64).update(features, labels))
        expected = factor * np.array([centred @ inverse @ own @ inverse @ centred.T for own in by_class])
    elif form == "shared":  # all classes together, in proportion to the traces of their own covariances
        traces = np.array([(residuals[labels == k] ** 2).sum() / 6 for k in order]) / (np.trace(scatter) / 18)
        expected = traces[:, None, None] * (z.T @ z / 21)
    else:
        expected = np.array([z[labels == k].T @ z[labels == k] / 7 for k in order])
    assert found.chosen == [0, 1, 2]
    assert_close(spread(found), expected, 1e-9)
    if form == "shared":
        mean_leverage = (h * 7 / 6 / 18).mean()
        odds = traces * mean_leverage / (1 - mean_leverage)
        assert_close(found.leverage, odds / (1 + odds), 1e-9)
        assert_close(found.length, 18 * odds / (1 + odds), 1e-9)
    if form == "diagonal":
        assert_close(found.length, [(h * 7 / 6)[labels == k].mean() for k in order], 1e-9)


@pytest.mark.parametrize("form", ["full", "lowrank"])
def test_the_leverage_of_a_wider_class_is_larger_and_below_one(monkeypatch, form):
    monkeypatch.setattr(within_module, "PRIOR", 0.0)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10, 8))
    rows -= rows.mean(0)
    labels = np.repeat([0, 1], 10)
    features = np.concatenate([rows, 2 * rows + 1])  # the second class has four times the covariance
    ridge = torch.full((8,), 0.5, dtype=torch.float64)
    found = of(form, features, labels, ridge)
    pooled = 2.5 * rows.T @ rows / 9
    trace = np.trace(np.linalg.solve(pooled + 0.5 * np.eye(8), pooled)) / 18  # the mean leverage of all samples
    odds = trace / (1 - trace) * np.array([1, 4]) / 2.5
    assert_close(found.leverage[found.order.argsort()], odds / (1 + odds), 1e-9)


def test_few_samples_take_most_of_their_covariance_from_the_pooled_one():
    features, labels = world((7, 7, 7))
    ridge = torch.ones(8, dtype=torch.float64)
    found = of("full", features, labels, ridge)
    share = 6 / (6 + within_module.PRIOR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(within_module, "PRIOR", 0.0)
        own = of("full", features, labels, ridge)
        patch.setattr(within_module, "PRIOR", 1e12)
        pooled = of("full", features, labels, ridge)
    assert_close(spread(found), (share * spread(own) + (1 - share) * spread(pooled)).numpy(), 1e-9)
    mean, scatter = moments(features, labels)
    weight = np.linalg.solve(scatter / 18 + np.eye(8), (mean - mean.mean(0))[found.order.tolist()].T)
    assert_close(spread(pooled)[0], weight.T @ scatter @ weight / 18 * 6 / 7, 1e-9)


@pytest.mark.parametrize("counts", [(5, 8), (5, 8, 3, 4)])
def test_the_order_of_classes_does_not_depend_on_their_arrival(counts):
    features, labels = world(counts)
    ridge = torch.ones(8, dtype=torch.float64)
    mine = of("full", features, labels, ridge)
    backwards = np.argsort(-labels, kind="stable")
    theirs = of("full", features[backwards], labels[backwards], ridge)
    assert_close(theirs.mean, mine.mean.numpy(), 1e-12)
    assert_close(spread(theirs), spread(mine).numpy(), 1e-9)


def test_draws_have_the_covariance_of_the_samples():
    """With many samples, leaving one out changes nothing: the product of x and a mean is that of the class mean, plus z."""
    features, labels = world((3000, 3000, 3000))
    found = of("full", features, labels, torch.ones(8, dtype=torch.float64))
    assert [row for row, _ in found.draws] == found.chosen == [0, 1, 2]
    for (row, one), covariance in zip(found.draws, spread(found), strict=True):
        z = one.to_means - found.inner[row]
        assert len(z) == within_module.DRAWS // 3
        assert_close(z.T @ z / len(z), covariance.numpy(), 0.1)
        assert_close(one.around.mean()[None], (one.own - 2 * z[:, row] - found.inner[row, row]).mean()[None].numpy(), 0.01)


def test_classes_of_one_sample_are_not_drawn_from():
    features, labels = world((1, 5, 1))
    found = of("full", features, labels, torch.ones(8, dtype=torch.float64))
    assert found.order[found.chosen].tolist() == [1] and len(found.draws) == 1
    single = of("shared", *world((1, 1, 1)), torch.ones(8, dtype=torch.float64))
    assert single.chosen == [] and single.draws == []


def test_of_many_classes_some_are_drawn_from():
    features, labels = world((2,) * 100)
    found = of("full", features, labels, torch.ones(8, dtype=torch.float64))
    assert len(set(found.chosen)) == within_module.CLASSES and {0, 99} <= set(found.chosen)


@pytest.mark.parametrize("form", ["full", "shared", "diagonal"])
def test_the_loss_is_that_of_the_draws_at_their_best_temperature(form):
    found = of(form, *world(), torch.full((8,), 0.5, dtype=torch.float64))
    leads = []
    for row, one in found.draws:
        scores = (found.keep * one.to_means - found.keep**2 * one.means / 2).numpy() / 2
        leads.append(scores - scores[:, [row]])
    leads = np.concatenate(leads)
    assert_close(found.leads, leads, 1e-12)
    best = minimize_scalar(lambda t: logsumexp(leads / np.exp(t), axis=1).mean(), bounds=(-5, 5), options={"xatol": 1e-9})
    assert found.loss() == pytest.approx(best.fun, rel=1e-8)
