"""Every loss in every covariance form against the equation written out in `reference`."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import FORMS, assert_close, few, tensor

from amgc.core import kernel
from amgc.core.covariance import Covariances, enlarge
from amgc.core.gaussian import sample
from amgc.core.losses import (
    amarx_loss,
    distribution_loss,
    margins,
    pairwise_margins,
    sample_loss,
    soft_margin_loss,
)

pytestmark = pytest.mark.cpus

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
DIM, ROWS = 5, 7
# Which of the ROWS head rows belong to the classes, and which are in the softmax.
CASES = {
    "global": {"targets": None, "among": None, "class_weight": None},
    "local": {"targets": [3, 5, 6], "among": [3, 4, 5, 6], "class_weight": None},
    "local in another order": {"targets": [5, 3, 6], "among": [6, 3, 5, 0], "class_weight": None},
    "permuted": {"targets": [4, 6, 0, 1, 5, 2, 3], "among": None, "class_weight": None},
    "a class twice": {"targets": [4, 4, 0], "among": None, "class_weight": None},
    "weighted": {"targets": [1, 6, 2, 0], "among": None, "class_weight": [0.5, 0.1, 2.0, 0.0]},
}
LOSSES = {
    "distribution": (distribution_loss, {}),
    "amarx": (amarx_loss, {"margin": 0.4}),
    "soft margin": (soft_margin_loss, {"margin": 0.8}),
}


def _case(case, form_name, seed=0, dtype=torch.float64):
    """Return a problem of this case and form, with values that `dtype` represents exactly."""
    form, options = FORMS[form_name], CASES[case]
    count = ROWS if options["targets"] is None else len(options["targets"])
    p = reference.problem(seed, count, DIM, ROWS)
    parts = form.draw(p.rng, count, DIM)
    rounded = {name: tensor(part, dtype).double().numpy() for name, part in parts.items()}
    p.weight, p.bias, p.mean = (x.double().numpy() for x in p.tensors(dtype))
    return p, form, rounded, options


def _options(options, dtype):
    result = {name: None if options[name] is None else torch.tensor(options[name]) for name in ("targets", "among")}
    weights = options["class_weight"]
    return result | {"class_weight": None if weights is None else tensor(weights, dtype)}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form_name", FORMS)
@pytest.mark.parametrize("loss_name", LOSSES)
def test_value_and_every_gradient_equal_the_written_out_equation(loss_name, form_name, case, dtype):
    p, form, parts, options = _case(case, form_name, dtype=dtype)
    loss, extra = LOSSES[loss_name]
    leaves = {name: tensor(part, dtype).requires_grad_() for name, part in parts.items()}
    weight, bias, mean = (x.requires_grad_() for x in p.tensors(dtype))
    value = loss(weight, bias, mean, form.build(leaves), **extra, **_options(options, dtype))
    value.backward()

    dense = form.dense(parts, len(p.mean))
    margin = extra["margin"] if loss_name == "amarx" else 0.0
    soft_margin = extra["margin"] if loss_name == "soft margin" else 0.0
    expected = reference.db_loss(p.weight, p.bias, p.mean, reference.enlarge(dense, margin), soft_margin=soft_margin, **options)
    relative = TOLERANCE[dtype]
    assert value.dtype == dtype
    assert_close(value, expected.value, relative, "loss")
    assert_close(weight.grad, expected.weight, relative, "weight")
    assert_close(bias.grad, expected.bias, relative, "bias")
    assert_close(mean.grad, expected.mean, relative, "mean")
    for name, gradient in form.pull(parts, reference.enlarge_pull(expected.dense, margin)).items():
        assert_close(leaves[name].grad, gradient, relative, name)


@pytest.mark.parametrize("form_name", FORMS)
@pytest.mark.parametrize("loss_name", LOSSES)
def test_gradients_pass_gradcheck(loss_name, form_name):
    p, form, parts, options = _case("local", form_name, seed=1)
    loss, extra = LOSSES[loss_name]
    names = list(parts)

    def function(weight, bias, mean, *leaves):
        # Matrices are symmetric: along other directions no covariance lies.
        built = {n: (x + x.mT) / 2 if n in ("full", "common") else x for n, x in zip(names, leaves, strict=True)}
        return loss(weight, bias, mean, form.build(built), **extra, **_options(options, torch.float64))

    inputs = [x.requires_grad_() for x in (*p.tensors(), *(tensor(parts[name]) for name in names))]
    assert torch.autograd.gradcheck(function, inputs)


def test_the_upstream_gradient_scales_all_gradients():
    p, _form, parts, _ = _case("global", "full")
    weight, bias, mean = (x.requires_grad_() for x in p.tensors())
    (3 * distribution_loss(weight, bias, mean, tensor(parts["full"]))).backward()
    expected = reference.db_loss(p.weight, p.bias, p.mean, parts["full"])
    assert_close(weight.grad, 3 * expected.weight, 1e-10)
    assert_close(mean.grad, 3 * expected.mean, 1e-10)


@pytest.mark.parametrize("wanted", ["weight", "bias", "mean", "covariance"])
def test_gradients_are_right_when_only_one_is_asked_for(wanted):
    p, _, parts, _ = _case("global", "full")
    arguments = dict(zip(("weight", "bias", "mean"), p.tensors(), strict=True)) | {"covariance": tensor(parts["full"])}
    arguments[wanted].requires_grad_()
    distribution_loss(**arguments).backward()
    expected = reference.db_loss(p.weight, p.bias, p.mean, parts["full"])
    assert_close(arguments[wanted].grad, getattr(expected, {"covariance": "dense"}.get(wanted, wanted)), 1e-10)


def test_gradients_reach_the_features_behind_mean_and_covariance():
    """The statistics of new classes depend on the network's output, so gradients flow through them."""
    p = reference.problem(3, 2, 3)
    rows = tensor(p.rng.normal(size=(2, 8, 3))).requires_grad_()

    def loss(rows):
        mean = rows.mean(1)
        centred = rows - mean[:, None]
        return distribution_loss(*p.tensors()[:2], mean, centred.mT @ centred / 7)

    assert torch.autograd.gradcheck(loss, [rows])


@pytest.mark.parametrize("form_name", FORMS)
@pytest.mark.parametrize("budget", [1, 2 * ROWS * 2 * DIM * 8, 1 << 30])
def test_the_size_of_the_chunks_does_not_matter(monkeypatch, form_name, budget):
    p, form, parts, _ = _case("global", form_name)

    def run():
        leaves = {name: tensor(part).requires_grad_() for name, part in parts.items()}
        inputs = [x.requires_grad_() for x in p.tensors()]
        loss = distribution_loss(*inputs, form.build(leaves))
        return [loss, *torch.autograd.grad(loss, [*inputs, *leaves.values()])]

    expected = run()
    monkeypatch.setitem(kernel.CHUNK_BYTES, "cpu", budget)
    for actual, wanted in zip(run(), expected, strict=True):
        assert_close(actual, wanted.detach().numpy(), 1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("among", [None, [1, 0, 3]])
def test_sample_loss_is_the_mean_cross_entropy(dtype, among):
    p = reference.problem(0, 20, DIM, ROWS)
    targets = p.rng.choice([0, 1, 3] if among else ROWS, 20)
    weight, bias, features = (x.requires_grad_() for x in p.tensors(dtype))
    loss = sample_loss(weight, bias, features, torch.tensor(targets), among=None if among is None else torch.tensor(among))
    loss.backward()
    # Eq. (sample) is L_DB of single points: no covariance.
    none = np.zeros((20, DIM, DIM))
    expected = reference.db_loss(p.weight, p.bias, p.mean, none, targets=targets, among=among)
    rows = list(range(ROWS)) if among is None else among
    plain = [
        reference.cross_entropy(p.weight[rows] @ x + p.bias[rows], rows.index(t)) for x, t in zip(p.mean, targets, strict=True)
    ]
    assert_close(loss, np.mean(plain), TOLERANCE[dtype])
    assert_close(weight.grad, expected.weight, TOLERANCE[dtype])
    assert_close(bias.grad, expected.bias, TOLERANCE[dtype])
    assert_close(features.grad, expected.mean, TOLERANCE[dtype])


def _margin_form(p, dense, margin):
    """Eq. (margin) as printed: m_k, sigma_jk and beta_jk one by one."""
    total = 0.0
    for k, matrix in enumerate(dense):
        spread, own = np.diag(matrix), p.weight[k]
        m = margin / 2 * sum(own * spread * own)
        logits = []
        for j, w in enumerate(p.weight):
            logit = w @ p.mean[k] + p.bias[j]
            if j == k:
                logits.append(logit - m)
            else:
                sigma = (w - own) @ matrix @ (w - own) / 2
                beta = margin / 2 * (sum(w * spread * w) - sum(w * spread * own) - sum(own * spread * w))
                logits.append(logit + sigma + beta)
        total += reference.cross_entropy(np.array(logits), k)
    return total / len(dense)


problems = st.builds(
    reference.problem,
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(1, 8),
    dim=st.integers(1, 12),
    scale=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
)


@few
@given(p=problems, margin=st.floats(0, 3))
def test_both_forms_of_amarx_are_equal(p, margin):
    """Eq. (margin-start) equals Eq. (margin), and both are as printed in the paper."""
    dense = reference.spd(p.rng, p.mean.shape[1], len(p.mean))
    start = amarx_loss(*p.tensors(), tensor(dense), margin=margin).item()
    assert start == pytest.approx(_margin_form(p, dense, margin), rel=1e-10, abs=1e-10)


def differentiable_margin_form(weight, bias, mean, covariance, *, margin, targets, among):
    """Eq. (margin) in torch: the own logit loses m_k, the others gain σ_jk + β_jk."""
    weight, bias = weight[among], bias[among]
    total = 0.0
    for k, target in enumerate(targets.tolist()):
        own = among.tolist().index(target)
        spread = covariance[k].diagonal().diag()
        logits = []
        for j, w_j in enumerate(weight):
            w_k = weight[own]
            m = margin / 2 * w_k @ spread @ w_k
            sigma = 0.5 * (w_j - w_k) @ covariance[k] @ (w_j - w_k)
            beta = margin / 2 * (w_j @ spread @ w_j - w_j @ spread @ w_k - w_k @ spread @ w_j)
            logits.append(w_j @ mean[k] + bias[j] + (-m if j == own else sigma + beta))
        total = total - torch.log_softmax(torch.stack(logits), 0)[own] / len(targets)
    return total


def test_both_forms_of_amarx_are_equal_in_the_local_form_and_in_their_gradients():
    p, _, parts, options = _case("local in another order", "full", seed=4)
    chosen = {name: torch.tensor(options[name]) for name in ("targets", "among")}
    gradients = []
    for loss in (amarx_loss, differentiable_margin_form):
        inputs = [x.requires_grad_() for x in (*p.tensors(), tensor(parts["full"]))]
        value = loss(*inputs, margin=0.4, **chosen)
        gradients.append([value, *torch.autograd.grad(value, inputs)])
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other.detach().numpy(), 1e-10)


@few
@given(p=problems, seed=st.integers(0, 1000))
def test_one_vector_added_to_all_weights_and_one_number_to_all_biases_change_nothing(p, seed):
    rng = np.random.default_rng(seed)
    weight, bias, mean = p.tensors()
    covariance = tensor(reference.spd(p.rng, mean.shape[1], len(mean)))
    moved = weight + 3 * tensor(rng.normal(size=mean.shape[1])), bias + 5 * rng.normal(), mean
    target = torch.arange(len(mean))
    for loss in (
        lambda *head: distribution_loss(*head, covariance),
        lambda *head: amarx_loss(*head, covariance, margin=0.4),
        lambda *head: soft_margin_loss(*head, covariance, margin=0.4),
        lambda *head: sample_loss(*head, target),
        lambda weight, bias, mean: margins(weight, covariance, 0.4).sum(),
        lambda weight, bias, mean: pairwise_margins(weight, covariance, 0.4).sum(),
    ):
        assert loss(*moved).item() == pytest.approx(loss(weight, bias, mean).item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("form_name", FORMS)
def test_pairwise_margins_are_m_plus_beta_and_never_negative(form_name):
    p, form, parts, options = _case("permuted", form_name, seed=2)
    targets, margin = options["targets"], 0.4
    covariance = form.build({name: tensor(part) for name, part in parts.items()})
    weight = tensor(p.weight)
    actual = pairwise_margins(weight, covariance, margin, torch.tensor(targets))
    dense = form.dense(parts, len(targets))
    centred = p.weight - p.weight.mean(0)
    expected, alone = np.zeros((len(targets), ROWS)), np.zeros(len(targets))
    for k, own in enumerate(targets):
        spread, w_k = np.diag(np.diag(dense[k])), p.weight[own]
        alone[k] = margin / 2 * centred[own] @ spread @ centred[own]
        for j, w in enumerate(p.weight):
            m = margin / 2 * w_k @ spread @ w_k
            beta = margin / 2 * (w @ spread @ w - w @ spread @ w_k - w_k @ spread @ w)
            expected[k, j] = m + beta
    assert_close(actual, expected, 1e-10)
    assert bool((actual >= 0).all())
    assert actual[range(len(targets)), targets].abs().max() == 0
    assert_close(margins(weight, covariance, margin, torch.tensor(targets)), alone, 1e-10)


@pytest.mark.parametrize("form_name", FORMS)
def test_a_margin_of_zero_gives_dbgc(form_name):
    p, form, parts, _ = _case("global", form_name)
    covariance = form.build({name: tensor(part) for name, part in parts.items()})
    plain = distribution_loss(*p.tensors(), covariance).item()
    assert amarx_loss(*p.tensors(), covariance, margin=0.0).item() == pytest.approx(plain, rel=1e-14)
    assert soft_margin_loss(*p.tensors(), covariance, margin=0.0).item() == plain


def test_the_loss_grows_with_the_margin():
    p, _, parts, _ = _case("global", "full")
    values = [amarx_loss(*p.tensors(), tensor(parts["full"]), margin=m).item() for m in (0, 0.1, 0.4, 1)]
    assert values == sorted(values) and values[0] < values[-1]


@pytest.mark.parametrize("form_name", FORMS)
def test_the_loss_bounds_the_expected_cross_entropy(form_name):
    """Jensen's inequality, by Monte Carlo: the mean over draws, within four standard errors."""
    p, form, parts, _ = _case("global", form_name, seed=5)
    covariance = form.build({name: tensor(part) for name, part in parts.items()})
    bound = distribution_loss(*p.tensors(), covariance).item()
    draws = sample(tensor(p.mean), covariance, 20_000, torch.Generator().manual_seed(0)).numpy()
    scores = draws @ p.weight.T + p.bias
    leads = scores - np.stack([scores[k, :, k] for k in range(ROWS)])[:, :, None]
    losses = np.log(np.exp(leads).sum(2)).mean(0)  # over classes, for each draw
    error = losses.std() / len(losses) ** 0.5
    assert losses.mean() - 4 * error <= bound
    assert bound < 10 * losses.mean()  # and the bound is not trivial


def test_the_bound_is_tight_when_the_scores_do_not_vary():
    p = reference.problem(1, 4, DIM)
    bound = distribution_loss(*p.tensors(), torch.zeros(4, DIM, dtype=torch.float64))
    assert bound.item() == pytest.approx(sample_loss(*p.tensors(), torch.arange(4)).item(), rel=1e-12)


@few
@given(p=problems, seed=st.integers(0, 1000), margin=st.sampled_from([0.0, 0.4]))
def test_the_loss_is_convex_in_the_head(p, seed, margin):
    """The loss midway between two heads is at most the mean of their losses."""
    rng = np.random.default_rng(seed)
    covariance = tensor(reference.spd(p.rng, p.mean.shape[1], len(p.mean)))
    weight, bias, mean = p.tensors()
    other = weight + tensor(rng.normal(size=weight.shape)), bias + tensor(rng.normal(size=bias.shape))
    middle = (weight + other[0]) / 2, (bias + other[1]) / 2
    ends = [amarx_loss(*head, mean, covariance, margin=margin).item() for head in ((weight, bias), other)]
    assert amarx_loss(*middle, mean, covariance, margin=margin).item() <= np.mean(ends) * (1 + 1e-12) + 1e-12


def test_one_class_costs_nothing():
    p = reference.problem(0, 1, 3)
    weight, bias, mean = (x.requires_grad_() for x in p.tensors())
    loss = distribution_loss(weight, bias, mean, torch.eye(3, dtype=torch.float64)[None])
    loss.backward()
    assert loss.item() == 0 and weight.grad.abs().max() == 0 and mean.grad.abs().max() == 0


def test_distant_classes_do_not_overflow():
    mean = torch.eye(3, dtype=torch.float64) * 1e3
    weight = (mean * 10).requires_grad_()
    wrong = distribution_loss(weight, torch.zeros(3).double(), mean.roll(1, 0), torch.ones(3, 3, dtype=torch.float64))
    assert torch.isfinite(wrong) and bool(torch.isfinite(torch.autograd.grad(wrong, weight)[0]).all())


def test_the_shared_views_of_statistics_equal_the_common_matrix():
    p = reference.problem(0, 4, 3)
    common = tensor(reference.spd(p.rng, 3))
    views = distribution_loss(*p.tensors(), common.expand(4, -1, -1)).item()
    assert views == pytest.approx(distribution_loss(*p.tensors(), Covariances(common=common)).item(), rel=1e-12)


def test_a_margin_per_class_enlarges_only_that_class():
    p, _, parts, _ = _case("global", "full")
    each = torch.tensor([0.4, 0.0, 0.0, 0.4, 0.0, 0.0, 0.0], dtype=torch.float64)
    value = distribution_loss(*p.tensors(), enlarge(tensor(parts["full"]), each)).item()
    dense = reference.enlarge(parts["full"], each.numpy())
    assert value == pytest.approx(reference.db_loss(p.weight, p.bias, p.mean, dense).value, rel=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": [0, 1]}, "4 classes or rows, but 2 targets"),
        ({"targets": [0, 1, 2, 7]}, "targets must lie in 0..6"),
        ({"targets": [0, 1, 2, -1]}, "targets must lie in 0..6"),
        ({"targets": [0, 1, 2, 3], "among": [0, 1, 2]}, "targets .3. are not among"),
        ({"targets": [0, 1, 2, -1], "among": [0, 1, 2, 6]}, "targets"),
        ({"targets": [0, 1, 2, 7], "among": [0, 1, 2, 6]}, "targets"),
    ],
)
def test_targets_that_are_no_row_of_the_softmax_are_refused(options, message):
    p = reference.problem(0, 4, 3, ROWS)
    chosen = {name: torch.tensor(value) for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        distribution_loss(*p.tensors(), torch.ones(4, 3, dtype=torch.float64), **chosen)


def test_a_covariance_of_a_strange_shape_is_refused():
    p = reference.problem(0, 4, 3)
    with pytest.raises(ValueError, match=r"neither .classes, d, d. nor its diagonals"):
        distribution_loss(*p.tensors(), torch.ones(3, dtype=torch.float64))


def test_the_loss_is_the_same_under_autocast():
    p = reference.problem(0, 4, 3)
    weight, bias, mean = (x.float() for x in p.tensors())
    covariance = torch.eye(3).repeat(len(mean), 1, 1)
    weight.requires_grad_()
    plain = distribution_loss(weight, bias, mean, covariance)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = distribution_loss(weight, bias, mean, covariance)
        cast.backward()
    assert torch.equal(plain, cast) and weight.grad is not None


@pytest.mark.parametrize(
    ("mean", "covariance", "match"),
    [
        (torch.zeros(0, 3), torch.zeros(0, 3, 3), "at least one class"),
        (torch.zeros(2, 4), torch.zeros(2, 4, 4), r"shape \(classes, 3\)"),
        (torch.zeros(2, 3), torch.zeros(5, 3, 3), "2 means but covariances of 5 classes"),
        (torch.zeros(2, 3), torch.zeros(2, 4), "3 features but covariances of 4"),
    ],
)
def test_shapes_that_do_not_fit_are_named(mean, covariance, match):
    with pytest.raises(ValueError, match=match):
        distribution_loss(torch.zeros(4, 3), torch.zeros(4), mean, covariance)


def test_a_negative_margin_is_refused():
    with pytest.raises(ValueError, match="margin must not be negative"):
        amarx_loss(torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 3), torch.ones(2, 3), margin=-3.0)
