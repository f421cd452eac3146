"""The loading of a covariance's diagonal by leave-one-out, against hat matrices that are written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import assert_close

from amgc.core import diagonal_loading
from amgc.core.diagonal_loading import chosen_loadings
from amgc.core.shrinkage import MOST_LOADING, separating_level, separating_ridge
from amgc.core.solver import solve_head
from amgc.core.statistics import ClassStatistics

pytestmark = pytest.mark.cpus


def data(samples=60, dim=13, classes=4, seed=0, distance=2.0):
    rng = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    mixing = 0.5 * rng.normal(size=(dim, dim)) / dim**0.5 + np.eye(dim)
    return rng.normal(size=(samples, dim)) @ mixing + distance * rng.normal(size=(classes, dim))[labels], labels


def shared(features, labels, dtype=torch.float64):
    return ClassStatistics(features.shape[1], "shared", dtype=dtype).update(features, labels)


def chosen(statistics, level):
    return chosen_loadings(statistics.shared(), level, statistics.mean, statistics.count, statistics.freedom)


def explained(features, labels, e, level):
    """Return the squared cosine between indicators and leave-one-out predictions of ridge regression."""
    rows = (features - features.mean(0)) / np.sqrt(level)
    targets = np.eye(labels.max() + 1)[labels]
    targets = targets - targets.mean(0)
    hat = rows @ np.linalg.solve(rows.T @ rows + len(rows) * e * np.eye(rows.shape[1]), rows.T)
    h = (1 + np.trace(hat)) / len(rows)  # with the intercept's own
    if h >= 0.999:  # the fit interpolates: nothing is left to predict with
        return 0.0
    left_out = (hat @ targets - h * targets) / (1 - h)
    along = max((left_out * targets).sum(), 0)
    return along**2 / (left_out**2).sum() / (targets**2).sum()


def crossing(points, quality, limit, direction):
    """Return where the quality crosses the limit: a straight line from the outermost point that reaches it to the next."""
    at = np.flatnonzero(quality >= limit)[0 if direction < 0 else -1]
    outside = at + direction
    if not 0 <= outside < len(points):
        return points[at]
    return np.interp(limit, [quality[outside], quality[at]], [points[outside], points[at]])


@pytest.mark.parametrize(("samples", "dim"), [(400, 13), (60, 13), (60, 90), (24, 200)])
@pytest.mark.parametrize("isotropic", [True, False])
def test_the_loadings_are_those_of_the_criterion_written_out(samples, dim, isotropic):
    features, labels = data(samples, dim, 3, distance=3 / dim**0.5)
    statistics = shared(features, labels)
    variances = np.diag(np.asarray(statistics.pooled()))
    level = np.full(dim, variances.mean()) if isotropic else variances
    grid = 10.0 ** np.arange(-4, 2.01, 0.125)
    quality = np.array([explained(features, labels, e, level) for e in grid])
    best = quality.max()
    error = 2 * np.sqrt(best) * (1 - best) / np.sqrt(samples)
    expected = [
        np.exp(crossing(np.log(grid), quality, 0.99 * best, -1)) * samples / (samples - 3),
        np.exp(crossing(np.log(grid), quality, best - 0.1 * error, +1)) * samples / (samples - 3),
        best,
    ]
    for found, value in zip(chosen(statistics, torch.tensor(level)), expected, strict=True):
        assert found == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("samples", [60, 400])
def test_the_score_of_a_loading_is_that_of_the_hat_matrix(samples):
    features, labels = data(samples, 13, 3)
    statistics = shared(features, labels)
    level = statistics.pooled().diagonal()
    total = diagonal_loading._Total(statistics.shared(), level, statistics.mean, statistics.count, statistics.freedom)
    loadings = torch.tensor([1e-3, 0.03, 0.5, 4.0], dtype=torch.float64)
    quality = diagonal_loading.explained(loadings, total.exact(), total.share, total.samples)
    assert_close(quality, [explained(features, labels, e, level.numpy()) for e in loadings.tolist()], 1e-9)


@pytest.mark.parametrize("pivot", [0.01, 0.1])
def test_lanczos_with_one_factorisation_gives_what_all_eigenvalues_give(pivot):
    features, labels = data(900, 300)
    statistics = shared(features, labels)
    level = statistics.shared().variances
    total = diagonal_loading._Total(statistics.shared(), level, statistics.mean, statistics.count, statistics.freedom)
    near = diagonal_loading.LOADINGS[(pivot / 30 < diagonal_loading.LOADINGS) & (pivot * 30 > diagonal_loading.LOADINGS)]
    exact, found = (
        diagonal_loading.explained(near, sums, total.share, total.samples) for sums in (total.exact(), total.around(pivot))
    )
    assert (found - exact).abs().max() < 0.03 * exact.max()


@pytest.mark.parametrize(("samples", "dim"), [(900, 300), (250, 300)])
def test_the_loadings_found_in_many_dimensions_are_those_found_in_few(monkeypatch, samples, dim):
    features, labels = data(samples, dim, distance=0.5)
    statistics = shared(features, labels, torch.float32)
    level = statistics.shared().variances
    exact = chosen(statistics, level)
    monkeypatch.setattr(diagonal_loading, "EXACT_UP_TO", 0)
    monkeypatch.setattr(diagonal_loading, "MANY", 0)
    monkeypatch.setattr(diagonal_loading, "DOUBLE_UP_TO", 0)
    found = chosen(statistics, level)
    assert 0.5 < found.smallest / exact.smallest < 2 and 0.5 < found.largest / exact.largest < 2


@pytest.mark.parametrize("samples", [24, 60])
def test_the_few_directions_of_few_samples_give_what_all_eigenvalues_give(monkeypatch, samples):
    """With fewer samples than features, eigenvalues are computed in the span of the samples."""
    features, labels = data(samples, 90, distance=0.5)
    statistics = shared(features, labels)
    level = statistics.shared().variances
    total = diagonal_loading._Total(statistics.shared(), level, statistics.mean, statistics.count, statistics.freedom)
    matrix = np.asarray(total.upper())
    values, vectors = np.linalg.eigh(matrix + np.triu(matrix, 1).T)
    weights = ((np.asarray(total.share)[:, None] * np.asarray(total.offsets) @ vectors) ** 2).sum(0)
    for e in (1e-3, 0.1, 10.0):
        (found, theirs), (trace, _) = total.exact()
        assert_close(np.array([(theirs / (found + e)).sum()]), [(weights / (values + e)).sum()], 1e-9)
        assert_close(np.array([(trace / (trace + e)).sum()]), [(values / (values + e)).sum()], 1e-9)


def test_the_loadings_do_not_jump_from_one_grid_point_to_the_next():
    """So rounding moves them by rounding only."""
    features, labels = data(60, 13, distance=0.3)
    found = []
    for step in range(100):
        statistics = shared(features + 0.02 * step * np.eye(4, 13)[labels], labels)
        found.append(np.log(chosen(statistics, torch.ones(13, dtype=torch.float64)).largest))
    assert np.ptp(found) > 2 * np.log(10) / 8  # several points of the grid
    assert np.abs(np.diff(found)).max() < np.log(10) / 16


@pytest.mark.parametrize("samples", [60, 400])
def test_the_loading_is_found_where_a_bad_one_would_cost_much(samples):
    """The held-out accuracy is within two points of the best of a grid that uses the held-out data."""
    rng = np.random.default_rng(0)
    mixing, centres = rng.normal(size=(60, 60)) * np.geomspace(1, 0.01, 60)[:, None], 0.3 * rng.normal(size=(4, 60))

    def draw(count):
        labels = np.arange(count) % 4
        return rng.normal(size=(count, 60)) @ mixing + centres[labels] + 0.3 * rng.normal(size=(count, 60)), labels

    statistics = shared(*draw(samples))
    features, labels = draw(4000)

    def accuracy(ridge):
        head = solve_head(statistics, margin=0.0, ridge=ridge)
        return ((features @ head.weight.numpy().T + head.bias.numpy()).argmax(1) == labels).mean()

    variances = statistics.shared().variances
    assert accuracy("auto") > max(accuracy(e * variances) for e in (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)) - 0.02


def test_more_samples_need_less_loading():
    few, many = (shared(*data(samples)) for samples in (30, 4000))
    shares = [float((separating_ridge(each) / separating_level(each)).mean()) for each in (few, many)]
    assert MOST_LOADING > shares[0] > shares[1] > 0


def test_one_class_or_one_sample_a_class_leave_nothing_to_choose():
    features, _ = data(6)
    for labels in ([0] * 6, range(6)):
        statistics = shared(features, list(labels))
        assert torch.equal(separating_ridge(statistics), MOST_LOADING * separating_level(statistics))


def test_the_level_is_the_variance_over_the_ratio_of_variances_between_and_within_classes():
    rng = np.random.default_rng(0)
    counts = rng.integers(4, 30, 20)
    labels = np.repeat(np.arange(20), counts)
    features = rng.normal(size=(len(labels), 6)) * rng.uniform(0.5, 2, 6) + rng.normal(size=(20, 6))[labels] * np.arange(6)
    features[:, 5] = 3.0  # a constant feature
    parts = [features[labels == k] for k in range(20)]
    within = sum(((part - part.mean(0)) ** 2).sum(0) for part in parts)[:5] / (len(labels) - 20)
    ratio = np.var([part.mean(0) for part in parts], axis=0, ddof=1)[:5] / within
    known = 1 - (2 * ratio**2 / 21).mean() / ratio.var(ddof=1)
    assert 0 < known < 1
    signal = np.maximum(ratio.mean() - (1 / counts).mean() + known * (ratio - ratio.mean()), 0)
    expected = within / (signal / (ratio.mean() - (1 / counts).mean()) + 0.05)
    found = separating_level(shared(features, labels)).numpy()
    np.testing.assert_allclose(found[:5], expected, rtol=1e-10)
    assert found[5] == 0


def test_few_classes_hardly_change_the_level_if_all_features_separate_them_alike():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 4
    statistics = shared(rng.normal(size=(60, 2000)) + 2 * rng.normal(size=(4, 2000))[labels], labels)
    level = separating_level(statistics) / statistics.shared().variances
    unshrunk = statistics.mean.var(0) / statistics.shared().variances  # varies by chance alone
    assert float(level.log().std()) < 0.3 * float(unshrunk.log().std())


def test_the_level_does_not_depend_on_units_and_grows_with_the_variance():
    features, labels = data(60)
    scale = np.geomspace(0.01, 100, features.shape[1])
    one, other = (separating_level(shared(each, labels)).numpy() for each in (features, features * scale))
    np.testing.assert_allclose(other, one * scale**2, rtol=1e-8)


@pytest.mark.parametrize("samples", [24, 60])
def test_statistics_in_single_precision_give_the_criterion_of_double_precision(samples):
    """Also where the fit nearly interpolates, and numbers that are nearly equal are subtracted."""
    features, labels = data(samples, 300, distance=0.5)
    found = []
    for dtype in (torch.float32, torch.float64):
        statistics = shared(features.astype(np.float32), labels, dtype)
        level = torch.ones(300, dtype=torch.float64)
        total = diagonal_loading._Total(statistics.shared(), level, statistics.mean, statistics.count, statistics.freedom)
        found.append(diagonal_loading.explained(diagonal_loading.LOADINGS, total.exact(), total.share, total.samples))
    assert (found[0] - found[1]).abs().max() < 100 * torch.finfo(torch.float32).eps
