"""The temperature: on true Gaussians, where the right answer is known, on random labels, and on digits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from digits import FORMS, calibration_error, split
from hypothesis import given
from hypothesis import strategies as st
from reference import few, spd

from amgc import AMGCClassifier
from amgc.core import calibration

pytestmark = pytest.mark.cpus


def world(seed=0, classes=5, dim=6, samples=3000, distance=1.5, independent=False):
    """Return features and labels of classes with one covariance, for learning and as many for testing."""
    rng = np.random.default_rng(seed)
    mean = distance * rng.normal(size=(classes, dim))
    half = np.eye(dim) if independent else np.linalg.cholesky(spd(rng, dim) + 0.5 * np.eye(dim))

    def draw():
        labels = np.arange(classes * samples) % classes
        return mean[labels] + rng.normal(size=(len(labels), dim)) @ half.T, labels

    return draw(), draw()


def fitted(features, labels, form="full", **chosen):
    return AMGCClassifier(covariance=form, dtype="float64", **chosen).fit(features, labels)


# ---- what is known ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_on_gaussians_of_one_covariance_the_temperature_is_a_little_above_a_half(form):
    """The L_DB optimum is half of LDA, whose scores are calibrated on Gaussians. Real data need 1.25 times that."""
    (features, labels), _ = world(1, distance=1.2, independent=True)  # so that every form can express them
    assert fitted(features, labels, form).temperature_ == pytest.approx(1.25 * 0.5, abs=0.05)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(2))
def test_the_calibration_error_on_gaussians_is_small(form, seed):
    (features, labels), (fresh, truth) = world(seed, samples=500, independent=True)
    classifier = fitted(features, labels, form)
    assert calibration_error(classifier.predict_proba(fresh), classifier.predict(fresh) == truth) < 0.08


@pytest.mark.any_cpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_random_labels_get_equal_probabilities(form, seed):
    """Two kinds of the same noise, 20 samples each. The mean of the larger probability is near a half."""
    rng = np.random.default_rng(seed)
    classifier = AMGCClassifier(covariance=form, rank=8).fit(rng.normal(size=(40, 1280)), np.arange(40) % 2)
    assert classifier.predict_proba(rng.normal(size=(200, 1280))).max(1).mean() < 0.6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [5, 64, 300])
def test_well_separated_classes_of_50_samples_get_high_probabilities(form, dim):
    (features, labels), (fresh, truth) = world(0, 5, dim, 50, distance=12 / dim**0.5, independent=True)
    classifier = AMGCClassifier(covariance=form).fit(features, labels)
    probability = classifier.predict_proba(fresh)
    assert classifier.score(fresh, truth) > 0.99
    assert probability[np.arange(len(truth)), truth].mean() > 0.97


def test_few_samples_make_it_less_sure():
    def confidence(samples):
        (features, labels), (fresh, _) = world(0, dim=30, samples=samples, distance=0.5)
        return fitted(features, labels).predict_proba(fresh[:500]).max(1).mean()

    assert confidence(3) < confidence(30) < confidence(1000)


@pytest.mark.any_cpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("samples", [pytest.param(5, marks=pytest.mark.slow), 20, pytest.param(50, marks=pytest.mark.slow)])
def test_probabilities_of_held_out_digits_are_calibrated(form, samples):
    """On average over four splits. Variances alone overstate what is known, because pixels repeat each other."""
    errors = []
    for seed in range(4):
        train, test, train_labels, test_labels = split(seed)
        few_of_each = np.concatenate([np.flatnonzero(train_labels == k)[:samples] for k in range(10)])
        classifier = AMGCClassifier(covariance=form).fit(train[few_of_each], train_labels[few_of_each])
        errors.append(calibration_error(classifier.predict_proba(test), classifier.predict(test) == test_labels))
    assert np.mean(errors) <= (0.12 if form == "diagonal" else 0.08)


# ---- a function of the statistics ---------------------------------------------------------------------------------------


@few
@given(
    seed=st.integers(0, 10_000),
    classes=st.integers(2, 5),
    order=st.permutations(range(60)),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    form=st.sampled_from(["full", "shared", "diagonal"]),
    merge=st.booleans(),
)
def test_order_batches_and_merges_do_not_change_it(seed, classes, order, cuts, form, merge):
    rng = np.random.default_rng(seed)
    labels = np.arange(60) % classes
    features = rng.normal(size=(60, 8)) + rng.normal(size=(classes, 8))[labels] + 5
    whole, pieces = fitted(features, labels, form), AMGCClassifier(covariance=form, dtype="float64")
    for start, stop in itertools.pairwise([0, *sorted(cuts), 60]):
        rows = list(order)[start:stop]
        if not rows:
            continue
        if merge and start:
            pieces.merge(fitted(features[rows], labels[rows], form))
        else:
            pieces.partial_fit(features[rows], labels[rows])
    assert pieces.temperature_ == pytest.approx(whole.temperature_, rel=1e-6)
    np.testing.assert_allclose(pieces.predict_proba(features), whole.predict_proba(features), atol=1e-6)
    np.testing.assert_allclose(pieces.typicality(features), whole.typicality(features), atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_order_of_two_classes_does_not_change_it(form):
    """Their means are opposite, seen from their average, so lengths do not distinguish them."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = [rng.normal(size=(count, 6)) + place + 3 for place, count in enumerate((5, 9))]
        found = []
        for order in ((0, 1), (1, 0)):
            classifier = AMGCClassifier(covariance=form, dtype="float64")
            for k in order:
                classifier.partial_fit(rows[k], [k] * len(rows[k]))
            found.append(classifier)
        assert found[0].temperature_ == pytest.approx(found[1].temperature_, rel=1e-6)
        np.testing.assert_allclose(*[one.typicality(np.vstack(rows)) for one in found], atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_scale_and_the_origin_of_the_features_do_not_matter(form):
    (features, labels), _ = world(0, samples=15)
    one, two = fitted(features, labels, form), fitted(1e3 * features - 7, labels, form)
    assert one.temperature_ == pytest.approx(two.temperature_, rel=1e-6)
    np.testing.assert_allclose(one.predict_proba(features), two.predict_proba(1e3 * features - 7), atol=1e-6)
    np.testing.assert_allclose(one.typicality(features), two.typicality(1e3 * features - 7), atol=1e-6)


def test_the_temperature_undoes_the_scale_of_the_head():
    (features, labels), _ = world(0, samples=500)
    old, new = labels < 3, labels >= 3
    temperatures = []
    for margin in (0.0, 1.0):
        classifier = AMGCClassifier(margin=margin, dtype="float64").partial_fit(features[old], labels[old])
        temperatures.append(classifier.partial_fit(features[new], labels[new]).temperature_)
    assert temperatures[1] < temperatures[0]  # enlarged variances shorten the weights


def test_it_is_deterministic():
    (features, labels), _ = world(0, samples=50)
    assert len({fitted(features, labels).temperature_ for _ in range(3)}) == 1


@pytest.mark.parametrize("form", FORMS)
def test_without_rivals_or_differences_there_is_nothing_to_calibrate(form):
    one_class = fitted(np.random.default_rng(0).normal(size=(9, 2)), [0] * 9, form)
    equal = fitted(np.ones((6, 2)), [0, 1, 2] * 2, form)
    assert one_class.temperature_ == equal.temperature_ == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_one_sample_a_class_is_enough_for_a_guess_but_not_for_certainty(form):
    """Nothing is known of how samples vary. A class mean's lead over the others is six temperatures on average."""
    features = np.random.default_rng(0).normal(size=(4, 10))
    classifier = fitted(features, range(4), form)
    scores = classifier.decision_function(features) / classifier.temperature_
    others = (scores.sum(1) - np.diag(scores)) / 3
    assert (np.diag(scores) - others).mean() == pytest.approx(6.0, rel=1e-6)


@pytest.mark.parametrize(("distance", "weight"), [(0.1, 4.0), (30.0, 400.0)])
def test_few_samples_are_trusted_more_if_they_ask_for_caution(monkeypatch, distance, weight):
    """The guess and the draws are mixed on a logarithmic scale. Classes that overlap ask for a higher temperature."""
    rng, labels = np.random.default_rng(0), np.arange(12) % 4
    features = rng.normal(size=(12, 6)) + distance * rng.normal(size=(4, 6))[labels]
    mixed, logs = np.log(fitted(features, labels).temperature_), []
    for trusted in (np.inf, 0.0):
        monkeypatch.setattr(calibration, "TRUSTED_ABOVE", trusted)
        monkeypatch.setattr(calibration, "TRUSTED_BELOW", trusted)
        logs.append(np.log(fitted(features, labels).temperature_))
    guess, draws = logs
    assert (draws > guess) == (weight == 4.0)
    assert mixed == pytest.approx((weight * guess + 2**2 * draws) / (weight + 2**2), rel=1e-9)  # two degrees of freedom a class


def test_the_noise_of_class_means_raises_the_temperature(monkeypatch):
    """Leaving samples out shows how much of the lead of class means is noise: N of one sample, hence N / n of n samples."""
    rng, labels = np.random.default_rng(0), np.arange(60) % 4
    mean, spread = rng.normal(size=(4, 6)), rng.normal(size=(60, 6))
    monkeypatch.setattr(calibration, "TRUSTED_ABOVE", np.inf)
    monkeypatch.setattr(calibration, "TRUSTED_BELOW", np.inf)
    monkeypatch.setattr(calibration, "TRUSTED_NOISE", 0.0)
    found = []
    for distance in (0.5, 1.0, 2.0):
        temperatures = []
        for power in (0.0, 1.0):
            monkeypatch.setattr(calibration, "POWER", power)
            temperatures.append(fitted(distance * mean[labels] + spread, labels).temperature_)
        found.append(temperatures[1] / temperatures[0] * calibration.NOISE)
    assert found[0] > 3 * found[1] > 9 * found[2]
