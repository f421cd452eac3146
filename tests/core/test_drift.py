"""Drift of class statistics against the formulas written out in numpy, and against features whose drift is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from amgc.core import drift
from amgc.core.statistics import ClassStatistics

pytestmark = pytest.mark.cpus
RNG = np.random.default_rng(0)
POINTS, OLD, NEW = RNG.normal(size=(3, 4)), RNG.normal(size=(9, 4)), RNG.normal(size=(9, 4))


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def test_a_displacement_is_the_mean_drift_weighted_by_a_gaussian() -> None:
    expected = np.zeros((3, 4))
    for k, point in enumerate(POINTS):
        weights = [np.exp(-np.sum((row - point) ** 2) / (2 * 0.7**2)) for row in OLD]
        for weight, before, after in zip(weights, OLD, NEW, strict=True):
            expected[k] += weight / sum(weights) * (after - before)
    np.testing.assert_allclose(drift.displacement(*tensors(POINTS, OLD, NEW), 0.7), expected, rtol=1e-12)


def test_far_from_all_images_a_displacement_is_that_of_the_nearest() -> None:
    """There the Gaussians are too small for a float, and their quotient would be 0 / 0."""
    far = OLD[[5]] + 1e4
    (moved,) = drift.displacement(*tensors(far, OLD, NEW), 0.01)
    nearest = np.square(OLD - far).sum(1).argmin()
    np.testing.assert_allclose(moved, (NEW - OLD)[nearest], rtol=1e-12)


def test_an_elastic_displacement_has_distances_by_the_matrix_scaled_to_one() -> None:
    matrix = OLD.T @ OLD
    nearness = np.array([[-(row - point) @ matrix @ (row - point) for row in OLD] for point in POINTS])
    scaled = (nearness - nearness.min()) / (nearness.max() - nearness.min())
    weights = np.exp(scaled / (2 * 0.2**2))
    expected = weights / weights.sum(1, keepdims=True) @ (NEW - OLD)
    got = drift.elastic_displacement(*tensors(POINTS, OLD, NEW, matrix), 0.2)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_one_image_moves_every_point_as_it_moves() -> None:
    for got in (
        drift.displacement(*tensors(POINTS, OLD[:1], NEW[:1]), 0.3),
        drift.elastic_displacement(*tensors(POINTS, OLD[:1], NEW[:1], np.eye(4)), 0.2),
    ):
        np.testing.assert_allclose(got, np.repeat(NEW[:1] - OLD[:1], 3, 0), rtol=1e-12)


def test_the_linear_map_is_ridge_regression_and_finds_a_map_that_exists() -> None:
    expected = np.linalg.solve(OLD.T @ OLD + 0.5 * np.eye(4), OLD.T @ NEW)
    np.testing.assert_allclose(drift.linear_map(*tensors(OLD, NEW), 0.5), expected, rtol=1e-10)
    true = RNG.normal(size=(4, 4))
    np.testing.assert_allclose(drift.linear_map(*tensors(OLD, OLD @ true), 1e-9), true, rtol=1e-6, atol=1e-7)


def test_a_map_of_features_that_do_not_vary_is_finite() -> None:
    still = np.concatenate([OLD, np.zeros((9, 2))], 1)
    assert bool(torch.isfinite(drift.linear_map(*tensors(still, still), 1e-30)).all())


def test_a_projector_projects_onto_the_range() -> None:
    rows = RNG.normal(size=(2, 5))
    got = drift.projector(torch.from_numpy(rows.T @ rows)).numpy()
    np.testing.assert_allclose(got, np.linalg.pinv(rows) @ rows, atol=1e-10)


def test_transformed_statistics_are_those_of_transformed_features() -> None:
    rows, matrix = torch.from_numpy(RNG.normal(size=(12, 4))), torch.from_numpy(RNG.normal(size=(4, 4)))
    labels = [0, 1] * 6
    one, other = (ClassStatistics(4, dtype=torch.float64).update(some, labels) for some in (rows, rows @ matrix))
    drift.transform(one, 1, matrix)
    for moved, expected in ((one.mean, other.mean), (one.covariance, other.covariance)):
        torch.testing.assert_close(moved[1], expected[1], rtol=1e-12, atol=1e-12)
    untouched = ClassStatistics(4, dtype=torch.float64).update(rows, labels)
    assert torch.equal(one.mean[0], untouched.mean[0]) and torch.equal(one.covariance[0], untouched.covariance[0])


def test_only_full_covariances_can_be_moved() -> None:
    with pytest.raises(ValueError, match="'diagonal' cannot be moved"):
        drift.move(ClassStatistics(4, "diagonal").update(OLD, [0] * 9), 0, torch.zeros(4))
