"""The scores that benchmarks/photos.py compares are what they are called, and its plot shows them."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
COUNTS = ("1", "5", "all")


@pytest.fixture(scope="module")
def modules() -> Iterator[SimpleNamespace]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(f"_{name}") for name in ("kept", "photo_plot", "photo_scores")})
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_calibration_error_is_the_mean_gap_of_the_bins(modules) -> None:
    rng = np.random.default_rng(0)
    probabilities, labels = rng.dirichlet([0.5] * 3, 200), rng.integers(3, size=200)
    expected, edges = 0.0, np.linspace(0, 1, 16)
    for low, high in itertools.pairwise(edges):
        own = (probabilities.max(1) >= low) & (probabilities.max(1) < high)
        if own.any():
            right = (probabilities[own].argmax(1) == labels[own]).mean()
            expected += own.mean() * abs(right - probabilities[own].max(1).mean())
    assert modules.photo_scores.calibration_error(probabilities, labels) == pytest.approx(expected, rel=1e-12)
    assert modules.photo_scores.calibration_error(np.eye(3), np.arange(3)) == 0


def test_the_gap_of_answers_that_are_right_as_often_as_stated_is_only_chance(modules) -> None:
    rng = np.random.default_rng(0)
    stated = rng.uniform(0.2, 1, 200_000)
    assert modules.photo_scores.gap(stated, rng.random(200_000) < stated) < 0.01
    assert modules.photo_scores.gap(stated, rng.random(200_000) < stated - 0.1) == pytest.approx(0.1, abs=0.01)


def test_distances_are_those_of_mahalanobis(modules) -> None:
    rng = np.random.default_rng(0)
    means, Q, root = rng.normal(size=(3, 5)), rng.normal(size=(7, 5)), rng.normal(size=(5, 5))
    expected = cdist(means, Q, "mahalanobis", VI=root @ root.T) ** 2
    np.testing.assert_allclose(modules.photo_scores.distances(means, root @ root.T, Q), expected, rtol=1e-10)


def test_the_rotation_does_not_change_logistic_regression(modules, monkeypatch) -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 8)
    X, Q = rng.normal(size=(24, 60)) + 0.5 * y[:, None] * (np.arange(60) < 5), rng.normal(size=(300, 60))
    monkeypatch.setattr(modules.photo_scores, "STRENGTHS", [0.01])
    found = modules.photo_scores.logistic(X, y, Q)
    mean, std = X.mean(0), X.std(0)
    direct = [
        LogisticRegression(C=0.01, tol=1e-3, max_iter=200).fit(one(X), y).predict(one(Q))
        for one in (lambda x: x, lambda x: (x - mean) / std)
    ]
    assert max((found == each).mean() for each in direct) > 0.99  # the optimiser stops at its tolerance


def test_draws_are_of_each_class_and_nested_in_all(modules) -> None:
    labels = np.array([2, 0, 1] * 10)
    rows = modules.photo_scores.drawn(labels, 4, seed=1)
    assert np.bincount(labels[rows]).tolist() == [4, 4, 4] and len(set(rows)) == 12
    assert sorted(modules.photo_scores.drawn(labels, None, seed=1)) == list(range(30))


def test_the_best_temperature_is_the_one_that_the_labels_were_drawn_with(modules) -> None:
    rng = np.random.default_rng(0)
    scores = 40 * rng.normal(size=(20_000, 4))
    noise = rng.gumbel(size=scores.shape)  # the largest of scores / T + noise is a draw from their softmax
    assert modules.photo_scores.best_temperature(scores, (scores / 25 + noise).argmax(1)) == pytest.approx(25, rel=0.05)


def test_the_plot_has_a_line_for_each_classifier_and_set(modules) -> None:
    names = {line[2]: line[1] for line in modules.photo_plot.LINES}
    paragraphs = {}
    for set_name in ("flowers", "leaves"):
        for row, part in names.items():
            heading = f"{part.format(set_name)}: accuracy\n  photos a class   {'   '.join(COUNTS)}"
            values = "-   80.0 ± 1.0   90.0" if row == "shrunk LDA" else "60.0   85.0 ± 1.0   95.0"
            paragraphs.setdefault(heading, []).append(f"  {row}   {values}")
    text = "\n\n".join("\n".join([heading, *rows]) for heading, rows in paragraphs.items())
    made = modules.photo_plot.photos_plot(modules.kept.Kept(text))
    lines = [line.split('"')[1].split() for line in made.splitlines() if line.startswith("<polyline")]
    assert len(lines) == 2 * len(names)
    assert sorted(map(len, lines)) == [2, 2] + [3] * (2 * len(names) - 2)  # nothing where there is no figure
