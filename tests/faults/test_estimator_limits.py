"""The estimator with extreme scales, mixed labels and several threads."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

from amgc import AMGCClassifier

RNG = np.random.default_rng(0)
LABELS = np.repeat([0, 1, 2], 40)
X = RNG.normal(size=(120, 5)) + LABELS[:, None]
NEW_LABELS = np.arange(300) % 3
NEW = RNG.normal(size=(300, 5)) + NEW_LABELS[:, None]
FORMS = ("full", "shared", "diagonal", "lowrank")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_at_any_scale_answers_are_those_at_scale_one_or_a_clear_error(form, dtype):
    expected = AMGCClassifier(covariance=form, dtype=dtype).fit(X, LABELS).predict(NEW)
    refused = []
    for exponent in (300, 200, 150, 38, 30, 15, 5, -5, -14, -18, -25, -30, -45, -140, -160, -300):
        classifier = AMGCClassifier(covariance=form, dtype=dtype)
        try:
            found = classifier.fit(X * 10.0**exponent, LABELS).predict(NEW * 10.0**exponent)
        except ValueError as error:
            assert "too large" in str(error) or "too small" in str(error)
            refused.append(exponent)
        else:
            assert (found == expected).mean() > 0.99, exponent  # ties may be broken by rounding
    assert not set(refused) & {15, 5, -5, -14}
    assert {300, 200, -300} <= set(refused) and (dtype == "float64" or {-25, -30} <= set(refused))


def test_a_batch_that_is_too_large_changes_nothing():
    classifier = AMGCClassifier(covariance="shared").fit(X, LABELS)
    before = classifier.predict_proba(NEW)
    with pytest.raises(ValueError, match="too large"):
        classifier.partial_fit(X * 1e300, LABELS)
    assert np.array_equal(classifier.predict_proba(NEW), before)


def test_zeros_are_no_error():
    classifier = AMGCClassifier().fit(np.vstack([np.zeros((4, 5)), X]), np.concatenate([np.full(4, 7), LABELS]))
    assert classifier.predict(np.zeros((1, 5))).shape == (1,)


@pytest.mark.parametrize("labels", [([True, False], [0, 1]), ([0, 1], [True, False])])
def test_booleans_and_numbers_are_not_one_class(labels):
    first, second = (np.repeat(pair, 10) for pair in labels)
    classifier = AMGCClassifier().fit(X[:20], first)
    with pytest.raises(TypeError, match="do not go with"):
        classifier.partial_fit(X[20:40], second)
    other = AMGCClassifier().fit(X[20:40], second)
    with pytest.raises(TypeError, match="do not go with"):
        classifier.merge(other)
    assert classifier.classes_.tolist() == sorted(labels[0])


def test_booleans_among_numbers_are_refused():
    with pytest.raises(TypeError, match="several types"):
        AMGCClassifier().fit(X[:4], np.array([True, 1, 0, False], dtype=object))


@pytest.mark.parametrize("form", ["full", "shared"])
def test_threads_that_predict_while_another_learns_get_answers_of_one_state(form):
    classifier = AMGCClassifier(covariance=form).fit(X, LABELS)
    errors: list[BaseException] = []
    learning = threading.Event()

    def ask() -> None:
        try:
            while not learning.is_set():
                known = len(classifier.classes_)
                assert set(classifier.predict(NEW).tolist()) <= set(range(40))
                assert classifier.predict_proba(NEW).shape[1] >= known
                classifier.decision_function(NEW)
                classifier.typicality(NEW[:3])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for label in range(3, 25):
        classifier.partial_fit(X[:10] + label, np.full(10, label))
        if label % 5 == 0:
            classifier.rename(label, label + 10).rename(label + 10, label)
    learning.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    alone = AMGCClassifier(covariance=form).fit(X, LABELS)
    for label in range(3, 25):
        alone.partial_fit(X[:10] + label, np.full(10, label))
    assert np.array_equal(alone.predict(NEW), classifier.predict(NEW))


def test_a_classifier_that_was_used_by_threads_is_copied_and_pickled():
    classifier = AMGCClassifier().fit(X, LABELS)
    classifier.predict(NEW)
    for twin in (copy.deepcopy(classifier), pickle.loads(pickle.dumps(classifier))):
        assert np.array_equal(twin.predict(NEW), classifier.predict(NEW))
