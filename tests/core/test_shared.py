"""The shared covariance in many dimensions, against numpy and scikit-learn."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_close, few, spd, tensor
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from amgc.core import memory, scatter, shared, symmetric
from amgc.core.covariance import SharedCovariance, enlarge
from amgc.core.solver import solve, solve_head, solve_shared
from amgc.core.statistics import ClassStatistics

pytestmark = pytest.mark.cpus


@pytest.fixture
def small():
    with as_if_large():
        yield


@contextlib.contextmanager
def as_if_large():
    """Make blocks, buffers and the limit of float64 small, so that few features use the code for many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetric, "BLOCK", 5)
        patch.setattr(scatter, "ROWS", 7)
        patch.setattr(shared, "DOUBLE_UP_TO", 0)
        yield


def _data(samples=60, dim=13, classes=4, seed=0, distance=2.0):
    rng = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    mixing = 0.5 * rng.normal(size=(dim, dim)) / dim**0.5 + np.eye(dim)  # far from singular
    return rng.normal(size=(samples, dim)) @ mixing + distance * rng.normal(size=(classes, dim))[labels], labels


# ---- the triangle -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 4, 5, 13])
def test_the_triangle_stands_for_the_whole_matrix(dim, small):
    rng = np.random.default_rng(dim)
    whole, rows, columns = spd(rng, dim), rng.normal(size=(9, dim)), rng.normal(size=(dim, 3))
    upper = tensor(np.triu(whole))
    assert_close(symmetric.product(upper, tensor(columns)), whole @ columns, 1e-12)
    assert_close(symmetric.product(tensor(whole), tensor(columns)), whole @ columns, 1e-12)
    scale = rng.uniform(0.5, 2, dim)
    scaled = whole * scale * scale[:, None]
    assert_close(symmetric.scaled_into(torch.full((dim, dim), np.nan).double(), upper, tensor(scale)), np.triu(scaled), 1e-12)
    again = torch.zeros_like(upper)
    symmetric.unpack_into(again, symmetric.packed(upper))
    assert torch.equal(again, upper)
    assert symmetric.packed(upper).tolist() == whole[np.triu_indices(dim)].tolist()
    full = symmetric.mirrored(upper, 2.0)
    assert torch.equal(full, full.T) and torch.equal(full.triu(), 2 * upper)
    symmetric.add_gram(upper, tensor(rows))
    assert_close(upper, np.triu(whole + rows.T @ rows), 1e-12)
    factor, place = upper.clone(), upper.data_ptr()
    assert symmetric.factorise(factor) and upper.data_ptr() == place
    assert_close(factor, np.linalg.cholesky(whole + rows.T @ rows).T, 1e-10)
    solved = symmetric.backward(factor, symmetric.forward(factor, tensor(columns)))
    assert_close(solved, np.linalg.solve(whole + rows.T @ rows, columns), 1e-9)


def test_a_matrix_that_is_not_positive_definite_is_reported():
    assert not symmetric.factorise(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    assert not symmetric.factorise(torch.tensor([[float("nan"), 0.0], [0.0, 1.0]]))


# ---- accumulation -------------------------------------------------------------------------------------------------------


@few
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 60), max_size=12), order=st.permutations(range(60)))
def test_any_order_and_split_of_the_rows_give_the_same_classifier(seed, cuts, order):
    features, labels = _data(seed=seed)
    with as_if_large():
        once = ClassStatistics(13, "shared").update(features, labels)
        pieces = ClassStatistics(13, "shared")
        for start, stop in itertools.pairwise([0, *sorted(cuts), 60]):
            rows = list(order)[start:stop]
            pieces.update(features[rows], labels[rows])
        one, other = (solve_head(statistics, margin=0.0, ridge="auto") for statistics in (once, pieces))
    rows = [pieces.index(label) for label in once.classes]
    assert_close(other.weight[rows], one.weight.numpy(), 1e-4)
    assert_close(other.bias[rows], one.bias.numpy(), 1e-4)


def test_small_batches_in_1500_dimensions_equal_one_pass_in_float64():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(3000) % 20)
    mixing = rng.normal(size=(60, 1500)) / 8
    features = rng.normal(size=(3000, 60)) @ mixing + 0.5 * rng.normal(size=(3000, 1500)) + rng.normal(size=(20, 1500))[labels]
    features = (features + 10).astype(np.float32)
    exact = ClassStatistics(1500, "shared", dtype=torch.float64).update(features, labels)
    pieces = ClassStatistics(1500, "shared")
    for start in range(0, 3000, 37):
        pieces.update(features[start : start + 37], labels[start : start + 37])
    scale = exact.pooled().diagonal().sqrt()
    error = (pieces.pooled().double() - exact.pooled()) / scale / scale[:, None]
    assert error.abs().max() < 2e-6
    rows = [pieces.index(label) for label in exact.classes]
    assert_close(pieces.mean[rows], exact.mean.numpy(), 1e-12)
    with pytest.MonkeyPatch.context() as patch:
        truth = solve_head(exact, margin=0.0, ridge="auto")
        patch.setattr(shared, "DOUBLE_UP_TO", 0)
        head = solve_head(pieces, margin=0.0, ridge="auto")
    assert_close(head.weight[rows], truth.weight.numpy(), 1e-4)
    assert head.converged and head.gradient_norm < 1e-5


def test_rows_that_wait_are_in_no_file_and_no_pickle(tmp_path):
    features, labels = _data(40, 6)
    statistics = ClassStatistics(6, "shared", dtype=torch.float64)
    for row, label in zip(features, labels, strict=True):
        statistics.update(row[None], [label])
    assert statistics._scatter._waiting > 0
    waiting = statistics._scatter._rows[: statistics._scatter._waiting].numpy().copy()
    content = pickle.dumps(statistics)
    statistics.update(features, labels).save(tmp_path / "statistics")
    content += (tmp_path / "statistics").read_bytes()
    centred = features - np.array([features[labels == k].mean(0) for k in range(4)])[labels]
    for row in (*waiting[waiting.any(1)], *features, *centred):  # a class's first row is its mean, and leaves zeros
        for kind in (np.float64, np.float32):
            assert row.astype(kind).tobytes() not in content
    assert statistics._scatter._rows is None
    assert np.asarray(statistics.mean[0]).tobytes() in content


def test_a_copy_has_all_rows_that_wait_and_goes_its_own_way():
    features, labels = _data(40, 6)
    statistics = ClassStatistics(6, "shared", dtype=torch.float64).update(features[:9], labels[:9])
    copy = pickle.loads(pickle.dumps(statistics))
    statistics.update(features[9:], labels[9:])
    assert torch.equal(
        copy.pooled(), ClassStatistics(6, "shared", dtype=torch.float64).update(features[:9], labels[:9]).pooled()
    )
    copy.update(features[9:], labels[9:])
    assert_close(copy.pooled(), statistics.pooled().numpy(), 1e-12)


# ---- the closed form ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.7])
def test_the_weights_are_half_of_scikit_learns_lda_with_the_same_shrinkage(share, small):
    features, labels = _data(400)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=share).fit(features, labels)
    statistics = ClassStatistics(13, "shared", dtype=torch.float64).update(features, labels)
    kept = statistics.shared()
    per_sample = statistics.freedom / len(labels)  # scikit-learn divides by n
    variances = kept.variances * per_sample
    covariance = SharedCovariance(
        kept.upper, (1 - share) * kept.keep * per_sample, (1 - share) * variances + share * variances.mean()
    )
    head, _ = solve_shared(statistics.mean, covariance, torch.zeros(4, dtype=torch.bool), "per_class")
    assert_close(2 * head.weight, theirs.coef_ - theirs.coef_.mean(0), 1e-9)


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e5])
def test_refinement_gives_a_float32_factor_the_weights_of_a_float64_one(condition, small):
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    common = (turn * np.geomspace(1 / condition, 1, 40)) @ turn.T
    mean = rng.normal(size=(5, 40)) / 10
    kept = tensor(common).float()
    covariance = SharedCovariance(kept, 1.0, kept.diagonal().double())
    head, closed = solve_shared(tensor(mean), covariance, torch.zeros(5, dtype=torch.bool), "per_class")
    assert closed.factor.root.dtype == torch.float32 and head.converged
    exact = kept.double().triu() + kept.double().triu(1).T
    expected = 0.5 * np.linalg.solve(exact.numpy(), (mean - mean.mean(0)).T).T
    assert_close(head.weight, expected, 1e-4)


def test_the_closed_form_is_that_of_the_general_solver(small):
    features, labels = _data()
    statistics = ClassStatistics(13, "shared", dtype=torch.float64).update(features, labels)
    is_new = torch.zeros(4, dtype=torch.bool)
    one = solve_head(statistics, margin=0.4, ridge=0.01)
    other = solve(statistics.mean, statistics.covariances, is_new=is_new, margin=0.4, balance="per_class", ridge=0.01)
    assert one.loss == pytest.approx(other.loss, rel=1e-12)
    assert_close(one.weight, other.weight.numpy(), 1e-9)


def test_more_features_than_samples_need_a_loading_which_is_found_or_said(small):
    features, labels = _data(24, 40)
    statistics = ClassStatistics(40, "shared").update(features, labels)
    with pytest.warns(UserWarning, match="nearly singular in float32: every variance was increased"):
        head = solve_head(statistics, margin=0.0)
    assert torch.isfinite(head.weight).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = solve_head(statistics, margin=0.0, ridge="auto")
    assert ((features @ head.weight.numpy().T + head.bias.numpy()).argmax(1) == labels).all()


def test_an_automatic_ridge_is_for_shared_covariances_only():
    features, labels = _data()
    for form, ridge in (("full", "auto"), ("shared", "most")):
        with pytest.raises(ValueError, match="ridge must be numbers, or 'auto' for statistics with a shared covariance"):
            solve_head(ClassStatistics(13, form).update(features, labels), ridge=ridge)


# ---- the trace ----------------------------------------------------------------------------------------------------------


def test_the_trace_by_random_signs_is_near_the_exact_one(monkeypatch):
    features, labels = _data(900, 300)
    statistics = ClassStatistics(300, "shared", dtype=torch.float64).update(features, labels)
    covariance = enlarge(statistics.shared(), 0.1)
    factor = solve_shared(statistics.mean, covariance, torch.zeros(4, dtype=torch.bool), "per_class")[1].factor
    exact = factor.share(covariance.extra)
    dense = statistics.pooled() + torch.diag(covariance.extra)
    assert exact == pytest.approx(float((torch.linalg.inv(dense).diagonal() * covariance.extra).sum()), rel=1e-9)
    monkeypatch.setattr(shared, "DOUBLE_UP_TO", 0)
    assert factor.share(covariance.extra) == pytest.approx(exact, rel=0.05)


# ---- memory -------------------------------------------------------------------------------------------------------------


def test_matrices_that_would_not_fit_are_refused_with_the_size_that_would(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 8 << 30)
    with pytest.raises(
        MemoryError, match=r"50,000 dimensions needs 20\.8 GB .*8\.6 GB are free: 3\d,\d00 dimensions would fit"
    ):
        ClassStatistics(50_000, "shared")
    assert memory.matrices(31_700, torch.float32, 2, 2 * scatter.ROWS) < 8 << 30
    assert memory.matrices(31_900, torch.float32, 2, 2 * scatter.ROWS) > 8 << 30
    features, labels = _data()
    statistics = ClassStatistics(13, "shared").update(features, labels)
    monkeypatch.setattr(memory, "available", lambda device: 100)
    assert solve_head(statistics, ridge=0.1).converged  # small requests are not checked
    monkeypatch.setattr(memory, "NOTICED", 0)
    with pytest.raises(MemoryError, match="factor of a shared covariance in 13 dimensions needs"):
        solve_head(statistics, ridge=0.1)


def test_where_the_system_does_not_say_what_is_free_nothing_is_refused(monkeypatch):
    asked = 10**6, torch.float32, 2, 0, "cpu", "a matrix", ""
    monkeypatch.setattr(memory, "available", lambda device: 1 << 30)
    with pytest.raises(MemoryError, match="a matrix"):
        memory.check(*asked)
    monkeypatch.setattr(memory, "available", lambda device: None)
    memory.check(*asked)


def test_a_container_may_have_less_than_its_machine(monkeypatch, tmp_path):
    free = memory.available()
    if free is None:
        pytest.skip("the system does not say what is free")
    for name, text in {"max": str(1 << 20), "current": "1000", "stat": "file 7\ninactive_file 24\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    assert memory.available() == (1 << 20) - 1000 + 24
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > 1 << 20
