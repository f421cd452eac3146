"""`AMGCClassifier` among scikit-learn's tools: estimator checks, labels of every kind, data frames, pipelines, searches."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from digits import FORMS, TASKS, blobs, learned, split
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from amgc import AMGCClassifier

TRAIN, TEST, TRAIN_LABELS, TEST_LABELS = split()


@parametrize_with_checks([AMGCClassifier(), AMGCClassifier(covariance="lowrank", rank=2), AMGCClassifier.paper()])
def test_scikit_learn_accepts_it_as_a_classifier(estimator, check) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([*(AMGCClassifier(covariance=form) for form in FORMS[2:]), AMGCClassifier(dtype="float64")])
def test_scikit_learn_accepts_the_other_forms_as_a_classifier(estimator, check) -> None:
    check(estimator)


# ---- labels and feature names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(np.array(["zebra", "ant", "mole"]), id="strings"),
        pytest.param(np.array(["zebra", "ant", "mole"], dtype=object), id="objects"),
        pytest.param(np.array([7, -2, 30]), id="integers"),
        pytest.param(np.array([7, 2, 30], dtype=np.uint8), id="small integers"),
        pytest.param(np.array([7.0, -2.0, 30.0]), id="floats"),
        pytest.param(np.array([True, False]), id="booleans"),
    ],
)
def test_labels_of_every_kind_come_back_as_they_were(names: np.ndarray) -> None:
    X, y = blobs(classes=len(names))
    labels = names[y]
    at_once = AMGCClassifier().fit(X, labels)
    stepwise = AMGCClassifier()
    for k in range(len(names)):
        stepwise.partial_fit(X[y == k], labels[y == k])
    for classifier in (at_once, stepwise):
        assert classifier.classes_.tolist() == sorted(names.tolist())
        assert classifier.predict(X).tolist() == labels.tolist()
        assert classifier.predict(X).dtype.kind in ("U" if names.dtype == object else names.dtype.kind, "i")
        assert classifier.statistics_.classes == names.tolist()


def test_labels_may_be_a_list_a_series_or_a_categorical() -> None:
    X, y = blobs()
    names = np.array(["zebra", "ant", "mole"])[y]
    for labels in (names.tolist(), pd.Series(names), pd.Series(names, dtype="category"), pd.Series(names, dtype=object)):
        assert AMGCClassifier().fit(X, labels).predict(X).tolist() == names.tolist()


def test_longer_strings_may_come_later() -> None:
    X, y = blobs(classes=2)
    classifier = AMGCClassifier().partial_fit(X[y == 0], np.full(60, "a")).partial_fit(X[y == 1], np.full(60, "alligator"))
    assert classifier.classes_.tolist() == ["a", "alligator"]
    assert set(classifier.predict(X).tolist()) == {"a", "alligator"}


def test_classes_may_be_announced_as_scikit_learn_does() -> None:
    X, y = blobs()
    classifier = AMGCClassifier().partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2])
    assert classifier.classes_.tolist() == [0, 1]  # seen, not announced
    assert classifier.partial_fit(X[y == 2], y[y == 2], classes=np.array([0, 1, 2])).classes_.tolist() == [0, 1, 2]


def frame(X: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])


def test_feature_names_are_kept_from_a_data_frame() -> None:
    X, y = blobs()
    classifier = AMGCClassifier()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier.partial_fit(frame(X)[y < 2], y[y < 2]).partial_fit(frame(X)[y == 2], y[y == 2])
        assert classifier.score(frame(X), y) == 1.0
    assert classifier.feature_names_in_.tolist() == ["f0", "f1", "f2", "f3", "f4"]
    assert classifier.n_features_in_ == 5
    assert not hasattr(classifier.fit(X, y), "feature_names_in_")


def test_wrong_feature_names_are_an_error_and_missing_ones_a_warning() -> None:
    X, y = blobs()
    classifier = AMGCClassifier().fit(frame(X), y)
    for wrong in (frame(X).rename(columns={"f1": "g"}), frame(X)[["f1", "f0", "f2", "f3", "f4"]]):
        with pytest.raises(ValueError, match="feature names should match"):
            classifier.predict(wrong)
        with pytest.raises(ValueError, match="feature names should match"):
            classifier.partial_fit(wrong, y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        classifier.predict(X)
    with pytest.warns(UserWarning, match="fitted without feature names"):
        AMGCClassifier().fit(X, y).predict(frame(X))


@pytest.mark.parametrize("change", ["read-only", "fortran", "strided", "float16", "int"])
def test_arrays_in_any_layout_are_read_without_a_warning(change: str) -> None:
    X, y = blobs()
    X = X.round().astype(np.float64)
    given = {
        "read-only": X.copy(),
        "fortran": np.asfortranarray(X),
        "strided": np.repeat(X, 2, axis=1)[::1, ::2],
        "float16": X.astype(np.float16),
        "int": X.astype(np.int64),
    }[change]
    if change == "read-only":
        given.setflags(write=False)
    expected = AMGCClassifier().fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_warn_always(True)
        try:
            classifier = AMGCClassifier().fit(given, y)
        finally:
            torch.set_warn_always(False)
    assert classifier.coef_.tobytes() == expected.coef_.tobytes()
    assert classifier.score(given, y) > 0.98


def test_the_data_given_are_not_changed() -> None:
    X, y = TRAIN.copy(), TRAIN_LABELS.copy()
    AMGCClassifier().fit(X, y).partial_fit(X, y).predict_proba(X)
    assert (X == TRAIN).all() and (y == TRAIN_LABELS).all()


# ---- scikit-learn's tools ------------------------------------------------------------------------------------------------


def test_a_clone_has_the_parameters_and_nothing_else() -> None:
    classifier = AMGCClassifier.paper(covariance="lowrank", rank=5, shrinkage=(0.1, 0.2)).fit(TRAIN, TRAIN_LABELS)
    copy = clone(classifier)
    assert copy.get_params() == classifier.get_params()
    assert vars(copy) == copy.get_params()


def test_a_pipeline_passes_data_frames_through() -> None:
    X, y = blobs()
    pipeline = make_pipeline(StandardScaler(), AMGCClassifier()).set_output(transform="pandas").fit(frame(X), y)
    assert pipeline[-1].feature_names_in_.tolist() == list(frame(X).columns)
    assert pipeline.score(frame(X), y) == 1.0


def test_a_grid_search_finds_the_better_parameters() -> None:
    grid = {"shrinkage": ["auto", 0.0, (0.5, 0.1)], "margin": [0.0, 0.4]}
    search = GridSearchCV(AMGCClassifier(), grid, cv=3, error_score="raise").fit(TRAIN, TRAIN_LABELS)
    assert search.best_params_["shrinkage"] != 0.0  # few samples: pooling helps
    assert search.score(TEST, TEST_LABELS) >= 0.94
    assert len(set(search.cv_results_["mean_test_score"].round(6))) > 1


def test_cross_validation_and_parallel_jobs_agree_with_a_loop() -> None:
    serial = cross_val_score(AMGCClassifier(), TRAIN, TRAIN_LABELS, cv=3, error_score="raise")
    assert serial.min() > 0.93
    parallel = Parallel(n_jobs=2, prefer="threads")(
        delayed(lambda: AMGCClassifier().fit(TRAIN, TRAIN_LABELS).predict_proba(TEST))() for _ in range(3)
    )
    expected = AMGCClassifier().fit(TRAIN, TRAIN_LABELS).predict_proba(TEST)
    assert all(answer.tobytes() == expected.tobytes() for answer in parallel)


def test_one_classifier_may_be_asked_from_several_threads() -> None:
    classifier = learned(TRAIN, TRAIN_LABELS, TASKS["two tasks"], AMGCClassifier())
    answers = Parallel(n_jobs=2, prefer="threads")(delayed(classifier.predict)(TEST) for _ in range(4))
    assert all((answer == classifier.predict(TEST)).all() for answer in answers)


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param(lambda one: CalibratedClassifierCV(one, cv=3), id="calibrated"),
        pytest.param(lambda one: BaggingClassifier(one, n_estimators=3, random_state=0), id="bagging"),
        pytest.param(lambda one: OneVsRestClassifier(one), id="one against the rest"),
        pytest.param(lambda one: VotingClassifier([("a", one), ("b", clone(one))], voting="soft"), id="voting"),
    ],
)
def test_meta_estimators_accept_it(meta) -> None:
    names = np.array(["nil", "one", "two", "tri", "four", "five", "six", "sept", "oct", "nine"])
    classifier = meta(AMGCClassifier()).fit(TRAIN, names[TRAIN_LABELS])
    assert classifier.score(TEST, names[TEST_LABELS]) > 0.9


def test_learning_in_tasks_leaves_sorted_classes_to_meta_estimators() -> None:
    classifier = learned(TRAIN, TRAIN_LABELS, TASKS["five tasks, mixed"], AMGCClassifier())
    calibrated = CalibratedClassifierCV(FrozenEstimator(classifier)).fit(TEST[:300], TEST_LABELS[:300])
    assert calibrated.score(TEST[300:], TEST_LABELS[300:]) > 0.93
