"""The arithmetic of covariances as sums of parts, against dense matrices in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from reference import FORMS, assert_close, tensor

from amgc.core.covariance import LowRank, SharedCovariance, as_covariances, enlarge

pytestmark = pytest.mark.cpus

COUNT, DIM = 4, 3


@pytest.fixture(params=FORMS)
def form(request):
    """Return the package's object, and the same covariances as one array (K, d, d)."""
    chosen = FORMS[request.param]
    parts = chosen.draw(np.random.default_rng(0), COUNT, DIM)
    return chosen.build({name: tensor(part) for name, part in parts.items()}), chosen.dense(parts, COUNT)


def _dense(covariance):
    return reference.dense(as_covariances(covariance), COUNT)


def test_every_form_is_read_as_the_same_covariances(form):
    covariance, dense = form
    assert_close(_dense(covariance), dense, 1e-12)


def test_low_rank_dense_has_the_factor_off_the_diagonal_and_the_variances_on_it():
    parts = FORMS["low rank"].draw(np.random.default_rng(0), COUNT, DIM)
    actual = LowRank(tensor(parts["factor"]), tensor(parts["diagonal"])).dense()
    assert_close(actual, FORMS["low rank"].dense(parts, COUNT), 1e-12)


def test_variances_are_the_diagonals(form):
    covariance, dense = form
    actual = as_covariances(covariance).variances()
    assert_close(actual.expand(COUNT, DIM), np.array([np.diag(matrix) for matrix in dense]), 1e-12)


@pytest.mark.parametrize("margin", [0.0, 0.4, [0.0, 0.4, 1.0, 0.1]])
def test_enlarging_multiplies_the_variances_alone(form, margin):
    covariance, dense = form
    enlarged = enlarge(covariance, tensor(margin) if isinstance(margin, list) else margin)
    assert_close(_dense(enlarged), reference.enlarge(dense, margin), 1e-12)


@pytest.mark.parametrize("margin", [0.0, 0.4])
def test_enlarging_a_shared_covariance_multiplies_the_variances_alone(margin):
    matrix = reference.spd(np.random.default_rng(0), DIM, 1)[0]
    covariance = SharedCovariance(tensor(matrix).triu(), 0.5, tensor(np.diag(matrix)) / 2)
    actual = enlarge(covariance, margin).times(torch.eye(DIM, dtype=torch.float64))
    assert_close(actual, reference.enlarge(matrix[None] / 2, margin)[0], 1e-12)
    assert_close(covariance.times(torch.eye(DIM, dtype=torch.float64)), matrix / 2, 1e-12)


@pytest.mark.parametrize("margin", [-0.1, float("nan")])
def test_a_negative_margin_is_refused(form, margin):
    with pytest.raises(ValueError, match="margin must not be negative"):
        enlarge(form[0], margin)


@pytest.mark.parametrize("margin", [-0.1, float("nan")])
def test_a_negative_margin_of_a_shared_covariance_is_refused(margin):
    with pytest.raises(ValueError, match="margin must not be negative"):
        enlarge(SharedCovariance(torch.eye(2), 1.0, torch.ones(2)), margin)


def test_average_product_mixtures_and_rows_are_those_of_the_dense_matrices(form):
    covariance, dense = form
    parts, rng = as_covariances(covariance), np.random.default_rng(1)
    share = rng.dirichlet(np.ones(COUNT))
    average = parts.average(tensor(share)).numpy()
    assert_close(
        np.diag(average) if average.ndim == 1 else average, sum(s * m for s, m in zip(share, dense, strict=True)), 1e-12
    )
    v = rng.normal(size=(COUNT, 2, DIM))
    assert_close(parts.product(tensor(v)), np.array([x @ m for x, m in zip(v, dense, strict=True)]), 1e-12)
    shares = rng.uniform(size=(2, COUNT))
    mixtures = parts.mixtures(tensor(shares))
    assert (mixtures.ndim == 2) == (average.ndim == 1)
    mixtures = torch.diag_embed(mixtures) if mixtures.ndim == 2 else mixtures
    assert_close(mixtures, np.einsum("jk,kde->jde", shares, dense), 1e-12)
    some = parts.rows(slice(1, 3)).product(tensor(v[1:3]))
    assert_close(some, np.array([x @ m for x, m in zip(v[1:3], dense[1:3], strict=True)]), 1e-12)


@pytest.mark.parametrize("towards_diagonal", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("towards_pooled", [0.0, 0.3, 1.0, [0.0, 0.2, 0.7, 1.0]])
@pytest.mark.parametrize("name", ["full", "low rank", "diagonal", "common"])
def test_shrinking_mixes_with_the_pooled_covariance_and_then_its_diagonal(name, towards_pooled, towards_diagonal):
    """For each form of `ClassStatistics`."""
    rng = np.random.default_rng(0)
    parts = FORMS[name].draw(rng, COUNT, DIM)
    dense = FORMS[name].dense(parts, COUNT)
    pooled = parts["common"] if name == "common" else reference.spd(rng, DIM)
    variances = np.diag(np.diag(pooled))
    target = variances if name == "diagonal" else pooled
    a = np.broadcast_to(towards_pooled, COUNT)[:, None, None]
    expected = (1 - towards_diagonal) * ((1 - a) * dense + a * target) + towards_diagonal * variances
    built = as_covariances(FORMS[name].build({key: tensor(part) for key, part in parts.items()}))
    given = tensor(np.diag(pooled) if name == "diagonal" else pooled)
    shares = tensor(towards_pooled) if isinstance(towards_pooled, list) else towards_pooled
    assert_close(_dense(built.shrunk(given, shares, towards_diagonal)), expected, 1e-12)


def test_adding_to_the_diagonal_leaves_the_original_alone(form):
    covariance, dense = form
    parts = as_covariances(covariance)
    assert_close(_dense(parts.plus_diagonal(torch.full((1, DIM), 0.5, dtype=torch.float64))), dense + 0.5 * np.eye(DIM), 1e-12)
    assert_close(_dense(covariance), dense, 1e-12)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.4])
def test_scaling_multiplies_all_of_every_covariance(form, factor):
    covariance, dense = form
    assert_close(_dense(as_covariances(covariance).scaled(factor)), factor * dense, 1e-12)
    assert_close(_dense(covariance), dense, 1e-12)
