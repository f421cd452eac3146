"""Measure the defaults of AMGCClassifier: shrinkage and margin on several data sets.

    python benchmarks/defaults.py           # about ten minutes with the development data, half a minute without
    python benchmarks/defaults.py --quick   # iris, seconds

Held-out accuracy in percent. With frozen features and without old and new classes, the order of arrival does not matter, so
each data set is learned in one call. For the margins, half of the classes are old.
"""

from __future__ import annotations

import argparse

import numpy as np
from _report import features_file, kept
from sklearn import datasets
from sklearn.model_selection import train_test_split

from amgc import AMGCClassifier

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def few(X, y, each: int, seed: int) -> Split:
    """Return `each` samples of every class for learning, and the others for testing."""
    rng = np.random.default_rng(seed)
    chosen = np.concatenate([rng.permutation(np.flatnonzero(y == label))[:each] for label in np.unique(y)])
    rest = np.setdiff1d(np.arange(len(y)), chosen)
    return X[chosen], y[chosen], X[rest], y[rest]


def feature_sets(quick: bool) -> dict[str, list[Split]]:
    sets: dict[str, list[Split]] = {}
    for name in ("iris",) if quick else ("digits", "wine", "breast_cancer", "iris"):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        halves = [train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y) for seed in range(5)]
        sets[name] = [(a, c, b, d) for a, b, c, d in halves]
    if quick:
        return sets
    X, y = datasets.load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    lifted = np.maximum((X - X.mean(0)) @ rng.standard_normal((64, 512)) / 64 + rng.uniform(-1, 1, 512), 0)
    halves = [train_test_split(lifted, y, test_size=0.5, random_state=seed, stratify=y) for seed in range(3)]
    sets["digits, 512 random ReLU"] = [(a, c, b, d) for a, b, c, d in halves]
    for each in (5, 20):
        sets[f"digits, {each} a class"] = [few(X, y, each, seed) for seed in range(5)]
    if file := features_file():
        data = np.load(file)
        x, test = (data[part].astype(np.float32) * data["scale"] for part in ("train_x", "test_x"))
        sets["CIFAR-100, ResNet-18"] = [(x, data["train_y"], test, data["test_y"])]
        for each in (20, 100):
            a, b, _, _ = few(x, data["train_y"], each, 0)
            sets[f"the same, {each} a class"] = [(a, b, test, data["test_y"])]
    return sets


def accuracy(splits: list[Split], **parameters) -> float:
    scores = [AMGCClassifier(**parameters).fit(a, b).score(c, d) for a, b, c, d in splits]
    return 100 * float(np.mean(scores))


def enlarged(splits: list[Split], margin: float) -> float:
    """Learn the first half of the classes, which are old when the second half arrives."""
    scores = []
    for a, b, c, d in splits:
        labels = np.unique(b)
        first = np.isin(b, labels[: len(labels) // 2])
        classifier = AMGCClassifier(margin=margin).partial_fit(a[first], b[first]).partial_fit(a[~first], b[~first])
        scores.append(classifier.score(c, d))
    return 100 * float(np.mean(scores))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="iris, to see that it runs")
    quick = arguments.parse_args().quick
    with kept("defaults"):
        sets = feature_sets(quick)
        print("shrinkage: towards the pooled covariance, towards its diagonal")
        choices = {
            "auto (default)": "auto",
            "none": (0.0, 0.0),
            "half, 0": (0.5, 0.0),
            "0.9, 0.01": (0.9, 0.01),
            "all (one covariance), 0.01": (1.0, 0.01),
            "0.5, 0.1": (0.5, 0.1),
        }
        for name, splits in sets.items():
            shown = "  ".join(f"{label}: {accuracy(splits, shrinkage=value):.1f}" for label, value in choices.items())
            print(f"  {name:26s} {shown}", flush=True)
        print("\nmargin (λ of the first half of the classes when the second half arrives), shrinkage auto")
        for name, splits in sets.items():
            shown = "  ".join(f"{margin}: {enlarged(splits, margin):.1f}" for margin in (0.0, 0.02, 0.1, 0.4, 1.0))
            print(f"  {name:26s} {shown}", flush=True)
        print("\nstandardize and covariance form, shrinkage auto")
        variants = {"default": {}, "not standardized": {"standardize": False}} | {
            form: {"covariance": form} for form in ("lowrank", "shared", "diagonal")
        }
        for name, splits in sets.items():
            shown = "  ".join(f"{label}: {accuracy(splits, **values):.1f}" for label, values in variants.items())
            print(f"  {name:26s} {shown}", flush=True)


if __name__ == "__main__":
    main()
