"""Code of benchmarks/photos.py: photographs as features, other images, and the classifiers and scores that are compared."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from amgc import AMGCClassifier
from amgc.data import load
from amgc.features.extractor import Extractor
from amgc.model import extractors
from amgc.model.choice import look
from amgc.model.pictures import Frame, pictures

SETS = ("flowers", "leaves")
DEFAULT, TOP, PATCHES = "552 features", "1,280 features", "patches"
STRENGTHS = 10.0 ** np.arange(-4, 3)  # C of logistic regression
NEIGHBOURS = 10
OTHERS = 200  # images of each other kind

Array = np.ndarray


@dataclass(frozen=True)
class Half:
    """The photos of train/ or test/: features (n, d) by kind, and classes (n,) from 0."""

    features: dict[str, Array]
    labels: Array


@dataclass(frozen=True)
class Photos:
    """A set of photographs."""

    name: str
    train: Half
    test: Half

    @property
    def classes(self) -> int:
        return int(self.train.labels.max()) + 1


class Encoder:
    """Makes features of images. The network is run once for both of its kinds of features."""

    def __init__(self) -> None:
        self.lite = extractors.create("lite0", {"stages": (7, 8), "textures": (3, 4, 5)}, None, 0)
        self.dim = extractors.create("lite0", {}, None, 0).dim

    def both(self, images: Any) -> dict[str, Array]:
        """Return the default features of lite0, and the 1,280 that ImageNet's classifier uses."""
        found = encoded(self.lite, images)
        return {DEFAULT: found[:, : self.dim], TOP: found[:, self.dim :]}

    def read(self, folder: Path) -> Photos:
        """Return a set of photos. Patches are fitted on all photos of train/, as `amgc learn` does with the first ones."""
        names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
        halves = {
            half: [(row, one) for row, name in enumerate(names) for one in files(folder / half / name)] for half in HALVES
        }
        first = pictures([path for _, path in halves["train"]])
        options, side = extractors.adapt(extractors.defaults("patches"), None, look(first))
        patches = extractors.create("patches", options, side, 0)
        extractors.fit(patches, frame(patches), first, 0)
        made = {}
        for half, given in halves.items():
            paths = [path for _, path in given]
            features = self.both(paths) | {PATCHES: encoded(patches, paths)}
            made[half] = Half(features, np.array([row for row, _ in given]))
        return Photos(folder.name, made["train"], made["test"])


HALVES = ("train", "test")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def frame(extractor: Extractor) -> Frame:
    channels, side, _ = extractor.image_shape
    return Frame(side, side, channels)


def encoded(extractor: Extractor, images: Any) -> Array:
    """Return the features (n, d) of images."""
    batches = extractors.encode_batches(extractor, frame(extractor), pictures(images))
    return torch.cat([features for _, features, _ in batches]).numpy()


def draw_sets(folder: Path) -> Path:
    """Write generated images as sets of photos, to try the benchmark without photos."""
    random = np.random.default_rng(0)
    for name in SETS:
        for label in range(3):
            coarse = random.uniform(40, 215, (6, 6, 3))
            for half, count in (("train", 9), ("test", 6)):
                (folder / name / half / f"kind {label}").mkdir(parents=True)
                for number in range(count):
                    pixels = np.clip(coarse + random.normal(0, 30, coarse.shape), 0, 255).astype(np.uint8)
                    image = Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC)
                    image.save(folder / name / half / f"kind {label}" / f"{number}.png")
    return folder


def others(cifar: str | None, count: int = OTHERS) -> dict[str, Any]:
    """Return images of other kinds: digits, plain walls, and CIFAR-100 if its folder is given."""
    random = np.random.default_rng(0)
    digits = load_digits().images
    chosen = random.permutation(len(digits))[:count]
    found: dict[str, Any] = {
        "digits": [(digits[row] * 15.9).astype(np.uint8) for row in chosen],
        "walls": [wall(random) for _ in range(count)],
    }
    if cifar is not None:
        test = load("cifar100", root=cifar).test
        rows = random.permutation(len(test))[:count]
        found["CIFAR-100"] = test.take(rows).numpy().transpose(0, 2, 3, 1)
    return found


def wall(random: np.random.Generator, side: int = 224) -> Array:
    """Draw a plain wall: two similar colours that fade into each other, and noise as of a camera."""
    angle, colour = random.uniform(0, 2 * np.pi), random.uniform(30, 225, 3)
    across = np.linspace(-1, 1, side)
    fade = np.cos(angle) * across[:, None] + np.sin(angle) * across
    pixels = colour + fade[..., None] * random.normal(0, 15, 3) + random.normal(0, random.uniform(1, 6), (side, side, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


# ---- classifiers -----------------------------------------------------------------------------------------------------


def cosine(X: Array, y: Array, Q: Array) -> Array:
    """Return the cosines (n, K) of rows of Q with the class means."""
    means = np.stack([X[y == label].mean(0) for label in np.unique(y)])
    return unit(Q) @ unit(means).T


def unit(X: Array) -> Array:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def logistic(X: Array, y: Array, Q: Array) -> Array:
    """Return the classes that logistic regression predicts for Q. Cross-validation chooses C, and raw or standardised features.

    With few samples it is faster after a rotation to the directions that they span. This changes neither penalty nor result.
    """
    folds = StratifiedKFold(min(5, int(np.bincount(y).min())), shuffle=True, random_state=0)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for scale in ("passthrough", StandardScaler()):
            turn = Pipeline([("scale", scale), ("rotate", PCA())])
            search = GridSearchCV(LogisticRegression(tol=1e-3, max_iter=200), {"C": STRENGTHS}, cv=folds)
            search.fit(turn.fit_transform(X), y)
            found.append((search.best_score_, turn, search))
    _, turn, search = max(found, key=lambda one: one[0])
    return search.predict(turn.transform(Q))


# ---- scores ----------------------------------------------------------------------------------------------------------


def calibration_error(probabilities: Array, labels: Array, bins: int = 15) -> float:
    """Return the expected calibration error of the largest probability: Σ share of bin · |accuracy - mean probability|."""
    stated, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((stated * bins).astype(int), bins - 1)
    gaps = np.bincount(place, right, bins) - np.bincount(place, stated, bins)
    return float(np.abs(gaps).sum() / len(labels))


def novelty(X: Array, y: Array, Q: Array) -> dict[str, Array]:
    """Return scores of Q that are small for samples of unseen classes."""
    ours = AMGCClassifier().fit(X, y)
    labels = np.unique(y)
    means = np.stack([X[y == label].mean(0) for label in labels])
    precision = LedoitWolf(assume_centered=True).fit(X - means[np.searchsorted(labels, y)]).precision_
    distances = [np.einsum("nd,de,ne->n", Q - mean, precision, Q - mean, optimize=True) for mean in means]
    near = np.sort(unit(Q) @ unit(X).T, axis=1)[:, -NEIGHBOURS:]
    return {
        "ours": ours.typicality(Q),
        "Mahalanobis, shared covariance": -np.min(distances, axis=0),
        "cosine to the nearest mean": cosine(X, y, Q).max(1),
        "largest probability (ours)": ours.predict_proba(Q).max(1),
        f"{NEIGHBOURS} nearest neighbours (keeps samples)": near.mean(1),
    }


def drawn(labels: Array, count: int | None, seed: int) -> Array:
    """Return rows of `count` samples of each class; all if it is None."""
    random = np.random.default_rng(seed)
    return np.concatenate([random.permutation(np.flatnonzero(labels == label))[:count] for label in np.unique(labels)])


def joined(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Join kinds of features, each given as training and test features, each with the same total variance."""
    sizes = [np.sqrt(train.var(0).sum()) for train, _ in parts]
    train, test = (np.concatenate([part[half] / size for part, size in zip(parts, sizes, strict=True)], 1) for half in (0, 1))
    return train, test
