"""The solver against scipy's optimiser on the written-out loss, and against LDA where it has a closed form."""

from __future__ import annotations

from dataclasses import replace

import digits
import numpy as np
import pytest
import reference
import scipy.spatial.distance
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import FORMS, assert_close, few, spd, tensor, within

from amgc.core.covariance import Covariances
from amgc.core.losses import distribution_loss
from amgc.core.solver import balanced, solve, solve_head
from amgc.core.statistics import ClassStatistics

pytestmark = pytest.mark.cpus

DIM, CLASSES = 3, 4
FORM_NAMES = ["full", "lowrank", "diagonal", "shared"]
TIGHT = 1e-10


def _statistics(form="full", seed=0, dtype=torch.float64, classes=CLASSES, dim=DIM, samples=15):
    """Statistics of overlapping classes, labelled "a", "b", …"""
    rng = np.random.default_rng(seed)
    statistics = ClassStatistics(dim, form, 2, dtype=dtype)
    for k in range(classes):
        mixing = rng.normal(size=(dim, dim)) / dim**0.5 + 0.5 * np.eye(dim)
        rows = rng.normal(size=(samples, dim)) @ mixing + 1.2 * rng.normal(size=dim)
        statistics.update(rows, [chr(ord("a") + k)] * samples)
    return statistics


def _dense(statistics):
    return reference.dense(statistics.covariances, len(statistics))


def _reference(statistics, margin=0.4, new=(), balance="per_class", ridge=0.0):
    """Class weights and covariances of L_AMGC, Eq. (separate), for `reference.db_loss` and `reference.minimise`."""
    is_new = np.array([label in new for label in statistics.classes])
    dense = reference.enlarge(_dense(statistics), np.where(is_new, 0.0, margin))
    dense = dense + np.diag(np.broadcast_to(np.asarray(ridge, float), statistics.dim))
    return statistics.mean.numpy(), dense, reference.class_shares(is_new, balance)


OPTIONS = {
    "paper": {"margin": 0.4, "new": ["c", "d"], "balance": "two_means"},
    "per class": {"margin": 0.4, "new": ["b"]},
    "all old": {"margin": 1.0, "balance": "two_means"},
    "all new": {"margin": 1.0, "new": ["a", "b", "c", "d"], "balance": "two_means"},
    "no margin, two means": {"margin": 0.0, "new": ["a"], "balance": "two_means"},
    "ridge": {"margin": 0.1, "new": ["d"], "ridge": 0.3},
    "ridge per feature": {"margin": 0.1, "new": ["d"], "ridge": [0.1, 0.0, 2.0]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("form", FORM_NAMES)
def test_the_head_is_that_of_an_independent_optimiser(form, options):
    statistics = _statistics(form)
    given_options = dict(options)
    if isinstance(options.get("ridge"), list):
        given_options["ridge"] = tensor(options["ridge"])
    head = solve_head(statistics, tolerance=TIGHT, **given_options)
    mean, dense, shares = _reference(statistics, **options)
    value, weight, bias = reference.minimise(mean, dense, shares)
    assert head.converged
    assert head.loss == pytest.approx(value, rel=1e-9)
    assert_close(head.weight, weight, 1e-4, "weight")
    assert_close(head.bias, bias, 1e-4, "bias")
    # The loss reported is that of the head returned, and there its gradient vanishes.
    there = reference.db_loss(head.weight.numpy(), head.bias.numpy(), mean, dense, class_weight=shares)
    assert there.value == pytest.approx(head.loss, rel=1e-10)
    assert max(np.abs(there.weight).max(), np.abs(there.bias).max()) < 1e-5


@pytest.mark.parametrize("form", FORM_NAMES)
def test_weights_and_biases_sum_to_zero(form):
    head = solve_head(_statistics(form), new=["d"])
    assert head.weight.sum(0).abs().max() < 1e-12 and head.bias.sum().abs() < 1e-12
    assert head.weight.dtype == head.bias.dtype == torch.float64


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_within_the_tolerance_of_the_minimum(form, dtype, seed):
    """A converged head at tolerance 1e-6 is at most about that far above a more exact solution."""
    statistics = _statistics(form, seed, dtype, classes=6, dim=5, samples=40)
    head = solve_head(statistics, new=["e", "f"])
    mean, dense, shares = _reference(statistics, new=["e", "f"])
    least = reference.minimise(mean, dense, shares)[0]
    there = reference.db_loss(head.weight.numpy(), head.bias.numpy(), mean, dense, class_weight=shares).value
    assert head.converged and head.gap <= 1e-6 * max(head.loss, 1e-2)
    rounding = {torch.float32: 1e-6, torch.float64: 1e-12}[dtype] * least
    assert there - least <= max(head.gap, 1e-6 * least) + rounding
    assert there == pytest.approx(head.loss, abs=10 * rounding)
    assert head.gradient_norm < 1e-2 and head.evaluations >= head.iterations


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-4])
def test_the_estimated_gap_bounds_the_true_one(form, tolerance):
    for seed in range(5):
        statistics = _statistics(form, seed, classes=5, dim=4)
        head = solve_head(statistics, tolerance=tolerance)
        tight = solve_head(statistics, tolerance=TIGHT)
        assert head.converged
        assert head.loss - tight.loss <= head.gap + 1e-14


@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal"])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-5])
@pytest.mark.parametrize("share", [1e-3, 1e-2, 1e-1])
def test_features_that_are_nearly_always_zero_do_not_hide_the_gap(form, tolerance, share):
    """In the corner pixels of digits the loss is flat. The gap is an estimate, right within a factor of ten."""
    features, _, labels, _ = digits.split()
    statistics = ClassStatistics(64, form, dtype=torch.float64).update(features, labels)
    ridge = tensor(np.where(features.var(0) > 0, share * features.var(0), 1.0))
    head, tight = (solve_head(statistics, margin=0.0, ridge=ridge, tolerance=t) for t in (tolerance, TIGHT))
    assert head.converged and tight.converged
    assert head.loss - tight.loss < 10 * head.gap


@pytest.mark.parametrize("form", FORM_NAMES)
def test_float32_and_float64_agree_to_three_digits(form):
    double = _statistics(form, 1, torch.float64)
    single = _statistics(form, 1, torch.float32)
    for options in ({"new": ["d"]}, {"new": ["d"], "balance": "two_means", "ridge": 0.01}):
        one = solve_head(double, tolerance=1e-10, **options)
        other = solve_head(single, tolerance=1e-7, **options)
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
        # Rows and biases weigh as they move scores: compare the scores at the class means.
        scores = [head.weight @ double.mean.T + head.bias[:, None] for head in (one, other)]
        assert_close(scores[1], scores[0].numpy(), 1e-3)


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_solving_again_gives_the_same_bits(form, dtype):
    statistics = _statistics(form, 2, dtype, classes=6, dim=8)
    one, other = (solve_head(statistics, new=["b"], balance="two_means") for _ in range(2))
    assert torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)
    assert replace(one, weight=None, bias=None) == replace(other, weight=None, bias=None)


@pytest.mark.parametrize("form", FORM_NAMES)
def test_solving_does_not_change_the_statistics(form):
    statistics = _statistics(form)
    before = {name: part.clone() for name, part in statistics.tensors().items()}
    solve_head(statistics, new=["a"], ridge=0.5)
    solve_head(statistics, ridge=torch.ones(DIM))
    for name, part in statistics.tensors().items():
        assert torch.equal(part, before[name])


@pytest.mark.parametrize("form", FORM_NAMES)
def test_a_warm_start_gives_the_same_head(form):
    seen = _statistics(form, classes=6)
    old = _statistics(form, classes=4)  # the same first classes
    if form != "shared":
        assert torch.equal(old.mean, seen.mean[:4])
    options = {"new": ["e", "f"], "tolerance": TIGHT}
    cold = solve_head(seen, **options)
    warm = solve_head(seen, start=solve_head(old), **options)
    assert warm.converged and warm.loss == pytest.approx(cold.loss, rel=1e-10)
    assert_close(warm.weight, cold.weight.numpy(), 1e-4)
    assert_close(warm.bias, cold.bias.numpy(), 1e-4)
    again = solve_head(seen, start=cold, new=["e", "f"])
    assert again.loss == pytest.approx(cold.loss, rel=1e-10) and again.iterations <= 6


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("order", [[1, 0, 2, 3], [3, 2, 1, 0], [1, 2, 3, 0]], ids=str)
def test_permuting_the_classes_permutes_the_head(form, order):
    statistics = _statistics(form)
    head = solve_head(statistics, new=["b"], tolerance=TIGHT)
    parts = statistics.covariances
    moved = replace(
        parts, **{n: getattr(parts, n)[order] for n in ("full", "factor", "diagonal") if getattr(parts, n) is not None}
    )
    is_new = torch.tensor([statistics.classes[i] == "b" for i in order])
    other = solve(statistics.mean[order], moved, is_new=is_new, margin=0.4, balance="per_class", ridge=0.0, tolerance=TIGHT)
    assert other.loss == pytest.approx(head.loss, rel=1e-11)
    assert_close(other.weight, head.weight[order].numpy(), 1e-4)
    assert_close(other.bias, head.bias[order].numpy(), 1e-4)


@pytest.mark.parametrize("form", ["full", "diagonal", "shared"])
def test_scaling_a_feature_divides_its_weights(form):
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(80, DIM)) + 2 * rng.normal(size=(4, DIM))[np.arange(80) % 4], np.arange(80) % 4
    scale = np.array([1e3, 1.0, 0.02])
    one, other = (
        solve_head(ClassStatistics(DIM, form, dtype=torch.float64).update(x, labels), new=[3], tolerance=TIGHT)
        for x in (features, features * scale)
    )
    assert_close(other.weight * tensor(scale), one.weight.numpy(), 1e-5)
    assert_close(other.bias, one.bias.numpy(), 1e-5)
    assert other.gradient_norm == pytest.approx(one.gradient_norm, abs=1e-6)


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moving_all_features_changes_only_the_bias(form, dtype):
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(80, DIM)) + 2 * rng.normal(size=(4, DIM))[np.arange(80) % 4], np.arange(80) % 4
    shift = np.array([1e4, -50.0, 3.0])
    one, other = (
        solve_head(ClassStatistics(DIM, form, DIM, dtype=dtype).update(x, labels), new=[3], tolerance=1e-9)
        for x in (features, features + shift)
    )
    relative = {torch.float32: 1e-3, torch.float64: 1e-5}[dtype]
    assert_close(other.weight, one.weight.numpy(), relative)
    moved_scores = other.weight @ tensor(shift) + other.bias
    assert_close(moved_scores - moved_scores.mean(), (one.bias - one.bias.mean()).numpy(), relative * 10)


# ---- one covariance for all: half of LDA ----------------------------------------------------------------------------------


def _shared(seed=0, classes=CLASSES, dim=DIM):
    rng = np.random.default_rng(seed)
    mean, common = 1.5 * rng.normal(size=(classes, dim)), spd(rng, dim)
    return mean, common


def _solve_shared(mean, common, margin=0.0, is_new=None, balance="per_class", ridge=0.0):
    is_new = [False] * len(mean) if is_new is None else is_new
    return solve(
        tensor(mean),
        Covariances(common=tensor(common)),
        is_new=torch.tensor(is_new),
        margin=margin,
        balance=balance,
        ridge=ridge,
    )


@few
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 7), dim=st.integers(1, 6), two=st.booleans())
def test_for_a_shared_covariance_the_weights_are_half_of_lda(seed, classes, dim, two):
    """For any class weights: only the biases depend on them."""
    mean, common = _shared(seed, classes, dim)
    common = common + 0.1 * np.eye(dim)
    is_new = [k == 0 for k in range(classes)] if two else None
    head = _solve_shared(mean, common, is_new=is_new, balance="two_means")
    expected = 0.5 * np.linalg.solve(common, (mean - mean.mean(0)).T).T
    assert_close(head.weight, expected, 1e-9)
    assert head.iterations == 0 and head.converged


@pytest.mark.parametrize("balance", ["per_class", "two_means"])
@pytest.mark.parametrize("margin", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_has_no_gradient_left(balance, margin, seed):
    """By autograd on L_DB written out in torch. All classes are old or none is enlarged, so they still share one covariance."""
    mean, common = _shared(seed)
    is_new = [False] * CLASSES if margin else [True, False, False, False]
    head = _solve_shared(mean, common, margin, is_new, balance, ridge=0.05)
    enlarged = reference.enlarge(common[None], margin)[0] + 0.05 * np.eye(DIM)
    shares = reference.class_shares(is_new, balance)
    weight, bias = head.weight.clone().requires_grad_(), head.bias.clone().requires_grad_()
    v = weight - weight[:, None]  # [k, j]
    z = (v * tensor(mean)[:, None]).sum(2) + 0.5 * ((v @ tensor(enlarged)) * v).sum(2) + bias - bias[:, None]
    loss = (torch.logsumexp(z, 1) * tensor(shares)).sum()
    loss.backward()
    assert weight.grad.abs().max() < 1e-9 and bias.grad.abs().max() < 1e-9
    assert head.loss == pytest.approx(loss.item(), rel=1e-12)
    assert head.gradient_norm < 1e-8
    assert head.loss == pytest.approx(reference.minimise(mean, np.array([enlarged] * CLASSES), shares)[0], rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_two_classes_of_one_covariance_lose_log_one_plus_exp_of_minus_an_eighth_of_their_distance_squared(seed):
    mean, common = _shared(seed, 2)
    distance = scipy.spatial.distance.mahalanobis(mean[0], mean[1], np.linalg.inv(common))
    assert _solve_shared(mean, common).loss == pytest.approx(np.log1p(np.exp(-(distance**2) / 8)), rel=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_at_the_weights_of_lda_itself_the_loss_is_log_of_the_number_of_classes(classes):
    """Bayes-optimal weights and biases make every exponent zero, so L_DB is that of a constant prediction."""
    mean, common = _shared(1, classes)
    weight = np.linalg.solve(common, mean.T).T
    bias = -0.5 * (weight * mean).sum(1)
    loss = distribution_loss(tensor(weight), tensor(bias), tensor(mean), Covariances(common=tensor(common))).item()
    assert loss == pytest.approx(np.log(classes), rel=1e-9)
    assert _solve_shared(mean, common).loss < loss


def test_shared_statistics_equal_full_ones_that_are_all_the_same():
    mean, common = _shared(2)
    dense = Covariances(full=tensor(np.array([common] * CLASSES)))
    iterated = solve(
        tensor(mean),
        dense,
        is_new=torch.zeros(CLASSES, dtype=torch.bool),
        margin=0.4,
        balance="per_class",
        ridge=0.0,
        tolerance=TIGHT,
    )
    closed = _solve_shared(mean, common, 0.4)
    assert iterated.loss == pytest.approx(closed.loss, rel=1e-10)
    assert_close(iterated.weight, closed.weight.numpy(), 1e-4)


@pytest.mark.parametrize("form_name", ["several parts", "scales per class", "common", "common and one diagonal"])
def test_every_sum_of_parts_is_solved(form_name):
    """Return the regularised covariances of the estimator, which have several parts."""
    p, form = reference.problem(3, CLASSES, DIM), FORMS[form_name]
    parts = form.draw(p.rng, CLASSES, DIM)
    built = form.build({name: tensor(part) for name, part in parts.items()})
    is_new = [False, True, False, False]
    head = solve(
        tensor(p.mean), built, is_new=torch.tensor(is_new), margin=0.4, balance="two_means", ridge=0.1, tolerance=TIGHT
    )
    dense = reference.enlarge(form.dense(parts, CLASSES), np.where(is_new, 0, 0.4)) + 0.1 * np.eye(DIM)
    value, weight, _ = reference.minimise(p.mean, dense, reference.class_shares(is_new, "two_means"))
    assert head.loss == pytest.approx(value, rel=1e-9)
    assert_close(head.weight, weight, 1e-4)


# ---- edges ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORM_NAMES)
def test_one_class_gets_a_head_of_zeros(form):
    head = solve_head(_statistics(form, classes=1))
    assert head.loss == 0 and head.converged
    assert head.weight.abs().max() == 0 and head.bias.abs().max() == 0


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_constant_and_duplicate_features_give_a_finite_head_that_separates(form, ridge):
    rng = np.random.default_rng(0)
    base = rng.normal(size=(60, 1)) + 6 * (np.arange(60) % 2)[:, None]
    features = np.concatenate([base, base, np.full((60, 1), 7.0)], 1)
    statistics = ClassStatistics(3, form, dtype=torch.float64).update(features, np.arange(60) % 2)
    with within(3):
        head = solve_head(statistics, ridge=ridge)
    assert bool(torch.isfinite(head.weight).all()) and bool(torch.isfinite(head.bias).all())
    predicted = (tensor(features) @ head.weight.T + head.bias).argmax(1).numpy()
    assert (predicted == np.arange(60) % 2).mean() > 0.95


@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_classes_of_one_sample_each_get_a_finite_head_that_knows_them(form, ridge):
    features = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    with within(3):
        head = solve_head(ClassStatistics(2, form).update(features, [0, 1, 2]), ridge=ridge)
    assert bool(torch.isfinite(head.weight).all()) and np.isfinite(head.loss)
    assert (tensor(features) @ head.weight.T + head.bias).argmax(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("form", FORM_NAMES)
def test_identical_classes_cannot_be_told_apart(form):
    rows = np.random.default_rng(0).normal(size=(20, 2))
    statistics = ClassStatistics(2, form, dtype=torch.float64).update(rows, [0] * 20).update(rows, [1] * 20)
    head = solve_head(statistics)
    assert head.loss == pytest.approx(np.log(2), rel=1e-9) and head.weight.abs().max() < 1e-6


def test_few_iterations_are_reported_as_not_converged():
    head = solve_head(_statistics("full"), tolerance=1e-12, max_iterations=2)
    assert not head.converged and head.iterations == 2 and head.gap > 0


def test_class_weights_of_two_means_sum_to_two():
    is_new = torch.tensor([True, False, False, False])
    assert balanced(is_new, "two_means").tolist() == [1, 1 / 3, 1 / 3, 1 / 3]
    assert balanced(is_new, "per_class").tolist() == [0.25] * 4
    assert balanced(~(is_new | True), "two_means").tolist() == [0.25] * 4


def test_new_classes_may_be_numpy_labels():
    statistics = ClassStatistics(1).update([[0.0], [1.0], [3.0], [5.0]], [0, 0, 1, 1])
    assert solve_head(statistics, new=np.array([1])).loss == solve_head(statistics, new=[1]).loss != solve_head(statistics).loss


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"margin": -0.1}, ValueError, "margin must not be negative, not -0.1"),
        ({"margin": float("nan")}, ValueError, "margin must not be negative"),
        ({"balance": "three_means"}, ValueError, "balance must be one of per_class, two_means, not 'three_means'"),
        ({"new": ["z"]}, KeyError, "class 'z' is not known; known are 'a', 'b', 'c', 'd'"),
        ({"ridge": -1.0}, ValueError, "ridge"),
        ({"ridge": torch.tensor([0.1, -1.0, 0.1])}, ValueError, "ridge"),
        ({"ridge": torch.ones(5)}, ValueError, "ridge"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        solve_head(_statistics(), **options)


def test_a_start_with_more_classes_than_the_statistics_is_refused():
    with pytest.raises(ValueError, match="start"):
        solve_head(_statistics(classes=3), start=solve_head(_statistics(classes=4)))


@pytest.mark.parametrize("form", FORM_NAMES)
def test_empty_statistics_cannot_be_solved(form):
    with pytest.raises(ValueError, match="there are no classes to solve for"):
        solve_head(ClassStatistics(3, form))
