"""`AMGCClassifier`: what it learns, in tasks or at once; tests/test_estimator_tools.py has scikit-learn's tools."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from digits import FORMS, TASKS, blobs, calibration_error, learned, part, same_statistics, split
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from amgc import AMGCClassifier, Covariances, margins, solve_head
from amgc.core.solver import solve

pytestmark = pytest.mark.cpus

TRAIN, TEST, TRAIN_LABELS, TEST_LABELS = split()
TOLERANCE = {"float32": 1e-3, "float64": 1e-6}


@pytest.fixture(scope="module")
def whole() -> AMGCClassifier:
    return AMGCClassifier(dtype="float64").fit(TRAIN, TRAIN_LABELS)


def assert_same_classifier(one: AMGCClassifier, two: AMGCClassifier, tolerance: float, X: np.ndarray = TEST) -> None:
    """Statistics in float32 determine what a coefficient adds to scores, but not the coefficient itself where a feature hardly
    ever varies: pixel 56 is not zero in one of the training images, and the pooled covariance is singular without it.
    """
    assert one.classes_.tolist() == two.classes_.tolist()
    pooled = two.statistics_.pooled().double().numpy()
    deviation = np.sqrt(pooled if pooled.ndim == 1 else pooled.diagonal()) if two.dtype == "float32" else 1.0
    for name, unit in (("coef_", deviation), ("intercept_", 1.0)):
        mine, theirs = getattr(one, name) * unit, getattr(two, name) * unit
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * np.abs(theirs).max(), err_msg=name)
    assert one.temperature_ == pytest.approx(two.temperature_, rel=tolerance)
    np.testing.assert_allclose(one.predict_proba(X), two.predict_proba(X), rtol=0, atol=tolerance)


# ---- learning in tasks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", TASKS.values(), ids=TASKS.keys())
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_learning_in_tasks_equals_learning_at_once(tasks, dtype: str) -> None:
    once = AMGCClassifier(dtype=dtype).fit(TRAIN, TRAIN_LABELS)
    stepwise = learned(TRAIN, TRAIN_LABELS, tasks, AMGCClassifier(dtype=dtype))
    assert_same_classifier(stepwise, once, TOLERANCE[dtype])
    assert (stepwise.predict(TEST) == once.predict(TEST)).mean() > (0.999 if dtype == "float32" else 0.9999)


@pytest.mark.parametrize("form", FORMS)
def test_learning_in_tasks_equals_learning_at_once_in_every_covariance_form(form: str) -> None:
    once = AMGCClassifier(covariance=form, dtype="float64").fit(TRAIN, TRAIN_LABELS)
    for name in ("five tasks, mixed", "one class at a time, mixed"):
        stepwise = learned(TRAIN, TRAIN_LABELS, TASKS[name], AMGCClassifier(covariance=form, dtype="float64"))
        assert_same_classifier(stepwise, once, TOLERANCE["float64"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_rounding_does_not_move_the_classifier(form: str, seed: int) -> None:
    """Features that differ in their last bits, like sums in another order or on another machine."""
    bits = np.random.default_rng(seed).integers(-4, 5, TRAIN.shape)
    one, two = (
        AMGCClassifier(covariance=form, dtype="float64").fit(X, TRAIN_LABELS)
        for X in (TRAIN, TRAIN * (1 + bits * np.finfo(np.float64).eps))
    )
    assert_same_classifier(one, two, TOLERANCE["float64"])


def test_a_factor_of_all_columns_gives_the_classifier_of_the_whole_matrix(whole: AMGCClassifier) -> None:
    """Also its temperature, although that is computed from draws."""
    factor = AMGCClassifier(covariance="lowrank", rank=64, dtype="float64").fit(TRAIN, TRAIN_LABELS)
    assert_same_classifier(factor, whole, TOLERANCE["float64"])


@pytest.mark.parametrize("form", ["full", "shared"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [7, 100])
def test_small_batches_in_any_order_equal_one_batch(form: str, dtype: str, size: int) -> None:
    once = AMGCClassifier(covariance=form, dtype=dtype).fit(TRAIN, TRAIN_LABELS)
    batched = AMGCClassifier(covariance=form, dtype=dtype)
    order = np.random.default_rng(0).permutation(len(TRAIN))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        batched.partial_fit(TRAIN[rows], TRAIN_LABELS[rows])
    assert_same_classifier(batched, once, TOLERANCE[dtype])


def test_asking_between_tasks_changes_nothing() -> None:
    asked, silent = AMGCClassifier(), AMGCClassifier()
    for task in TASKS["five tasks"]:
        for classifier in (asked, silent):
            classifier.partial_fit(*part(TRAIN, TRAIN_LABELS, task))
        asked.predict(TEST)
    assert asked.coef_.tobytes() == silent.coef_.tobytes()
    assert asked.predict_proba(TEST).tobytes() == silent.predict_proba(TEST).tobytes()


def test_classes_grow_sorted_while_statistics_keep_the_order_of_arrival() -> None:
    classifier = AMGCClassifier()
    arrival: list[int] = []
    for task in TASKS["five tasks, mixed"]:
        X, y = part(TRAIN, TRAIN_LABELS, task)
        classifier.partial_fit(X, y)
        arrival += list(dict.fromkeys(y.tolist()))
        assert classifier.classes_.tolist() == sorted(arrival)
        assert classifier.statistics_.classes == arrival
        assert classifier.coef_.shape == (len(arrival), 64)
        assert classifier.predict_proba(TEST).shape == (len(TEST), len(arrival))


@pytest.mark.parametrize("tasks", TASKS.values(), ids=TASKS.keys())
def test_digits_learned_in_tasks_are_remembered(tasks) -> None:
    classifier = learned(TRAIN, TRAIN_LABELS, tasks, AMGCClassifier())
    assert classifier.score(TEST, TEST_LABELS) >= 0.95


def test_it_beats_refitting_on_the_new_classes_only() -> None:
    classifier, seen = AMGCClassifier(), []
    for task in TASKS["five tasks"]:
        X, y = part(TRAIN, TRAIN_LABELS, task)
        classifier.partial_fit(X, y)
        seen += task
        refitted = LogisticRegression(max_iter=1000).fit(X, y)
        held_out = part(TEST, TEST_LABELS, seen)
        if len(seen) > 2:
            assert classifier.score(*held_out) > refitted.score(*held_out) + 0.3
    assert refitted.score(TEST, TEST_LABELS) < 0.25


def test_more_data_for_a_known_class_refines_it(whole: AMGCClassifier) -> None:
    few = np.concatenate([np.flatnonzero(k == TRAIN_LABELS)[:4] for k in range(10)])
    rest = np.setdiff1d(np.arange(len(TRAIN)), few)
    classifier = AMGCClassifier(dtype="float64").fit(TRAIN[few], TRAIN_LABELS[few])
    before = classifier.score(TEST, TEST_LABELS)
    classifier.partial_fit(TRAIN[rest], TRAIN_LABELS[rest])
    assert classifier.score(TEST, TEST_LABELS) > before + 0.02
    assert classifier.statistics_.count.tolist() == np.bincount(TRAIN_LABELS)[classifier.statistics_.classes].tolist()
    assert_same_classifier(classifier, whole, 1e-6)


def test_fit_starts_from_nothing() -> None:
    classifier = AMGCClassifier().fit(*part(TRAIN, TRAIN_LABELS, [0, 1, 2]))
    classifier.fit(TRAIN[:, :10], np.where(TRAIN_LABELS < 5, "few", "many"))
    assert classifier.classes_.tolist() == ["few", "many"]
    assert classifier.n_features_in_ == 10
    assert classifier.score(TEST[:, :10], np.where(TEST_LABELS < 5, "few", "many")) > 0.5


def test_repeated_runs_are_bit_identical() -> None:
    for make in (AMGCClassifier, AMGCClassifier.paper):
        one, two = (learned(TRAIN, TRAIN_LABELS, TASKS["five tasks"], make()) for _ in range(2))
        torch.manual_seed(7)  # no part of it may depend on the global seed
        np.random.seed(7)
        assert one.coef_.tobytes() == two.coef_.tobytes()
        assert one.predict_proba(TEST).tobytes() == two.predict_proba(TEST).tobytes()
        assert one.predict_proba(TEST).tobytes() == one.predict_proba(TEST).tobytes()


# ---- the margin ----------------------------------------------------------------------------------------------------------


def variance_floor(classifier: AMGCClassifier) -> torch.Tensor:
    """Return 1e-4 of each feature's total variance, within the classes and between their means."""
    statistics = classifier.statistics_
    freedom = (statistics.count - 1).double()
    variances = torch.stack([sigma.diagonal().double() for sigma in statistics.covariance])
    within = freedom @ variances / freedom.sum()
    total = within + statistics.mean.var(0, correction=0)
    return (1e-4 * total).clamp_min(1e-12 * float(total.mean()))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_paper_enlarges_exactly_the_classes_that_are_not_in_the_latest_call(dtype: str) -> None:
    classifier, seen = AMGCClassifier.paper(dtype=dtype), set()
    for task in ([0, 1, 2], [3, 4], [5], [1, 6]):  # an old class occurs again in the last task
        classifier.partial_fit(*part(TRAIN, TRAIN_LABELS, task))
        seen |= set(task)
        new = np.isin(classifier.classes_, task)
        assert classifier.classes_.tolist() == sorted(seen)
        assert (classifier.margins_[new] == 0).all()
        assert (classifier.margins_[~new] > 0).all()
        expected = solve_head(
            classifier.statistics_,
            margin=0.4,
            new=task,
            balance="two_means",
            ridge=variance_floor(classifier),
            tolerance=1e-5,
        )
        rows = [classifier.statistics_.index(label) for label in classifier.classes_]
        weight, bias = expected.weight.numpy()[rows], expected.bias.numpy()[rows]
        share = {"float32": 1e-2, "float64": 1e-6}[dtype]  # two solves, up to the tolerance that single precision allows
        np.testing.assert_allclose(classifier.coef_, weight, rtol=0, atol=share * np.abs(weight).max())
        np.testing.assert_allclose(classifier.intercept_, bias, rtol=0, atol=share * np.abs(bias).max())


def test_paper_gives_the_papers_values_and_takes_changes() -> None:
    paper = AMGCClassifier.paper()
    assert (paper.margin, paper.balance, paper.shrinkage, paper.covariance) == (0.4, "two_means", (0.0, 0.0), "full")
    assert AMGCClassifier.paper(margin=0.1, dtype="float64").get_params()["margin"] == 0.1


def test_a_margin_does_nothing_when_all_classes_come_together() -> None:
    for balance in ("per_class", "two_means"):
        one, two = (AMGCClassifier(margin=m, balance=balance, dtype="float64").fit(TRAIN, TRAIN_LABELS) for m in (0.0, 0.4))
        assert_same_classifier(one, two, 1e-9)
        assert (two.margins_ == 0).all()


def test_margins_are_those_of_the_paper() -> None:
    tasks = TASKS["five tasks, mixed"]
    unshrunk = AMGCClassifier(margin=0.4, shrinkage=0.0, dtype="float64")
    classifier = learned(TRAIN, TRAIN_LABELS, tasks, unshrunk)
    rows = [classifier.statistics_.index(label) for label in classifier.classes_]
    expected = margins(classifier.head_.weight, classifier.statistics_.covariance, 0.4).numpy()[rows]
    expected[np.isin(classifier.classes_, tasks[-1])] = 0
    np.testing.assert_allclose(classifier.margins_, expected, rtol=1e-12)
    for k, label in enumerate(classifier.classes_):  # λ/2 w_kᵀ Λ_k w_k, the variances taken from the data
        variances = TRAIN[label == TRAIN_LABELS].var(0, ddof=1)
        own = 0.0 if label in tasks[-1] else 0.2 * float(classifier.coef_[k] ** 2 @ variances)
        assert classifier.margins_[k] == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_margins_exist_in_every_covariance_form(form: str) -> None:
    classifier = learned(TRAIN, TRAIN_LABELS, TASKS["two tasks"], AMGCClassifier(margin=0.4, covariance=form))
    assert classifier.margins_.shape == (10,)
    assert (classifier.margins_[:5] > 0).all() and (classifier.margins_[5:] == 0).all()


def test_a_margin_favours_old_classes() -> None:
    plain, enlarged = (learned(TRAIN, TRAIN_LABELS, TASKS["two tasks"], AMGCClassifier(margin=m)) for m in (0.0, 1.0))
    old = TEST_LABELS < 5
    assert (enlarged.predict_proba(TEST[~old])[:, :5].sum(1)).mean() > (plain.predict_proba(TEST[~old])[:, :5].sum(1)).mean()


# ---- merge and forget ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_merging_disjoint_classes_equals_seeing_all_data(form: str) -> None:
    whole = AMGCClassifier(covariance=form, dtype="float64").fit(TRAIN, TRAIN_LABELS)
    one, two = (
        AMGCClassifier(covariance=form, dtype="float64").fit(*part(TRAIN, TRAIN_LABELS, task))
        for task in ([1, 3, 5, 7, 9], [0, 2, 4, 6, 8])
    )
    assert one.merge(two) is one
    assert_same_classifier(one, whole, TOLERANCE["float64"])


@pytest.mark.parametrize("form", ["full", "diagonal", "shared"])
def test_merging_overlapping_classes_equals_seeing_all_data(form: str) -> None:
    whole = AMGCClassifier(covariance=form, dtype="float64").fit(TRAIN, TRAIN_LABELS)
    first = (TRAIN_LABELS < 3) | ((TRAIN_LABELS < 7) & (np.arange(len(TRAIN)) % 3 > 0))
    one = AMGCClassifier(covariance=form, dtype="float64").fit(TRAIN[first], TRAIN_LABELS[first])
    two = AMGCClassifier(covariance=form, dtype="float64").fit(TRAIN[~first], TRAIN_LABELS[~first])
    one.merge(two)
    rows = [one.statistics_.index(k) for k in range(10)]
    assert one.statistics_.count[rows].tolist() == np.bincount(TRAIN_LABELS).tolist()
    assert_same_classifier(one, whole, TOLERANCE["float64"])


def test_merging_leaves_the_other_classifier_alone() -> None:
    one, two = (AMGCClassifier().fit(*part(TRAIN, TRAIN_LABELS, task)) for task in ([0, 1], [1, 2]))
    copy = pickle.loads(pickle.dumps(two))
    one.merge(two).partial_fit(*part(TRAIN, TRAIN_LABELS, [2, 3]))
    assert same_statistics(two, copy)
    assert two.predict_proba(TEST).tobytes() == copy.predict_proba(TEST).tobytes()


def test_merging_with_itself_counts_every_sample_twice() -> None:
    classifier = AMGCClassifier(dtype="float64").fit(TRAIN, TRAIN_LABELS)
    twice = AMGCClassifier(dtype="float64").fit(np.tile(TRAIN, (2, 1)), np.tile(TRAIN_LABELS, 2))
    with pytest.warns(UserWarning, match="counts all its data twice"):
        classifier.merge(classifier)
    assert_same_classifier(classifier, twice, 1e-6)


def test_after_a_merge_the_latest_classes_of_both_are_new() -> None:
    one = learned(TRAIN, TRAIN_LABELS, [[0, 1], [2]], AMGCClassifier.paper())
    two = learned(TRAIN, TRAIN_LABELS, [[3], [4, 5]], AMGCClassifier.paper())
    assert (one.merge(two).margins_ == 0).tolist() == [False, False, True, False, True, True]


@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal"])
@pytest.mark.parametrize("label", [0, 6, 9])
def test_a_forgotten_class_was_never_seen(form: str, label: int) -> None:
    classifier = AMGCClassifier(covariance=form, dtype="float64").fit(TRAIN, TRAIN_LABELS)
    never = AMGCClassifier(covariance=form, dtype="float64")
    never.fit(*part(TRAIN, TRAIN_LABELS, set(range(10)) - {label}))
    assert classifier.forget(label) is classifier
    assert same_statistics(classifier, never)
    assert_same_classifier(classifier, never, 1e-9)
    assert label not in classifier.predict(TEST)


@pytest.mark.parametrize("tasks", [[[0, 1], [2, 3]], [[0, 1], [2]], [[0, 1], [2, 0]]], ids=str)
def test_a_class_forgotten_by_a_classifier_with_a_margin_was_never_seen(tasks) -> None:
    classifier = learned(TRAIN, TRAIN_LABELS, tasks, AMGCClassifier.paper(dtype="float64")).forget(2)
    rest = [[label for label in task if label != 2] for task in tasks]
    never = learned(TRAIN, TRAIN_LABELS, [task for task in rest if task], AMGCClassifier.paper(dtype="float64"))
    assert (classifier.margins_ > 0).tolist() == (never.margins_ > 0).tolist()
    assert_same_classifier(classifier, never, 1e-9)


def test_forgetting_from_a_shared_covariance_warns_that_its_part_stays() -> None:
    classifier = AMGCClassifier(covariance="shared").fit(TRAIN, TRAIN_LABELS)
    with pytest.warns(UserWarning, match="covariance='full'"):
        classifier.forget(3)
    assert 3 not in classifier.classes_
    assert classifier.score(*part(TEST, TEST_LABELS, set(range(10)) - {3})) > 0.93


@pytest.mark.parametrize("form", FORMS)
def test_a_classifier_of_two_joined_classes_equals_one_that_learned_them_as_one(form: str) -> None:
    classifier = AMGCClassifier(covariance=form, rank=64, dtype="float64").fit(TRAIN, TRAIN_LABELS)
    assert classifier.rename(7, 1, join=True) is classifier
    one = AMGCClassifier(covariance=form, rank=64, dtype="float64").fit(TRAIN, np.where(TRAIN_LABELS == 7, 1, TRAIN_LABELS))
    assert_same_classifier(classifier, one, TOLERANCE["float64"])


def test_renaming_a_class_changes_nothing_but_its_name() -> None:
    names = np.array(list("abcdefghij"))[TRAIN_LABELS]
    classifier = AMGCClassifier().fit(TRAIN, names)
    before, weights, fit = classifier.predict_proba(TEST), classifier.coef_, classifier.typicality(TEST)
    classifier.rename("b", "z")
    order = [0, 9, 1, 2, 3, 4, 5, 6, 7, 8]  # of the old columns among the new ones, which are sorted
    assert classifier.classes_.tolist() == list("acdefghijz")
    assert np.array_equal(classifier.coef_[order], weights)
    assert np.allclose(classifier.predict_proba(TEST)[:, order], before, rtol=1e-9, atol=1e-15)
    assert np.allclose(classifier.typicality(TEST), fit, rtol=1e-9)
    with pytest.raises(ValueError, match="join=True makes one class of 'a' and 'z'"):
        classifier.rename("a", "z")
    with pytest.raises(KeyError, match="'b' is not known"):
        classifier.rename("b", "y")
    with pytest.raises(TypeError, match="do not go with known ones"):
        classifier.rename("a", 3)
    assert np.array_equal(classifier.coef_[order], weights)


def test_a_class_forgotten_and_learned_again_is_as_before(whole: AMGCClassifier) -> None:
    classifier = AMGCClassifier(dtype="float64").fit(TRAIN, TRAIN_LABELS)
    classifier.forget(4).partial_fit(*part(TRAIN, TRAIN_LABELS, [4]))
    assert classifier.statistics_.classes[-1] == 4
    assert_same_classifier(classifier, whole, 1e-6)


def test_forgetting_takes_numpy_scalars_and_strings() -> None:
    assert 3 not in AMGCClassifier().fit(TRAIN, TRAIN_LABELS).forget(np.int64(3)).classes_
    names = TRAIN_LABELS.astype(str)
    assert "3" not in AMGCClassifier().fit(TRAIN, names).forget(names[names == "3"][0]).classes_


def test_forgetting_the_only_class_leaves_an_unfitted_classifier() -> None:
    classifier = AMGCClassifier(margin=0.1).fit(*part(TRAIN, TRAIN_LABELS, [5]))
    classifier.predict(TEST)
    classifier.forget(5)
    with pytest.raises(NotFittedError):
        check_is_fitted(classifier)
    with pytest.raises(NotFittedError):
        classifier.predict(TEST)
    assert not [
        name
        for name in dir(classifier)
        if name.endswith("_") and not name.startswith("_") and name != "classes_" and hasattr(classifier, name)
    ]
    assert not hasattr(classifier, "classes_")
    assert vars(classifier) == vars(AMGCClassifier(margin=0.1))
    classifier.partial_fit(TRAIN[:, :7], TRAIN_LABELS)  # even another dimension
    assert classifier.n_features_in_ == 7


def test_forgetting_the_only_class_keeps_the_users_metadata_requests() -> None:
    with config_context(enable_metadata_routing=True):
        classifier = AMGCClassifier().set_score_request(sample_weight=True).fit(*part(TRAIN, TRAIN_LABELS, [5]))
        classifier.forget(5)
        assert classifier.get_metadata_routing().score.requests["sample_weight"] is True


# ---- probabilities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["one task", "five tasks, mixed"])
def test_probabilities_are_calibrated_on_held_out_digits(seed: int, name: str) -> None:
    train, test, train_labels, test_labels = split(seed)
    classifier = learned(train, train_labels, TASKS[name], AMGCClassifier())
    assert calibration_error(classifier.predict_proba(test), classifier.predict(test) == test_labels) <= 0.05


@pytest.mark.parametrize("seed", range(4))
def test_probabilities_are_calibrated_after_few_samples_per_class(seed: int) -> None:
    train, test, train_labels, test_labels = split(seed)
    few = np.concatenate([np.flatnonzero(train_labels == k)[:20] for k in range(10)])
    classifier = AMGCClassifier().fit(train[few], train_labels[few])
    assert calibration_error(classifier.predict_proba(test), classifier.predict(test) == test_labels) <= 0.06


def test_calibration_is_better_than_the_raw_softmax_of_few_samples() -> None:
    few = np.concatenate([np.flatnonzero(k == TRAIN_LABELS)[:5] for k in range(10)])
    classifier = AMGCClassifier().fit(TRAIN[few], TRAIN_LABELS[few])
    scores = classifier.decision_function(TEST)
    raw = np.exp(scores - scores.max(1, keepdims=True))
    raw /= raw.sum(1, keepdims=True)
    correct = classifier.predict(TEST) == TEST_LABELS
    assert calibration_error(classifier.predict_proba(TEST), correct) < calibration_error(raw, correct)


@pytest.mark.parametrize("labels", [range(10), [3, 8], [4]], ids=["ten classes", "two classes", "one class"])
def test_probabilities_scores_and_predictions_agree(labels) -> None:
    X, y = part(TRAIN, TRAIN_LABELS, labels)
    classifier = AMGCClassifier().fit(X, y)
    probability = classifier.predict_proba(TEST)
    assert probability.shape == (len(TEST), len(labels))
    assert (probability >= 0).all()
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-12)
    np.testing.assert_array_equal(classifier.classes_[probability.argmax(1)], classifier.predict(TEST))
    scores = classifier.decision_function(TEST)
    linear = TEST @ classifier.coef_.T + classifier.intercept_
    if len(labels) == 2:
        assert scores.shape == (len(TEST),)
        np.testing.assert_allclose(scores, linear[:, 1] - linear[:, 0], rtol=0, atol=1e-9 * np.abs(linear).max())
        np.testing.assert_array_equal(classifier.predict(TEST), classifier.classes_[(scores > 0).astype(int)])
        logit = scores / classifier.temperature_
        np.testing.assert_allclose(probability[:, 1], 1 / (1 + np.exp(-logit)), atol=1e-12)
    else:
        np.testing.assert_allclose(scores, linear, rtol=0, atol=1e-9 * max(np.abs(linear).max(), 1))
        np.testing.assert_array_equal(classifier.predict(TEST), classifier.classes_[scores.argmax(1)])
        softmax = np.exp(scores / classifier.temperature_)
        np.testing.assert_allclose(probability, softmax / softmax.sum(1, keepdims=True), atol=1e-12)


def test_score_is_the_share_of_correct_answers() -> None:
    classifier = AMGCClassifier().fit(TRAIN, TRAIN_LABELS)
    assert classifier.score(TEST, TEST_LABELS) == (classifier.predict(TEST) == TEST_LABELS).mean()


def test_probabilities_of_far_away_points_are_finite() -> None:
    classifier = AMGCClassifier().fit(TRAIN, TRAIN_LABELS)
    probability = classifier.predict_proba(1e9 * TEST[:50])
    assert np.isfinite(probability).all()
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-12)


# ---- difficult features --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_features_far_from_zero_are_learned_in_single_precision(form: str) -> None:
    X, y = blobs()
    near = AMGCClassifier(covariance=form, dtype="float64").fit(X, y)
    far = AMGCClassifier(covariance=form)
    rows = np.random.default_rng(1).permutation(len(X))
    for start in range(0, len(rows), 10):
        far.partial_fit((X + 1e4)[rows[start : start + 10]].astype(np.float32), y[rows[start : start + 10]])
    assert far.score((X + 1e4).astype(np.float32), y) == 1.0
    # 1e4 leaves a single-precision number three digits behind the point
    assert np.abs(far.predict_proba(X + 1e4) - near.predict_proba(X)).max() < 2e-2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1e6, 1e-6])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_features_unit_does_not_matter_if_features_are_standardized(form: str, scale: float, dtype: str) -> None:
    unit = np.ones(64)
    unit[[10, 20, 30, 43]] = scale
    # Which directions a factor of fewer columns keeps depends on the units; one of all columns keeps everything.
    one, two = (AMGCClassifier(covariance=form, rank=64, dtype=dtype, standardize=True) for _ in range(2))
    one.fit(TRAIN, TRAIN_LABELS)
    two.fit(TRAIN * unit, TRAIN_LABELS)
    assert (one.predict(TEST) == two.predict(TEST * unit)).mean() > (0.99 if dtype == "float32" else 0.995)


@pytest.mark.parametrize("form", FORMS)
def test_features_of_very_different_units_are_standardized_by_default(form: str) -> None:
    unit = np.geomspace(1, 1e8, 64)
    one, two = (
        AMGCClassifier(covariance=form, **chosen).fit(TRAIN * unit, TRAIN_LABELS) for chosen in ({}, {"standardize": True})
    )
    assert one.coef_.tobytes() == two.coef_.tobytes()
    assert one.score(TEST * unit, TEST_LABELS) > 0.85


def test_a_features_unit_matters_without_standardize() -> None:
    unit = np.ones(64)
    unit[20] = 1e6
    one = AMGCClassifier(standardize=False).fit(TRAIN, TRAIN_LABELS)
    two = AMGCClassifier(standardize=False).fit(TRAIN * unit, TRAIN_LABELS)
    assert (one.predict(TEST) == two.predict(TEST * unit)).mean() < 0.95


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(lambda X: np.full((len(X), 2), 7.0), id="constant"),
        pytest.param(lambda X: np.zeros((len(X), 2)), id="zero"),
        pytest.param(lambda X: X[:, :2], id="duplicate"),
        pytest.param(lambda X: np.repeat(X[:, :1], 3, axis=1), id="three times the same"),
        pytest.param(lambda X: X[:, :2] - X[:, 1:3], id="a linear combination"),
    ],
)
def test_features_that_add_nothing_do_no_harm(form: str, standardize: bool, extra) -> None:
    X, y = blobs(count=40)
    test, test_labels = blobs(seed=1)
    classifier = AMGCClassifier(covariance=form, standardize=standardize).fit(np.hstack([X, extra(X)]), y)
    test = np.hstack([test, extra(test)])
    assert classifier.score(test, test_labels) > 0.98
    assert np.isfinite(classifier.predict_proba(test)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_constant_feature_has_no_weight(form: str, dtype: str) -> None:
    constant = np.ptp(TRAIN, axis=0) == 0
    assert constant.sum() >= 2
    classifier = AMGCClassifier(covariance=form, dtype=dtype).fit(TRAIN, TRAIN_LABELS)
    np.testing.assert_allclose(classifier.coef_[:, constant], 0, atol=1e-6)


def test_a_constant_feature_changes_no_prediction() -> None:
    one = AMGCClassifier(dtype="float64").fit(TRAIN, TRAIN_LABELS)
    two = AMGCClassifier(dtype="float64").fit(np.hstack([TRAIN, np.full((len(TRAIN), 1), 3.0)]), TRAIN_LABELS)
    np.testing.assert_allclose(two.coef_[:, -1], 0, atol=1e-9)
    held_out = np.hstack([TEST, np.full((len(TEST), 1), 3.0)])
    assert (two.predict(held_out) == one.predict(TEST)).mean() > 0.995


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [AMGCClassifier, AMGCClassifier.paper])
def test_identical_samples_give_finite_answers(form: str, make) -> None:
    X, y = np.full((12, 3), 2.5), np.repeat([0, 1, 2], 4)
    probability = make(covariance=form).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(probability, 1 / 3, atol=1e-6)  # nothing distinguishes them


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [AMGCClassifier, AMGCClassifier.paper])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_one_sample_per_class_gives_the_nearest_class(form: str, make, at_once: bool) -> None:
    X, y = blobs(count=1, dim=4, classes=4)
    classifier = make(covariance=form)
    if at_once:
        classifier.fit(X, y)
    else:
        for row, label in zip(X, y, strict=True):
            classifier.partial_fit([row], [label])
    assert classifier.predict(X).tolist() == y.tolist()
    test, test_labels = blobs(seed=1, dim=4, classes=4)
    assert classifier.score(test, test_labels) > 0.9
    assert np.isfinite(classifier.predict_proba(test)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [AMGCClassifier, AMGCClassifier.paper])
def test_one_class_only_is_always_predicted(form: str, make) -> None:
    X, y = blobs(classes=1)
    classifier = make(covariance=form).fit(X, y)
    assert (classifier.predict(X) == 0).all()
    assert (classifier.predict_proba(X) == 1).all()
    assert classifier.decision_function(X).shape == (len(X), 1)
    assert np.isfinite(classifier.margins_).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_class_of_one_sample_beside_large_ones_is_learned(form: str) -> None:
    X, y = blobs()
    keep = (y != 2) | (np.arange(len(y)) == 130)
    classifier = AMGCClassifier(covariance=form).fit(X[keep], y[keep])
    test, test_labels = blobs(seed=1)
    assert classifier.score(test, test_labels) > 0.95


@pytest.mark.parametrize("form", FORMS)
def test_many_more_features_than_samples_are_learned(form: str) -> None:
    X, y = blobs(count=5, dim=300)
    test, test_labels = blobs(seed=1, count=20, dim=300)
    classifier = AMGCClassifier(covariance=form).fit(X, y)
    assert np.isfinite(classifier.coef_).all()
    assert classifier.score(test, test_labels) > 0.8


@pytest.mark.parametrize("form", FORMS)
def test_one_feature_is_enough(form: str) -> None:
    X, y = blobs(dim=1, classes=1)
    X, y = np.vstack([X, -X]), np.repeat(["plus", "minus"], len(X))
    assert AMGCClassifier(covariance=form).fit(X, y).score(X, y) == 1.0


def test_a_tuple_of_shrinkages_is_applied_in_its_order() -> None:
    statistics = AMGCClassifier(dtype="float64").fit(TRAIN, TRAIN_LABELS).statistics_
    freedom = (statistics.count - 1).double()
    pooled = torch.tensordot(freedom / freedom.sum(), statistics.covariance, dims=1)
    for shrinkage, (a, b) in {0.3: (0.3, 0.0), (0.3, 0.2): (0.3, 0.2), (0, 1): (0.0, 1.0)}.items():
        classifier = AMGCClassifier(shrinkage=shrinkage, dtype="float64").fit(TRAIN, TRAIN_LABELS)
        mixed = (1 - b) * ((1 - a) * statistics.covariance + a * pooled) + b * torch.diag(pooled.diagonal())
        head = solve(
            statistics.mean,
            Covariances(full=mixed),
            is_new=torch.ones(10, dtype=torch.bool),
            margin=0.0,
            balance="per_class",
            ridge=variance_floor(classifier),
            tolerance=1e-10,
        )
        rows = [statistics.index(label) for label in classifier.classes_]
        expected = head.weight.numpy()[rows]
        np.testing.assert_allclose(classifier.coef_, expected, rtol=0, atol=3e-2 * np.abs(expected).max())


def test_unequal_class_sizes_do_not_hide_the_small_class() -> None:
    X, y = make_classification(600, 10, n_informative=5, weights=[0.95], class_sep=1.5, flip_y=0, random_state=0)
    classifier = AMGCClassifier().fit(X, y)
    assert (classifier.predict(X[y == 1]) == 1).mean() > 0.8


def test_the_heads_certificate_says_that_it_is_solved(whole: AMGCClassifier) -> None:
    head = whole.head_
    assert head.converged and head.gap <= 1e-5 * max(head.loss, 0.01)
    rows = [whole.statistics_.index(label) for label in whole.classes_]
    np.testing.assert_array_equal(head.weight.numpy()[rows], whole.coef_)


def test_parameters_of_the_solve_take_effect_when_they_are_changed() -> None:
    classifier = learned(TRAIN, TRAIN_LABELS, TASKS["two tasks"], AMGCClassifier())
    before = classifier.coef_
    assert (classifier.margins_ == 0).all()
    classifier.set_params(margin=0.4)
    assert (classifier.margins_ > 0).sum() == 5
    assert not np.allclose(classifier.coef_, before)
    classifier.set_params(margin=0.0)
    np.testing.assert_array_equal(classifier.coef_, before)


@pytest.mark.parametrize("make", [AMGCClassifier, AMGCClassifier.paper])
@pytest.mark.parametrize("asked", [False, True], ids=["before solving", "after solving"])
def test_a_pickled_classifier_answers_and_learns_as_before(make, asked: bool) -> None:
    classifier = learned(TRAIN, TRAIN_LABELS, [[0, 1], [2, 3]], make())
    if asked:
        classifier.predict(TEST)
    copy = pickle.loads(pickle.dumps(classifier))
    assert same_statistics(copy, classifier)
    assert copy.predict_proba(TEST).tobytes() == classifier.predict_proba(TEST).tobytes()
    for one in (copy, classifier):
        one.partial_fit(*part(TRAIN, TRAIN_LABELS, [3, 4]))
    assert copy.predict_proba(TEST).tobytes() == classifier.predict_proba(TEST).tobytes()
    assert copy.margins_.tobytes() == classifier.margins_.tobytes()


def test_a_pipeline_scales_and_then_learns_in_tasks() -> None:
    pipeline = make_pipeline(StandardScaler(), AMGCClassifier(dtype="float64"))
    pipeline.fit(TRAIN, TRAIN_LABELS)
    assert pipeline.score(TEST, TEST_LABELS) >= 0.95
    last = clone(pipeline[-1])
    scaled = pipeline[:-1].transform(TRAIN)
    learned(scaled, TRAIN_LABELS, TASKS["five tasks, mixed"], last)
    assert_same_classifier(last, pipeline[-1], 1e-6, pipeline[:-1].transform(TEST))
