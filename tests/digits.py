"""scikit-learn's digits as a stream of tasks, and comparisons for the tests of the estimator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from amgc import AMGCClassifier

FORMS = ("full", "lowrank", "diagonal", "shared")
TASKS = {
    "one task": [range(10)],
    "two tasks": [range(5), range(5, 10)],
    "two tasks, backwards": [range(5, 10), range(5)],
    "five tasks": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
    "five tasks, mixed": [[9, 2], [0, 7], [4, 5], [3, 6], [8, 1]],
    "one class at a time": [[k] for k in range(10)],
    "one class at a time, mixed": [[k] for k in (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)],
}


def split(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training features, held-out features, training labels and held-out labels. 40 % are held out."""
    X, y = load_digits(return_X_y=True)
    return tuple(train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y))


def part(X: np.ndarray, y: np.ndarray, labels: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples of some classes."""
    chosen = np.isin(y, list(labels))
    return X[chosen], y[chosen]


def learned(X: np.ndarray, y: np.ndarray, tasks: Sequence[Iterable[Any]], classifier: AMGCClassifier) -> AMGCClassifier:
    """Return `classifier` after one `partial_fit` per task."""
    for task in tasks:
        classifier.partial_fit(*part(X, y, task))
    return classifier


def calibration_error(probability: np.ndarray, correct: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error: |accuracy - confidence| by bins of confidence, weighted by their samples."""
    confidence = probability.max(1)
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    return float(sum(abs((correct[number == b] - confidence[number == b]).sum()) for b in range(bins)) / len(confidence))


def state(classifier: AMGCClassifier) -> dict[str, Any]:
    """Return the whole state of a classifier: parameters, attributes and the tensors of its statistics."""
    seen = {name: value for name, value in vars(classifier).items() if name not in ("statistics_", "_solution")}
    seen = {name: value.tolist() if isinstance(value, np.ndarray) else repr(value) for name, value in seen.items()}
    if hasattr(classifier, "statistics_"):
        statistics = classifier.statistics_
        seen["statistics"] = id(statistics), statistics.header() | {"classes": list(statistics.classes)}
        seen["tensors"] = {name: tensor.numpy().tobytes() for name, tensor in statistics.tensors().items()}
        seen["solution"] = classifier.coef_.tobytes(), classifier.intercept_.tobytes(), classifier.temperature_
    return seen


def same_statistics(one: AMGCClassifier, two: AMGCClassifier) -> bool:
    """Return whether two statistics are bit-identical, in the same order of arrival."""
    a, b = one.statistics_, two.statistics_
    mine, theirs = a.tensors(), b.tensors()
    return a.header() == b.header() and all(
        mine[name].shape == theirs[name].shape and mine[name].numpy().tobytes() == theirs[name].numpy().tobytes()
        for name in mine
    )


def blobs(seed: int = 0, count: int = 60, dim: int = 5, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Unit Gaussians, eight apart, in order of class."""
    random = np.random.default_rng(seed)
    means = 8 * np.eye(classes, dim)
    y = np.repeat(np.arange(classes), count)
    return means[y] + random.normal(size=(len(y), dim)), y
