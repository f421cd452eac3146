"""`AMGCClassifier` raises clear errors for invalid input, and does not change."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from digits import FORMS, same_statistics, state
from sklearn.exceptions import NotFittedError

from amgc import AMGCClassifier

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 4)) + 5 * np.eye(3, 4).repeat(10, 0)
Y = np.repeat([0, 1, 2], 10)
BAD = X.copy()
BAD[[17, 20, 25], [0, 1, 3]] = np.nan, np.inf, -np.inf


def fitted(**parameters: Any) -> AMGCClassifier:
    return AMGCClassifier(**parameters).partial_fit(X[:20], Y[:20]).partial_fit(X[20:], Y[20:])


def assert_raises_and_changes_nothing(
    classifier: AMGCClassifier, call: Callable[[], object], error: type[Exception], match: str
) -> None:
    before = state(classifier)
    twin = state(classifier)
    assert before == twin
    with pytest.raises(error, match=match) as caught:
        call()
    assert isinstance(caught.value, error) and str(caught.value)
    assert state(classifier) == before


DATA = {
    "no rows": (X[:0], Y[:0], "0 sample"),
    "no columns": (X[:, :0], Y, "0 feature"),
    "lists without rows": ([], [], "2D array|0 sample"),
    "NaN and infinity": (BAD, Y, r"3 of 30 rows.*first: row 17.*drop those rows"),
    "one dimension": (X[:, 0], Y, "2D array"),
    "three dimensions": (X[None], Y, "dim|2D"),
    "continuous labels": (X, Y + 0.5, "continuous"),
    "NaN labels": (X, np.where(Y == 1, np.nan, Y), "NaN"),
    "no labels": (X, None, "y"),
    "too few labels": (X, Y[:-1], "inconsistent"),
    "labels in two columns": (X, np.stack([Y, Y], 1), "1d array|shape"),
    "labels of several types": (X, np.array(["a", 1, "b"], dtype=object).repeat(10), "several types|strings"),
    "text features": (np.full((30, 4), "a"), Y, "could not convert|numeric"),
    "complex features": (X.astype(complex), Y, "[Cc]omplex"),
}


@pytest.mark.parametrize(("features", "labels", "match"), DATA.values(), ids=DATA.keys())
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("make", [AMGCClassifier, fitted], ids=["unfitted", "fitted"])
def test_unreadable_data_are_refused_and_change_nothing(features, labels, match: str, method: str, make) -> None:
    classifier = make()
    call = getattr(classifier, method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_raises_and_changes_nothing(classifier, lambda: call(features, labels), (ValueError, TypeError), match)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_errors_name_rows_that_are_not_finite(method: str) -> None:
    with pytest.raises(ValueError, match=r"3 of 30 rows.*first: row 17"):
        getattr(fitted(), method)(BAD)


@pytest.mark.parametrize("method", ["partial_fit", "predict", "predict_proba", "decision_function", "score"])
def test_another_number_of_features_is_refused(method: str) -> None:
    classifier = fitted()
    labels = (Y,) if method in ("partial_fit", "score") else ()
    for features in (X[:, :3], np.hstack([X, X])):
        call = getattr(classifier, method)
        match = f"{features.shape[1]} features.*expecting 4"
        assert_raises_and_changes_nothing(classifier, lambda: call(features, *labels), ValueError, match)  # noqa: B023


@pytest.mark.parametrize(
    ("known", "later"),
    [
        (np.array([0, 1]), np.array(["a", "b"])),
        (np.array(["a", "b"]), np.array([0, 1])),
        (np.array([True, False]), np.array(["a", "b"])),
        (np.array([0, 1]), np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]")),
        (np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]"), np.array([0, 1])),
    ],
    ids=[
        "numbers, then strings",
        "strings, then numbers",
        "booleans, then strings",
        "numbers, then days",
        "days, then numbers",
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_labels_of_another_kind_are_refused(known: np.ndarray, later: np.ndarray, form: str) -> None:
    y = np.repeat([0, 1], 10)
    classifier = AMGCClassifier(covariance=form).fit(X[:20], known[y])
    predictions = classifier.predict(X)
    other = AMGCClassifier(covariance=form).fit(X[:20], later[y])
    tensors = {name: tensor.clone() for name, tensor in classifier.statistics_.tensors().items()}
    for call in (lambda: classifier.partial_fit(X[:20], later[y]), lambda: classifier.merge(other)):
        with pytest.raises(TypeError, match=r"labels.*known|known.*labels|do not go with"):
            call()
        assert classifier.classes_.tolist() == sorted(known.tolist())
        assert sorted(classifier.statistics_.classes) == sorted(known.tolist())
        assert all((tensor == tensors[name]).all() for name, tensor in classifier.statistics_.tensors().items())
        assert (classifier.predict(X) == predictions).all()


@pytest.mark.parametrize("make", [AMGCClassifier, fitted], ids=["unfitted", "fitted"])
def test_labels_missing_from_the_announced_classes_are_refused(make) -> None:
    classifier = make()
    call = classifier.partial_fit
    assert_raises_and_changes_nothing(classifier, lambda: call(X, Y, classes=[0, 1]), ValueError, r"\[2\].*classes")
    assert_raises_and_changes_nothing(classifier, lambda: call(X, Y, classes=["0", "1", "2"]), ValueError, "classes")


# ---- forget and merge ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [3, "0", -1, None, 0.5, (0, 1)])
@pytest.mark.parametrize("form", FORMS)
def test_forgetting_an_unknown_class_lists_the_known_ones(label: object, form: str) -> None:
    classifier = fitted(covariance=form)
    assert_raises_and_changes_nothing(classifier, lambda: classifier.forget(label), KeyError, "known are 0, 1, 2")
    with pytest.raises(KeyError) as caught:
        classifier.forget(label)
    assert repr(label) in str(caught.value)


@pytest.mark.parametrize("label", [[0], np.array([0, 1]), float("nan")], ids=["list", "array", "NaN"])
def test_forgetting_what_cannot_be_a_label_is_refused(label: object) -> None:
    classifier = fitted()
    assert_raises_and_changes_nothing(classifier, lambda: classifier.forget(label), (TypeError, ValueError, KeyError), r".")


def test_forgetting_with_warnings_as_errors_changes_nothing() -> None:
    classifier = fitted(covariance="shared")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_raises_and_changes_nothing(classifier, lambda: classifier.forget(0), UserWarning, "shared covariance")
    assert classifier.classes_.tolist() == classifier.statistics_.classes == [0, 1, 2]


def named(columns: str) -> AMGCClassifier:
    return AMGCClassifier().fit(pd.DataFrame(X, columns=list(columns)), Y)


@pytest.mark.parametrize(
    ("mine", "other", "error", "match"),
    [
        pytest.param(fitted(), AMGCClassifier().fit(X[:, :3], Y), ValueError, "3 features.* 4", id="dimension"),
        pytest.param(fitted(), fitted(covariance="diagonal"), ValueError, "'diagonal'.*'full'", id="form"),
        pytest.param(fitted(covariance="shared"), fitted(), ValueError, "'full'.*'shared'", id="shared"),
        pytest.param(named("abcd"), named("abce"), ValueError, "feature names", id="feature names"),
        pytest.param(named("abcd"), named("bacd"), ValueError, "feature names", id="order of feature names"),
        pytest.param(fitted(), fitted().statistics_, TypeError, "AMGCClassifier.*ClassStatistics", id="statistics"),
        pytest.param(fitted(), None, TypeError, "AMGCClassifier.*NoneType", id="nothing"),
        pytest.param(fitted(), AMGCClassifier(), NotFittedError, "not fitted", id="unfitted other"),
        pytest.param(AMGCClassifier(), fitted(), NotFittedError, "not fitted", id="unfitted itself"),
    ],
)
def test_statistics_that_do_not_fit_are_not_merged(
    mine: AMGCClassifier, other: Any, error: type[Exception], match: str
) -> None:
    theirs = state(other) if isinstance(other, AMGCClassifier) else None
    assert_raises_and_changes_nothing(mine, lambda: mine.merge(other), error, match)
    if theirs is not None:
        assert state(other) == theirs


# ---- parameters ----------------------------------------------------------------------------------------------------------

PARAMETERS = [
    ({"margin": -0.1}, "margin.*-0.1"),
    ({"margin": float("nan")}, "margin.*nan"),
    ({"margin": float("inf")}, "margin.*inf"),
    ({"margin": "0.4"}, "margin.*'0.4'"),
    ({"margin": None}, "margin.*None"),
    ({"covariance": "round"}, "covariance.*full.*'round'"),
    ({"covariance": None}, "covariance.*full.*None"),
    ({"balance": "none"}, "balance.*per_class.*'none'"),
    ({"dtype": "float16"}, "dtype.*float32.*'float16'"),
    ({"dtype": np.float32}, "dtype.*float32"),
    ({"dtype": ["float32"]}, "dtype.*float32"),
    ({"shrinkage": "automatic"}, "shrinkage.*auto.*'automatic'"),
    ({"shrinkage": "ab"}, "shrinkage.*auto.*'ab'"),
    ({"shrinkage": ("a", "b")}, "shrinkage.*auto"),
    ({"shrinkage": -0.1}, "shrinkage.*0 to 1.*-0.1"),
    ({"shrinkage": 1.1}, "shrinkage.*0 to 1.*1.1"),
    ({"shrinkage": (0.5, 2.0)}, "shrinkage.*0 to 1"),
    ({"shrinkage": float("nan")}, "shrinkage.*nan"),
    ({"shrinkage": (0.5,)}, "shrinkage.*one or two"),
    ({"shrinkage": (0.1, 0.2, 0.3)}, "shrinkage.*one or two"),
    ({"shrinkage": None}, "shrinkage.*None"),
    ({"rank": 0}, "rank.*at least 1.*0"),
    ({"rank": -3}, "rank.*at least 1.*-3"),
    ({"rank": "many"}, "rank.*'many'"),
    ({"rank": 2.5}, "rank.*2.5"),
    ({"device": "moon"}, "moon|device"),
]


def never_solved(*_args: object, **_kwargs: object) -> None:
    pytest.fail("a bad option must be refused before anything is solved with it")


@pytest.mark.parametrize(("parameters", "match"), PARAMETERS, ids=[str(parameters) for parameters, _ in PARAMETERS])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_an_unknown_option_is_named_with_the_choices(
    parameters: dict[str, Any], match: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amgc.core.incremental.solve_regularised", never_solved)
    classifier = AMGCClassifier(**parameters)  # as everywhere in scikit-learn, the constructor checks nothing
    before = dict(vars(classifier))
    with pytest.raises((ValueError, TypeError, RuntimeError), match=match):
        getattr(classifier, method)(X, Y)
    assert vars(classifier) == before


@pytest.mark.parametrize(("parameters", "match"), PARAMETERS, ids=[str(parameters) for parameters, _ in PARAMETERS])
def test_a_bad_option_set_later_spoils_nothing_that_was_learned(
    parameters: dict[str, Any], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = fitted()
    expected, good = state(classifier), classifier.get_params()
    monkeypatch.setattr("amgc.core.incremental.solve_regularised", never_solved)
    classifier.set_params(**parameters)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=match):
        classifier.fit(X, Y)
    assert state(classifier.set_params(**good)) == expected


@pytest.mark.parametrize("parameters", [{"margin": -0.5}, {"margin": float("nan")}, {"balance": "none"}, {"shrinkage": 2.0}])
def test_a_bad_option_set_before_the_lazy_solve_is_refused(parameters: dict[str, Any]) -> None:
    classifier = AMGCClassifier().partial_fit(X[:20], Y[:20]).partial_fit(X[20:], Y[20:])
    classifier.set_params(**parameters)
    with pytest.raises(ValueError, match=next(iter(parameters))):
        classifier.predict(X)
    assert classifier.set_params(**AMGCClassifier().get_params()).predict(X).tobytes() == fitted().predict(X).tobytes()


def test_a_fit_that_fails_while_solving_keeps_the_old_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = fitted()
    before = state(classifier)

    def broken(*_args: object, **_kwargs: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("amgc.core.incremental.solve_regularised", broken)
        with pytest.raises(MemoryError):
            classifier.fit(X[:, :2], Y)
    assert state(classifier) == before


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.predict(X),
        lambda one: one.predict_proba(X),
        lambda one: one.decision_function(X),
        lambda one: one.score(X, Y),
        lambda one: one.forget(0),
        lambda one: one.save("never"),
        lambda one: one.coef_,
        lambda one: one.intercept_,
        lambda one: one.margins_,
        lambda one: one.head_,
        lambda one: one.temperature_,
    ],
    ids=[
        "predict",
        "predict_proba",
        "decision_function",
        "score",
        "forget",
        "save",
        "coef_",
        "intercept_",
        "margins_",
        "head_",
        "temperature_",
    ],
)
def test_an_unfitted_classifier_says_that_it_must_be_fitted_first(ask) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        ask(AMGCClassifier())


def test_an_unfitted_classifier_has_no_fitted_attributes() -> None:
    for name in ("classes_", "coef_", "intercept_", "margins_", "head_", "temperature_", "statistics_", "n_features_in_"):
        assert not hasattr(AMGCClassifier(), name)


def test_after_an_error_learning_continues_as_if_nothing_had_happened() -> None:
    classifier, calm = AMGCClassifier(), AMGCClassifier()
    for labels in ([0, 1], [2]):
        rows = np.isin(Y, labels)
        for features, given in ((BAD[:20], Y[:20]), (X[:, :2], Y), (X, Y + 0.5)):
            if features.shape[1] != 4 and not hasattr(classifier, "classes_"):
                continue
            with pytest.raises(ValueError, match=r"."):
                classifier.partial_fit(features, given)
        with pytest.raises((KeyError, NotFittedError)):
            classifier.forget("nobody")
        for one in (classifier, calm):
            one.partial_fit(X[rows], Y[rows])
    assert same_statistics(classifier, calm)
    assert classifier.predict_proba(X).tobytes() == calm.predict_proba(X).tobytes()


@pytest.mark.parametrize("change", [{"covariance": "diagonal"}, {"dtype": "float64"}])
def test_parameters_of_the_stored_statistics_cannot_change_after_fit(change: dict) -> None:
    classifier = fitted().set_params(**change)
    more = np.random.default_rng(1).normal(size=(6, classifier.n_features_in_))
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"{name} is .* call fit to start again"):
        classifier.partial_fit(more, classifier.classes_[[0, 0, 0, 1, 1, 1]])
    assert classifier.set_params(**{name: AMGCClassifier().get_params()[name]}).predict(more).shape == (6,)


@pytest.mark.parametrize("device", ["nonsense", 3.5])
def test_an_unavailable_device_is_named(device) -> None:
    with pytest.raises(ValueError, match=r"device .* is not available here"):
        AMGCClassifier(device=device).fit([[0.0], [1.0]], [0, 1])


def test_a_file_made_on_an_absent_device_says_how_to_load_it(tmp_path, monkeypatch) -> None:
    path = tmp_path / "model"
    classifier = fitted()
    monkeypatch.setattr(classifier, "device", "meta:7", raising=False)
    classifier.save(path)
    with pytest.raises(ValueError, match="use device='cpu'"):
        AMGCClassifier.load(path, device="nonsense")
    assert AMGCClassifier.load(path, device="cpu").device == "cpu"
