"""Typicality: held-out samples of known classes, pure noise, and classes that were never seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from digits import part, split
from sklearn.metrics import roc_auc_score

from amgc import AMGCClassifier
from amgc.core import typicality
from amgc.core.spread import random_directions
from amgc.core.statistics import ClassStatistics
from amgc.core.typicality import NARROW, Distance, measure, projected

pytestmark = pytest.mark.cpus

FORMS = ("full", "lowrank", "shared")
TRAIN, TEST, LABELS, TEST_LABELS = split()


def first(samples, classes=range(10)):
    """Return the first training digits of each class."""
    rows = np.concatenate([np.flatnonzero(k == LABELS)[:samples] for k in classes])
    return TRAIN[rows], LABELS[rows]


@pytest.mark.any_cpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("samples", [20, 100])
def test_few_held_out_digits_are_less_typical_than_five_per_cent(form, samples):
    found = AMGCClassifier(covariance=form).fit(*first(samples)).typicality(TEST)
    assert found.shape == (len(TEST),) and (found >= 0).all() and (found <= 1).all()
    assert 0 < (found < 0.05).mean() <= 0.12
    assert abs((found < 0.5).mean() - 0.5) < 0.2


@pytest.mark.any_cpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("samples", [5, 20, 100])
def test_pure_noise_is_not_typical(form, samples):
    noise = np.random.default_rng(0).uniform(0, 16, (200, 64))
    assert (AMGCClassifier(covariance=form).fit(*first(samples)).typicality(noise) < 0.05).mean() >= 0.95


@pytest.mark.any_cpu
@pytest.mark.parametrize(
    ("form", "samples"),
    [("lowrank", 20), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("full", 100), ("full", 5), ("shared", 5)))],
)
def test_digits_of_a_class_never_seen_are_less_typical_than_others(form, samples):
    areas = []
    for unseen in range(10):
        classifier = AMGCClassifier(covariance=form).fit(*first(samples, set(range(10)) - {unseen}))
        areas.append(roc_auc_score(unseen != TEST_LABELS, classifier.typicality(TEST)))
    assert np.mean(areas) >= 0.8


@pytest.mark.parametrize("form", FORMS)
def test_on_gaussians_no_more_than_a_share_p_is_below_p(form):
    """Real classes have longer tails, which are allowed for."""
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 6
    mean, mixing = 2 * rng.normal(size=(6, 10)), np.eye(10) + 0.3 * rng.normal(size=(10, 10))
    train, test = (mean[labels] + rng.normal(size=(600, 10)) @ mixing for _ in range(2))
    found = AMGCClassifier(covariance=form, dtype="float64").fit(train, labels).typicality(test)
    for p in (0.01, 0.05, 0.2):
        assert (found < p).mean() <= 1.5 * p + 0.01


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("far", [None, range(20, 40)])
def test_farther_away_is_never_more_typical(form, far):
    classifier = AMGCClassifier(covariance=form).fit(*first(20))
    mean = TRAIN[LABELS == 3].mean(0)
    way = np.random.default_rng(0).normal(size=64)
    found = classifier.typicality(mean + np.geomspace(0.01, 1e4, 60)[:, None] * way, far=far)
    same = classifier.predict(mean + np.geomspace(0.01, 1e4, 60)[:, None] * way) == 3
    assert same[0] and found[0] > 0.5 and found[-1] < 1e-6
    # With the features that find other kinds, direction counts more than distance. Next to the mean, where all is typical, it
    # may improve a little on the way.
    assert (np.diff(found[: int(same.argmin()) or 60]) <= (1e-9 if far is None else 1e-3)).all()


def test_far_in_the_direction_of_a_class_is_not_typical():
    """Its cosine is as large as can be, but it is too far away."""
    classifier = AMGCClassifier().fit(*first(50))
    centre, mean = (np.mean([TRAIN[k == LABELS].mean(0) for k in group], 0) for group in (range(10), [0]))
    assert classifier.predict([centre + 20 * (mean - centre)]) == 0
    assert classifier.typicality([mean])[0] > 0.3 and classifier.typicality([centre + 20 * (mean - centre)])[0] < 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_too_few_samples_and_a_single_class_count_as_typical(form):
    X, y = first(1)
    for samples, labels in ((X, y), (np.vstack([X, X[:2] + 1]), [*y, *y[:2]]), (TRAIN[LABELS == 4], LABELS[LABELS == 4])):
        classifier = AMGCClassifier(covariance=form).fit(samples, labels)
        assert (classifier.typicality(np.vstack([TEST, 1e6 * TEST])) == 1).all()


def test_without_correlations_everything_counts_as_typical():
    classifier = AMGCClassifier(covariance="diagonal").fit(*first(20))
    assert (classifier.typicality(TEST) == 1).all()
    assert measure(classifier.statistics_) is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [range(10), (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)])
def test_the_order_of_classes_and_merges_do_not_change_it(form, order):
    whole = AMGCClassifier(covariance=form, rank=64, dtype="float64").fit(TRAIN, LABELS)
    stepwise, merged = (AMGCClassifier(covariance=form, rank=64, dtype="float64") for _ in range(2))
    for k in order:
        stepwise.partial_fit(*part(TRAIN, LABELS, [k]))
    merged.fit(*part(TRAIN, LABELS, order[5:])).merge(
        AMGCClassifier(covariance=form, rank=64, dtype="float64").fit(*part(TRAIN, LABELS, order[:5]))
    )
    for one in (stepwise, merged):
        # A p-value changes by one of 4,096 draws if a cosine falls on the other side of a draw by rounding.
        for far in (None, range(20, 40)):
            found, expected = one.typicality(TEST, far=far), whole.typicality(TEST, far=far)
            np.testing.assert_allclose(found, expected, atol=1e-3)
            assert np.median(np.abs(found - expected)) < 1e-9


# ---- features that find what is altogether different --------------------------------------------------------------------


def shifted(seed, counts, dim=60, few=8):
    """Return samples of classes that differ in all features, and strangers that also differ in `few` that vary little."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    size = np.r_[np.full(few, 0.1), np.ones(dim - few)]
    mean = size * np.random.default_rng(9).normal(size=(len(counts), dim))
    known = mean[labels] + size * rng.standard_t(8, size=(len(labels), dim))
    strangers = known + np.r_[np.full(few, 0.25), np.zeros(dim - few)]
    return known, labels, strangers


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("samples", [10, 50])
def test_samples_that_differ_in_the_far_features_are_rejected(form, samples):
    classifier = AMGCClassifier(covariance=form).fit(*shifted(0, [samples] * 5)[:2])
    known, _, strangers = shifted(1, [100] * 5)
    apart, without = (classifier.typicality(strangers, far=far) < 0.05 for far in (range(8), None))
    assert apart.mean() >= 0.9 and without.mean() < 0.5
    assert 0 < (classifier.typicality(known, far=range(8)) < 0.05).mean() <= 0.1


def test_the_far_features_change_nothing_but_what_they_find():
    """All other samples are in the order of the other questions, whatever the features are."""
    classifier = AMGCClassifier().fit(*first(20))
    one, other = (classifier.typicality(TEST, far=far) for far in (range(20, 40), range(40, 60)))
    near = (one >= 0.05) & (other >= 0.05)
    assert 0.8 < near.mean() < 1 and (one != other).any()
    np.testing.assert_allclose(one[near], other[near], atol=1e-12)


def test_strangers_do_not_pass_as_samples_of_the_class_that_varies_most():
    """One class varies twice as much as the others. All have the same expected distance in the far features."""
    features, labels, _ = shifted(0, [12] * 5)
    known, _, strangers = shifted(1, [100] * 5)
    features[labels == 0] += features[labels == 0] - features[labels == 0].mean(0)
    classifier = AMGCClassifier().fit(features, labels)
    assert (classifier.typicality(strangers, far=range(8)) < 0.05).mean() >= 0.6
    assert (classifier.typicality(known, far=range(8)) < 0.05).mean() <= 0.1


@pytest.mark.any_cpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("samples", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_with_far_features_new_classes_are_found_at_least_as_well(form, samples):
    """The direction counts more then."""
    areas = {None: [], range(20, 40): []}
    for unseen in range(0, 10, 2):
        classifier = AMGCClassifier(covariance=form).fit(*first(samples, set(range(10)) - {unseen}))
        for far, found in areas.items():
            found.append(roc_auc_score(unseen != TEST_LABELS, classifier.typicality(TEST, far=far)))
    without, with_far = (np.mean(found) for found in areas.values())
    assert with_far >= without - 0.01


@pytest.mark.parametrize("counts", [(20, 20, 20), (12, 30, 18, 25)])
@pytest.mark.parametrize("columns", [list(range(6)), [7, 2, 11]])
def test_expected_distances_are_those_of_samples_that_were_left_out(counts, columns):
    features, labels, _ = shifted(3, counts, dim=12, few=6)
    whole = ClassStatistics(12, "full", dtype=torch.float64).update(features, labels)
    part = projected(whole, torch.eye(12, dtype=torch.float64)[:, columns])
    ridge = 0.5 * part.pooled().diagonal()
    distance = Distance(part, ridge, torch.ones(len(counts)), 0.0).arrays()
    expected = np.exp(distance.expected + distance.spread**2 / 2)
    rows, left_out = features[:, columns], []
    for one, own in enumerate(labels):
        kept = np.arange(len(labels)) != one
        mean = np.stack([rows[kept & (labels == k)].mean(0) for k in range(len(counts))])
        residuals = (rows - mean[labels])[kept]
        covariance = residuals.T @ residuals / (len(labels) - len(counts)) + np.diag(ridge.numpy())
        off = rows[one] - mean[own]
        left_out.append(off @ np.linalg.solve(covariance, off) * (1 + 1 / counts[own]) / (1 + 1 / (counts[own] - 1)))
    # Sizes of classes are those of all features, drawn towards their average: only the mean over classes is the same.
    assert np.mean(expected[labels]) == pytest.approx(np.mean(left_out), rel=0.1)


@pytest.mark.parametrize(("samples", "dim"), [(5, 40), (20, 40), (10, 8)])
def test_the_nearest_mean_is_nearer_by_as_much_as_expected(samples, dim):
    """Also with few features, of which the class means span half, and with few samples, whose means are inaccurate."""
    rng, centres = np.random.default_rng(0), 0.2 * np.random.default_rng(9).normal(size=(5, dim))
    found, expected = [], []
    for _ in range(10):
        labels, asked = np.repeat(np.arange(5), samples), np.repeat(np.arange(5), 200)
        known, new = (centres[own] + rng.normal(size=(len(own), dim)) for own in (labels, asked))
        statistics = ClassStatistics(dim, "shared", dtype=torch.float64).update(known, labels)
        distance = Distance(statistics, torch.full((dim,), 2.0, dtype=torch.float64), torch.ones(5), 0.0)
        arrays = distance.arrays()
        logs = arrays.farther(*arrays.products(new)) * arrays.spread + arrays.expected
        found.append(float((logs.min(1) - logs[np.arange(len(asked)), asked]).mean()))
        expected.append(distance.nearer())
    assert np.mean(expected) == pytest.approx(np.mean(found), rel=0.35 if samples == 5 else 0.2)


@pytest.mark.parametrize("samples", [3, 40])
def test_distances_to_the_nearest_class_vary_as_expected(samples):
    """Samples differ in size, as normal logarithms do. With few samples the error of the means hides a part of it."""
    rng, classes, dim, real = np.random.default_rng(0), 6, 150, 0.5
    centres, found = 0.5 * rng.normal(size=(classes, dim)), []

    def drawn(labels):
        size = np.exp(real / 2 * rng.normal(size=(len(labels), 1)) - real**2 / 4)
        return centres[labels] + size * rng.normal(size=(len(labels), dim))

    for _ in range(12):
        labels, asked = np.repeat(np.arange(classes), samples), np.repeat(np.arange(classes), 50)
        statistics = ClassStatistics(dim, "shared", dtype=torch.float64).update(drawn(labels), labels)
        distance = Distance(statistics, torch.ones(dim, dtype=torch.float64), torch.ones(classes), real)
        arrays, (_, spread) = distance.arrays(), distance.nearest()
        found.append(arrays.logs(*arrays.products(drawn(asked))).min(1).std() / spread)
    assert np.mean(found) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("far", [[], [64], [-1], range(60, 70)])
def test_far_must_be_features(far):
    with pytest.raises(ValueError, match="far must be indices of features, from 0 to 63"):
        AMGCClassifier().fit(*first(5)).typicality(TEST, far=far)


# ---- many features ------------------------------------------------------------------------------------------------------


def wide(seed, samples=30, classes=4, dim=2500):
    rng = np.random.default_rng(seed)
    labels = np.arange(samples * classes) % classes
    mixing = np.random.default_rng(7).normal(size=(40, dim)) / 6
    mean = 0.25 * np.random.default_rng(8).normal(size=(classes + 1, dim))
    rows = rng.normal(size=(len(labels), 40)) @ mixing + 0.5 * rng.normal(size=(len(labels), dim))
    return (rows + mean[labels]).astype(np.float32), labels, (rows + mean[-1]).astype(np.float32)


def test_many_features_are_projected_and_the_answer_is_always_the_same():
    features, labels, _ = wide(0)
    test, _, unseen = wide(1)
    found = []
    for _ in range(2):
        torch.manual_seed(len(found))  # it must not listen to the global seed
        random_directions.cache_clear()
        found.append(AMGCClassifier(covariance="shared").fit(features, labels).typicality(np.vstack([test, unseen])))
    assert found[0].tobytes() == found[1].tobytes()
    known, other = np.split(found[0], 2)
    assert (known < 0.05).mean() <= 0.12 and (other < 0.05).mean() > 0.5


def test_the_directions_are_the_same_everywhere():
    """Random signs of a generator whose raw numbers numpy guarantees, so these must never change."""
    signs = random_directions(2500, NARROW) * 50
    assert signs.shape == (2500, 512) and signs.abs().unique().tolist() == pytest.approx([1.0])
    assert abs(float(signs.mean())) < 0.01
    bits = np.random.PCG64(0).random_raw(1)[0]
    expected = [2.0 * (int(bits) >> (8 * (place // 8) + 7 - place % 8) & 1) - 1 for place in range(64)]
    assert signs[0, :64].round().tolist() == expected


@pytest.mark.parametrize("form", FORMS)
def test_projected_statistics_are_those_of_projected_features(form):
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 9)) + 4, np.arange(60) % 3
    directions = torch.tensor(rng.normal(size=(9, 4)))
    found = projected(ClassStatistics(9, form, 9, dtype=torch.float64).update(features, labels), directions)
    expected = ClassStatistics(4, "shared", dtype=torch.float64).update(features @ directions.numpy(), labels)
    assert found.classes == expected.classes and found.freedom == expected.freedom == 57
    assert torch.equal(found.count, expected.count)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(found.pooled(), expected.pooled(), atol=1e-10)


def test_projection_finds_about_what_all_features_find(monkeypatch):
    known = AMGCClassifier(covariance="shared").fit(*first(100, range(9)))
    areas = [roc_auc_score(TEST_LABELS != 9, known.typicality(TEST))]
    monkeypatch.setattr(typicality, "WIDE", 63)
    monkeypatch.setattr(typicality, "NARROW", 48)
    random_directions.cache_clear()
    again = AMGCClassifier(covariance="shared").fit(*first(100, range(9)))
    areas.append(roc_auc_score(TEST_LABELS != 9, again.typicality(TEST)))
    random_directions.cache_clear()
    assert abs(areas[0] - areas[1]) < 0.1


def test_with_a_budget_the_features_that_find_other_kinds_are_not_known():
    """The statistics are of projected features."""
    classifier = AMGCClassifier(epsilon=8.0, directions=8).fit(TRAIN, LABELS)
    assert (classifier.typicality(TEST, far=[1, 2, 3]) == classifier.typicality(TEST)).all()
