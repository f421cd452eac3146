"""The fit of an image to a class: by hand, on Gaussians and on digits."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from amgc.core.statistics import ClassStatistics
from amgc.model import Model, novelty

pytestmark = pytest.mark.cpus


def spread_to(rows: np.ndarray) -> np.ndarray:
    """Return the shrinkage target of a class's covariance: half its variances, half their mean."""
    variances = rows.var(0, ddof=1)
    return np.diag((variances + variances.mean()) / 2)


def test_the_left_out_distance_is_that_of_a_class_without_the_image(rng):
    rows = rng.normal(size=(20, 5)) @ rng.normal(size=(5, 5))
    statistics = ClassStatistics(5, dtype=torch.float64).update(rows, ["a"] * 20)
    m = novelty.PRIOR
    expected = []
    for place in range(20):
        others = np.delete(rows, place, axis=0)
        scatter = (others - others.mean(0)).T @ (others - others.mean(0))
        covariance = (scatter + m * spread_to(others)) / (len(others) - 1 + m)
        away = rows[place] - others.mean(0)
        expected.append(away @ np.linalg.solve(covariance, away))
    assert np.allclose(novelty.leave_one_out(torch.from_numpy(rows), statistics, "a"), expected, rtol=1e-10)


def test_the_distance_of_another_image_is_by_the_classs_own_mean_and_covariance(rng):
    rows, other = rng.normal(3.0, 2.0, (12, 4)), rng.normal(size=(7, 4))
    statistics = ClassStatistics(4, dtype=torch.float64).update(rows, ["a"] * 12)
    scatter = (rows - rows.mean(0)).T @ (rows - rows.mean(0))
    covariance = (scatter + novelty.PRIOR * spread_to(rows)) / (11 + novelty.PRIOR)
    away = other - rows.mean(0)
    expected = np.einsum("ni,ni->n", away, np.linalg.solve(covariance, away.T).T)
    assert np.allclose(novelty._distance(torch.from_numpy(other), statistics, "a"), expected)


@pytest.mark.parametrize(
    ("count", "dim", "low", "high"), [(30, 8, 0.001, 0.015), (100, 200, 0.001, 0.015), (600, 20, 0.001, 0.015)]
)
def test_at_most_one_per_cent_of_held_out_images_have_a_fit_below_one_per_cent(rng, count, dim, low, high):
    """Averaged over 20 classes, alternately Gaussian and heavy-tailed. Images have longer tails than both, see TAIL."""
    found = []
    for number in range(20):
        mixing = rng.normal(size=(dim, dim))
        tail = (
            (lambda n, m=mixing: rng.normal(size=(n, dim)) @ m)
            if number % 2
            else (lambda n, m=mixing: rng.standard_t(8, (n, dim)) @ m)
        )
        rows, held_out = torch.from_numpy(tail(count)), torch.from_numpy(tail(1000))
        more = novelty.empty_statistics(dim).update(novelty.project(rows), ["a"] * count)
        found.append(novelty.Fits.empty(dim).learned(more, {"a": novelty.project(rows)}).of(held_out, ["a"] * 1000))
    shares = np.concatenate(found)
    assert low < (shares < 0.01).mean() < high
    assert abs((shares < 0.5).mean() - 0.5) < 0.06


def test_far_rows_do_not_fit_and_rows_at_the_mean_do(rng):
    rows = torch.from_numpy(rng.normal(size=(50, 6)))
    fits = novelty.Fits.empty(6).learned(novelty.empty_statistics(6).update(rows, ["a"] * 50), {"a": rows})
    far, near = torch.full((1, 6), 30.0, dtype=torch.float64), rows.mean(0, keepdim=True)
    assert fits.of(far, ["a"])[0] < 1e-6 and fits.of(near, ["a"])[0] > 0.99
    steps = torch.linspace(0, 60, 200, dtype=torch.float64)[:, None].expand(-1, 6)
    assert (np.diff(fits.of(steps, ["a"] * 200)) <= 1e-12).all(), "farther never fits better"


def test_other_classes_do_not_matter_and_a_forgotten_one_leaves_nothing(rng):
    rows = {name: torch.from_numpy(rng.normal(size=(20, 6))) for name in "ab"}
    alone = novelty.Fits.empty(6).learned(novelty.empty_statistics(6).update(rows["a"], ["a"] * 20), {"a": rows["a"]})
    both = alone.learned(novelty.empty_statistics(6).update(rows["b"], ["b"] * 20), {"b": rows["b"]})
    shown = torch.from_numpy(rng.normal(size=(9, 6)))
    assert (alone.of(shown, ["a"] * 9) == both.of(shown, ["a"] * 9)).all()
    left = both.without("b")
    assert left.header() == alone.header() and left.distances == alone.distances
    assert all(torch.equal(one, other) for one, other in zip(left.tensors().values(), alone.tensors().values(), strict=True))


def test_the_fit_is_the_share_of_students_distribution(rng):
    logs = rng.normal(2.0, 0.4, 15)
    kept = novelty.Distances.of(np.exp(logs))
    deviation = novelty.TAIL * logs.std(ddof=1) * np.sqrt(1 + 1 / 15)
    asked = np.array([1.0, 5.0, 8.0, 30.0])
    assert np.allclose(kept.farther(asked), scipy.stats.t.sf((np.log(asked) - logs.mean()) / deviation, 14))


def test_distances_add_up_however_images_are_split_into_calls_of_learn(rng):
    found = np.exp(rng.normal(size=30))
    whole, parts = novelty.Distances.of(found), novelty.Distances()
    for part in np.split(found, [1, 6, 6, 20]):
        parts = parts.merge(novelty.Distances.of(part))
    assert parts.images == 30 and np.allclose([parts.mean, parts.squares], [whole.mean, whole.squares])


@pytest.mark.parametrize("steps", [[6], [5, 1], [1] * 8, [3, 3], [12], [2] * 6])
def test_a_class_that_grows_by_small_steps_does_not_reject_its_own(rng, steps):
    """At most 1.5 % of the held-out images of 30 classes at 0.01, however the first images arrived."""
    found = []
    for _ in range(30):
        mixing = rng.normal(size=(20, 20))
        fits = novelty.Fits.empty(20)
        for count in steps:
            rows = torch.from_numpy(rng.normal(size=(count, 20)) @ mixing)
            fits = fits.learned(novelty.empty_statistics(20).update(rows, ["a"] * count), {"a": rows})
        found.append(fits.of(torch.from_numpy(rng.normal(size=(200, 20)) @ mixing), ["a"] * 200))
    assert (np.concatenate(found) < 0.01).mean() < 0.015


def test_a_class_of_too_few_images_is_never_rejected(rng):
    rows = torch.from_numpy(rng.normal(size=(2, 6)))
    fits = novelty.Fits.empty(6).learned(novelty.empty_statistics(6).update(rows, ["a"] * 2), {"a": rows})
    assert fits.of(torch.full((1, 6), 1e6), ["a"])[0] == 1.0


def test_the_directions_are_the_same_everywhere():
    """Two sites must use the same projection, so these numbers must never change."""
    signs = (novelty._directions(100) * 10).round()
    assert signs.abs().min() == 1 and signs[:3, :8].int().tolist() == FIRST
    assert abs(float(signs.mean())) < 0.05


FIRST = [[-1, 1, -1, 1, 1, 1, 1, 1], [-1, -1, 1, -1, -1, -1, -1, 1], [1, -1, 1, 1, 1, -1, -1, -1]]


def test_few_held_out_digits_are_rejected_and_many_of_unseen_ones(tmp_path):
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.4, random_state=0, stratify=labels)
    model = Model.create(tmp_path / "digits", filters=40)
    model.learn_all({str(digit): pixels[train][labels[train] == digit] for digit in range(8)})
    found = model.evaluate(pixels[test], [str(label) for label in labels[test]])
    assert found.accuracy > 0.95 and set(found.unseen) == {"8", "9"}
    known, unseen = found.rejected(0.01)
    assert 0 < known < 0.025 and unseen > 10 * known
