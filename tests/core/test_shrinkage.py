"""The default regularisation, against its definition in plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from digits import FORMS, split
from reference import assert_close
from sklearn.datasets import load_wine

from amgc import AMGCClassifier
from amgc.core.loading import chosen_loadings
from amgc.core.shrinkage import pooled_covariance, regularisation, variance_level
from amgc.core.statistics import ClassStatistics
from amgc.core.within import Within

pytestmark = pytest.mark.cpus

TRAIN, _, LABELS, _ = split()
WINE, KINDS = load_wine(return_X_y=True)


def learned(features, labels, form="full"):
    return ClassStatistics(features.shape[1], form, features.shape[1], dtype=torch.float64).update(features, labels)


def total_variances(features, labels):
    """Return the pooled variance within the classes plus the variance of their means."""
    classes = np.unique(labels)
    mean = np.array([features[labels == k].mean(0) for k in classes])
    squares = sum(((features[labels == k] - features[labels == k].mean(0)) ** 2).sum(0) for k in classes)
    return squares / (len(labels) - len(classes)) + mean.var(0)


@pytest.mark.parametrize("form", FORMS)
def test_the_level_is_the_average_variance_or_that_of_each_feature(form):
    statistics = learned(WINE, KINDS, form)
    total = total_variances(WINE, KINDS)
    assert_close(variance_level(statistics, True), total, 1e-9)
    assert_close(variance_level(statistics, False), np.full(13, total.mean()), 1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_measurements_in_different_units_are_standardized_and_pixels_are_not(form):
    for features, labels, standardized in ((WINE, KINDS, True), (TRAIN, LABELS, False)):
        statistics = learned(features, labels, form)
        assert torch.equal(variance_level(statistics, "auto"), variance_level(statistics, standardized))


@pytest.mark.parametrize("form", FORMS)
def test_constant_features_do_not_count(form):
    wide = np.hstack([WINE, np.full((len(WINE), 2), 7.3)])
    for standardize in (True, False, "auto"):
        level = variance_level(learned(wide, KINDS, form), standardize)
        assert_close(level[:13], variance_level(learned(WINE, KINDS, form), standardize).numpy(), 1e-9)
        assert (level[13:] > 0).all()
    assert variance_level(learned(np.ones((6, 3)), [0, 1] * 3, form), "auto").tolist() == [1, 1, 1]


@pytest.mark.parametrize("form", FORMS)
def test_means_are_drawn_towards_their_average_with_the_weight_of_two_samples(form):
    rows = np.concatenate([np.flatnonzero(k == LABELS)[: k + 1] for k in range(5)])
    statistics = learned(TRAIN[rows], LABELS[rows], form)
    chosen = regularisation(statistics, None, "auto")
    count = np.bincount(LABELS[rows])[statistics.classes]
    mean = np.array([TRAIN[rows][LABELS[rows] == k].mean(0) for k in statistics.classes])
    keep = count / (count + 2)
    assert_close(chosen.keep, keep, 1e-12)
    assert_close(chosen.mean, mean.mean(0) + keep[:, None] * (mean - mean.mean(0)), 1e-12)


def test_a_class_gets_its_own_covariance_with_many_samples_per_feature():
    rng = np.random.default_rng(0)

    def own(counts, dim=4, form="full"):
        labels = np.repeat(np.arange(len(counts)), counts)
        return regularisation(learned(rng.normal(size=(len(labels), dim)), labels, form), None, "auto").own.tolist()

    assert own((12, 36)) == pytest.approx([12 / 24, 36 / 48])  # the pooled one counts as three samples per feature
    assert own((2, 40), 30) == pytest.approx([2 / 92, 40 / 130])
    assert own((4, 4), 30) == [0, 0]  # if all would have less than 0.05, none has any
    assert own((12, 36), form="shared") == [0, 0]


def loading(statistics, level):
    """Return the loading of a level: few samples take the largest that is good, many the middle of the smallest and it."""
    found = chosen_loadings(pooled_covariance(statistics), level, statistics.mean, statistics.count, statistics.freedom)
    share = 0.5 * statistics.freedom / (statistics.freedom + statistics.dim)
    return found.smallest**share * found.largest ** (1 - share)


@pytest.mark.parametrize("form", ["full", "lowrank", "shared"])
@pytest.mark.parametrize("samples", [5, 60])
def test_the_ridge_is_between_the_smallest_and_the_largest_good_loading(form, samples):
    rows = np.concatenate([np.flatnonzero(k == LABELS)[:samples] for k in range(10)])
    statistics = learned(TRAIN[rows], LABELS[rows], form)
    level = variance_level(statistics, False)
    assert_close(regularisation(statistics, None, False).ridge, (loading(statistics, level) * level).numpy(), 1e-9)


@pytest.mark.parametrize("form", ["full", "lowrank", "shared"])
@pytest.mark.parametrize("samples", [5, 30])
def test_the_loss_of_left_out_samples_chooses_between_the_average_variance_and_each_features_own(form, samples):
    rows = np.concatenate([np.flatnonzero(k == LABELS)[:samples] for k in range(10)])
    statistics = learned(TRAIN[rows], LABELS[rows], form)
    own = total_variances(TRAIN[rows], LABELS[rows])
    varies = own > 0
    average = own[varies].mean()
    own[~varies] = average
    losses, keep = [], torch.full((10,), samples / (samples + 2), dtype=torch.float64)

    def mixed(power):
        level = own**power * average ** (1 - power)
        return torch.tensor(level / level.mean() * average)

    for power in (0.0, 0.8):
        covariance = statistics.pooled() + torch.diag(loading(statistics, mixed(power)) * mixed(power))
        losses.append(Within.of(statistics, covariance, keep).loss() + 1e-3)
    preference = 1 / (1 + (losses[1] / losses[0]) ** (1 / (0.03 * (1 + 20 / samples))))
    level = mixed(0.8 * preference)
    assert_close(regularisation(statistics, None, "auto").ridge, (loading(statistics, level) * level).numpy(), 1e-5)


def own_power(features, labels, form="full"):
    """Return the power of each feature's own variance in the ridge, which must be a constant times it."""
    own = np.log(total_variances(features, labels))
    ridge = np.log(regularisation(learned(features, labels, form), None, "auto").ridge.numpy())
    power, constant = np.polyfit(own, ridge, 1)
    assert_close(constant + power * own, ridge, 1e-6)
    return power


@pytest.mark.parametrize("form", ["full", "lowrank", "shared"])
@pytest.mark.parametrize(("signal", "low", "high"), [(1.0, 0.4, 0.8), (-1.0, 0.0, 0.4)])
def test_the_ridge_follows_the_variances_where_that_separates_the_classes_better(form, signal, low, high):
    """Classes differ as much as features vary (then units should not matter), or mostly in features that vary much."""
    rng = np.random.default_rng(0)
    labels, size = np.arange(160) % 8, np.geomspace(0.2, 1.8, 60)
    mean = rng.normal(size=(8, 60)) * (0.5 * size if signal > 0 else 0.3 * size**2)
    assert low <= own_power(mean[labels] + size * rng.normal(size=(160, 60)), labels, form) <= high


def test_with_very_many_classes_the_ridge_follows_the_variances_half_as_much():
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 300
    size = np.geomspace(0.5, 2, 4)
    assert own_power(size * rng.normal(size=(600, 4)) + rng.normal(size=(300, 4))[labels], labels) == pytest.approx(0.4)


def test_rounding_does_not_change_the_ridge_much():
    statistics = learned(TRAIN[:200], LABELS[:200])
    moved = learned(TRAIN[:200] * (1 + 1e-9 * np.random.default_rng(0).normal(size=(200, 64))), LABELS[:200])
    assert_close(*[regularisation(one, None, "auto").ridge.numpy() for one in (statistics, moved)], 1e-6)


def test_variances_alone_get_the_weight_of_ten_samples():
    statistics = learned(WINE, KINDS, "diagonal")
    level = total_variances(WINE, KINDS)
    assert_close(regularisation(statistics, None, True).ridge, 10 / (10 + len(KINDS) - 3) * level, 1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_second_sample_of_any_class_the_ridge_is_the_level(form):
    statistics = learned(WINE[:4], range(4), form)
    chosen = regularisation(statistics, None, False)
    assert_close(chosen.ridge, variance_level(statistics, False).numpy(), 1e-12)
    assert math.isfinite(float(chosen.ridge.sum()))


@pytest.mark.parametrize("form", FORMS)
def test_given_shrinkages_are_used_as_they_are(form):
    statistics = learned(WINE, KINDS, form)
    chosen = regularisation(statistics, (0.3, 0.2), "auto")
    assert torch.equal(chosen.mean, statistics.mean) and chosen.keep.tolist() == [1, 1, 1]
    assert chosen.own.tolist() == pytest.approx([0.7] * 3) and chosen.to_diagonal == 0.2
    assert_close(chosen.ridge, 1e-4 * total_variances(WINE, KINDS), 1e-9)


@pytest.mark.parametrize("form", ["full", "lowrank", "shared"])
@pytest.mark.parametrize("samples", [2, 5])
def test_with_few_samples_the_classifier_is_half_of_lda_with_ridge_and_drawn_means(form, samples):
    rows = np.concatenate([np.flatnonzero(k == LABELS)[:samples] for k in range(10)])
    classifier = AMGCClassifier(covariance=form, rank=64, dtype="float64").fit(TRAIN[rows], LABELS[rows])
    ridge = regularisation(classifier.statistics_, None, "auto").ridge.numpy()
    mean = np.array([TRAIN[rows][LABELS[rows] == k].mean(0) for k in range(10)])
    residuals = TRAIN[rows] - mean[LABELS[rows]]
    covariance = residuals.T @ residuals / (len(rows) - 10) + np.diag(ridge)
    drawn = (mean - mean.mean(0)) * samples / (samples + 2)
    assert_close(classifier.coef_, np.linalg.solve(covariance, drawn.T).T / 2, 1e-8)
