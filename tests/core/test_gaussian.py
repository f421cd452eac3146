"""Gaussian helpers against scipy, scikit-learn and sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.covariance
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import FORMS, assert_close, many, spd, tensor

from amgc.core.covariance import LowRank
from amgc.core.gaussian import Sampler, correlation, oas, root, sample, shrink

pytestmark = pytest.mark.cpus

RNG = np.random.default_rng


@pytest.mark.parametrize("name", FORMS)
def test_draws_have_the_mean_and_covariance_asked_for(name):
    form, rng = FORMS[name], RNG(0)
    parts, mean = form.draw(rng, 2, 3), rng.normal(size=(2, 3))
    built = form.build({key: tensor(part) for key, part in parts.items()})
    draws = sample(tensor(mean), built, 40_000, torch.Generator().manual_seed(0)).numpy()
    assert draws.shape == (2, 40_000, 3)
    for k, dense in enumerate(form.dense(parts, 2)):
        deviation = np.sqrt(np.diag(dense))
        assert (np.abs(draws[k].mean(0) - mean[k]) < 5 * deviation / 200).all()
        assert (np.abs(np.cov(draws[k].T) - dense) < 5 * 2**0.5 * np.outer(deviation, deviation) / 200).all()


def test_a_singular_covariance_is_drawn_from_within_its_plane():
    half = RNG(0).normal(size=(4, 2))
    draws = sample(torch.zeros(1, 4).double(), tensor(half @ half.T)[None], 5000, torch.Generator().manual_seed(0))[0].numpy()
    outside = np.linalg.svd(half)[0][:, 2:]
    assert np.abs(draws @ outside).max() < 1e-6
    assert_close(np.cov(draws.T), half @ half.T, 0.1)


def test_the_same_generator_gives_the_same_draws():
    one, other = (sample(torch.zeros(2, 3), torch.ones(2, 3), 5, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(one, other)


def test_a_root_times_itself_is_the_covariance_even_a_singular_one():
    rng = RNG(0)
    half = rng.normal(size=(5, 2))
    for matrix in (spd(rng, 5), half @ half.T, np.zeros((5, 5))):
        r = root(tensor(matrix)).numpy()
        assert np.abs(r @ r.T - matrix).max() < 1e-7


@many
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 12), rank=st.integers(0, 12))
def test_rounding_a_covariance_moves_its_root_in_proportion(seed, dim, rank):
    """The change is at most the rounding divided by the least deviation, for singular covariances too."""
    rng, rank = RNG(seed), min(dim, rank)
    axes, deviations = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:, :rank], rng.uniform(0.1, 1, rank)
    covariance, exact = ((axes * values) @ axes.T for values in (deviations**2, deviations))
    rounded = tensor(covariance, torch.float32)
    rounding = np.linalg.norm(rounded.double().numpy() - covariance) / 0.1
    rounding += np.finfo(np.float32).eps * np.linalg.norm(exact)  # of the root itself
    assert np.linalg.norm(root(rounded).double().numpy() - exact) <= 2 * rounding


def test_draws_do_not_depend_on_how_a_factor_is_turned():
    """Its columns are eigenvectors, whose signs are arbitrary, and whose directions are if eigenvalues are equal."""
    rng = RNG(0)
    factor, diagonal = rng.normal(size=(2, 5, 3)), 20 + rng.normal(size=(2, 5))
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    draws = [
        sample(torch.zeros(2, 5).double(), LowRank(tensor(f), tensor(diagonal)), 4, torch.Generator().manual_seed(0))
        for f in (factor, factor * [1, -1, 1], factor @ turn)
    ]
    for other in draws[1:]:
        assert_close(other, draws[0].numpy(), 1e-12)


def test_a_class_of_singular_covariance_leaves_the_draws_of_others_alone():
    regular, singular = spd(RNG(0), 3, 2), np.zeros((3, 3))
    one, two = (
        sample(torch.zeros(2, 3).double(), tensor([regular[0], other]), 5, torch.Generator().manual_seed(0))
        for other in (regular[1], singular)
    )
    assert_close(two[0], one[0].numpy(), 1e-12)


def test_shrink_adds_the_mean_variance_and_the_mean_of_the_rest():
    matrix = np.array([[1.0, 2.0, 0.0], [2.0, 5.0, 1.0], [0.0, 1.0, 3.0]])  # mean variance 3, mean of the rest 1
    expected = matrix + 0.5 * 3 * np.eye(3) + 0.1 * 1 * (1 - np.eye(3))
    assert_close(shrink(tensor(matrix), 0.5, 0.1), expected, 1e-12)
    assert_close(shrink(tensor(matrix)[None].repeat(2, 1, 1), 0.5, 0.1)[1], expected, 1e-12)
    assert_close(shrink(tensor([[2.0]]), 0.5, 0.1), [[3.0]], 1e-12)


def test_correlation_is_that_of_numpy():
    rows = RNG(0).normal(size=(30, 4)) @ RNG(1).normal(size=(4, 4))
    assert_close(correlation(tensor(np.cov(rows.T))[None])[0], np.corrcoef(rows.T), 1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("samples", "dim"), [(20, 8), (200, 8), (30, 40)])
def test_oas_is_scikit_learns_shrinkage_for_features_of_equal_variance(seed, samples, dim):
    """scikit-learn shrinks towards the mean variance, we towards each feature's variance. With equal variances both agree."""
    rng = RNG(seed)
    rows = rng.normal(size=(samples, dim)) @ (np.eye(dim) + 0.5 * rng.normal(size=(dim, dim)))
    rows = (rows - rows.mean(0)) / rows.std(0)
    _, expected = sklearn.covariance.oas(rows, assume_centered=True)
    actual = oas(tensor(np.cov(rows.T, bias=True)), samples)
    # scikit-learn's formula (with 1 instead of 1 - 2/d) differs from the paper's in terms of order 1/d.
    p, square = dim, (np.cov(rows.T, bias=True) ** 2).sum()
    paper = ((1 - 2 / p) * square + p**2) / ((samples + 1 - 2 / p) * (square - p**2 / p))
    assert actual == pytest.approx(min(1.0, paper), rel=1e-9)
    assert actual == pytest.approx(expected, rel=3 / p)


def test_oas_does_not_depend_on_the_units_and_survives_constant_features():
    rng = RNG(0)
    matrix, scale = spd(rng, 5), np.array([1e-3, 1.0, 10.0, 1e4, 3.0])
    assert oas(tensor(matrix * np.outer(scale, scale)), 20) == pytest.approx(oas(tensor(matrix), 20), rel=1e-9)
    dead = matrix.copy()
    dead[2] = dead[:, 2] = 0
    assert 0 < oas(tensor(dead), 20) <= 1
    assert oas(tensor(matrix), 0) == 1.0 and oas(torch.eye(3), 50) == 1.0 and oas(torch.zeros(3, 3), 50) == 1.0
    assert oas(tensor(matrix), 10**9) < 1e-6


@pytest.mark.parametrize("name", FORMS)
def test_a_sampler_draws_again_and_again_what_sample_draws_once(name):
    form, rng = FORMS[name], RNG(0)
    parts, mean = form.draw(rng, 2, 3), tensor(rng.normal(size=(2, 3)))
    built = form.build({key: tensor(part) for key, part in parts.items()})
    draw, generator = Sampler(mean, built), torch.Generator().manual_seed(3)
    first, second = draw(4, generator), draw(2, generator)
    again = torch.Generator().manual_seed(3)
    assert torch.equal(first, sample(mean, built, 4, again)) and torch.equal(second, sample(mean, built, 2, again))
    assert not torch.equal(first[:, :2], second)


def test_a_sampler_draws_in_the_type_of_the_means():
    draws = Sampler(torch.zeros(2, 3), tensor(spd(RNG(0), 3, 2)))(5)
    assert draws.dtype == torch.float32 and draws.shape == (2, 5, 3)
