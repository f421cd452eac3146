"""The temperature on data from true Gaussians, where the right answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import spd

from amgc.core.calibration import temperature
from amgc.core.solver import solve_head
from amgc.core.statistics import ClassStatistics

pytestmark = pytest.mark.cpus


def _temperature(head, statistics, average=None, towards_pooled=0.0, towards_diagonal=0.0):
    shares = torch.full((len(statistics),), towards_pooled, dtype=torch.float64)
    return temperature(head, statistics, statistics.pooled() if average is None else average, shares, towards_diagonal)


def _world(seed=0, classes=5, dim=6, samples=3000, distance=1.5):
    """Return features and labels of classes with one covariance, for learning and as many for testing."""
    rng = np.random.default_rng(seed)
    mean, half = distance * rng.normal(size=(classes, dim)), np.linalg.cholesky(spd(rng, dim) + 0.5 * np.eye(dim))

    def draw():
        labels = np.arange(classes * samples) % classes
        return mean[labels] + rng.normal(size=(len(labels), dim)) @ half.T, labels

    return draw(), draw()


def _error(head, divisor, features, labels, bins=15):
    """Return the expected calibration error: |accuracy - confidence| over bins of equal width, weighted by their size."""
    scores = (features @ head.weight.numpy().T + head.bias.numpy()) / divisor
    scores -= scores.max(1, keepdims=True)
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    return sum(abs(right[which == b].mean() - confidence[which == b].mean()) * (which == b).mean() for b in np.unique(which))


@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal", "shared"])
def test_on_gaussians_of_one_covariance_the_temperature_is_a_half(form):
    """The L_DB optimum is half of LDA; LDA's scores are calibrated."""
    rng = np.random.default_rng(1)
    labels = np.arange(15_000) % 5
    # Independent features, so that every form can express them.
    features = 1.2 * rng.normal(size=(5, 6))[labels] + rng.normal(size=(15_000, 6))
    statistics = ClassStatistics(6, form, 6, dtype=torch.float64).update(features, labels)
    head = solve_head(statistics, margin=0.0)
    assert _temperature(head, statistics) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_the_calibration_error_is_small_and_raw_scores_are_too_unsure(seed):
    (features, labels), fresh = _world(seed)
    statistics = ClassStatistics(6, "shared", dtype=torch.float64).update(features, labels)
    head = solve_head(statistics, margin=0.0)
    divisor = _temperature(head, statistics)
    assert divisor == pytest.approx(0.5, abs=0.05)
    assert _error(head, divisor, *fresh) < 0.015
    assert _error(head, divisor, *fresh) < _error(head, 1.0, *fresh)


def test_few_samples_make_it_less_sure():
    def divisor(samples):
        (features, labels), _ = _world(0, samples=samples)
        statistics = ClassStatistics(6, "shared", dtype=torch.float64).update(features, labels)
        return _temperature(solve_head(statistics, margin=0.0), statistics)

    assert divisor(8) > divisor(3000)


def test_the_temperature_undoes_any_scale_of_the_head():
    (features, labels), _ = _world(0, samples=500)
    statistics = ClassStatistics(6, "full", dtype=torch.float64).update(features, labels)
    temperatures = [_temperature(solve_head(statistics, margin=margin), statistics) for margin in (0.0, 1.0)]
    assert temperatures[1] < temperatures[0]  # enlarged variances shorten the weights


def test_it_is_deterministic():
    (features, labels), _ = _world(0, samples=50)
    statistics = ClassStatistics(6).update(features, labels)
    head = solve_head(statistics)
    assert len({_temperature(head, statistics, None, 0.1, 0.1) for _ in range(3)}) == 1


def test_without_spread_or_rivals_there_is_nothing_to_calibrate():
    one_class = ClassStatistics(2).update(np.random.default_rng(0).normal(size=(9, 2)), [0] * 9)
    single = ClassStatistics(2).update([[0.0, 0.0], [4.0, 0.0]], [0, 1])
    for statistics in (one_class, single):
        head = solve_head(statistics, ridge=0.1)
        assert _temperature(head, statistics, statistics.pooled() + 0.1 * torch.eye(2)) == 1.0
