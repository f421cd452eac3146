"""Code of benchmarks/photos.py: what is measured for one draw of photos, and what it is compared with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial
from unittest.mock import patch

import numpy as np
from _photo_sets import DEFAULT, PATCHES, Array, Photos
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from amgc import AMGCClassifier
from amgc.core import calibration, typicality
from amgc.core.typical import Typicality

REJECT = 0.05
STRENGTHS = 10.0 ** np.arange(-4, 3)  # C of logistic regression
NEIGHBOURS = 10
HELD_OUT = 60  # samples a class, at most, on which constants are measured

Figures = dict[str, float]


def ours_for(kind: str) -> AMGCClassifier:
    """Return our classifier as a model has it: the background is that of the default features of lite0."""
    return AMGCClassifier(background="lite0" if kind == DEFAULT else None)


def heads(photos: Photos, kind: str, count: int | None, seed: int) -> Figures:
    """Return the accuracies of classifiers, and the calibration of ours."""
    X, y, Q, truth = split(photos, kind, count, seed)
    ours = ours_for(kind).fit(X, y)
    stated = ours.predict_proba(Q)
    one_by_one = ours_for(kind)
    for label in np.random.default_rng(seed).permutation(photos.classes):
        one_by_one.partial_fit(X[y == label], y[y == label])
    found = {
        "ours": share(ours.predict(Q) == truth),
        "ours, no background": share(AMGCClassifier().fit(X, y).predict(Q) == truth),
        "cosine to the class means": share(cosine(X, y, Q).argmax(1) == truth),
        "stated": 100 * float(stated.max(1).mean()),
        "ECE": calibration_error(stated, truth),
        "difference": float(np.abs(one_by_one.predict_proba(Q) - stated).max()),
    }
    if count != 1:
        lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(X, y)
        found["shrunk LDA"] = share(lda.predict(Q) == truth)
        found["logistic regression"] = share(logistic(X, y, Q) == truth)
    return found


def features(photos: Photos, count: int | None, seed: int) -> Figures:
    """Return the accuracy of our classifier on patches, and on patches joined with lite0."""
    patches, lite = split(photos, PATCHES, count, seed), split(photos, DEFAULT, count, seed)
    y, truth = patches[1], patches[3]
    both = joined([(patches[0], patches[2]), (lite[0], lite[2])])
    return {
        name: share(AMGCClassifier(covariance="shared").fit(X, y).predict(Q) == truth)
        for name, (X, Q) in {"patches": (patches[0], patches[2]), "lite0 and patches": both}.items()
    }


def wrong_labels(photos: Photos, kind: str, count: int | None, seed: int) -> Figures:
    """Return the calibration of our classifier, taught with shuffled labels."""
    X, y, Q, truth = split(photos, kind, count, seed)
    return calibrated(ours_for(kind).fit(X, np.random.default_rng(seed).permutation(y)), Q, truth)


def noise(seed: int, count: int = 20, dim: int = 1280) -> Figures:
    """Return the calibration of our classifier on two classes of the same noise."""
    random = np.random.default_rng(seed)
    y, truth = np.repeat([0, 1], count), np.repeat([0, 1], 200)
    fitted = AMGCClassifier().fit(random.normal(size=(len(y), dim)), y)
    return calibrated(fitted, random.normal(size=(len(truth), dim)), truth)


def calibrated(classifier: AMGCClassifier, Q: Array, truth: Array) -> Figures:
    stated = classifier.predict_proba(Q)
    right = share(stated.argmax(1) == truth)
    return {"accuracy": right, "stated": 100 * float(stated.max(1).mean()), "ECE": calibration_error(stated, truth)}


def near(photos: Photos, count: int | None, seed: int, left_out: int) -> Figures:
    """Return the areas under the ROC curves of known photos against those of a class that was left out."""
    X, y, Q, truth = split(photos, DEFAULT, count, seed)
    scores = novelty(X[y != left_out], y[y != left_out], Q, photos.far)
    found = {name: float(roc_auc_score(truth != left_out, score)) for name, score in scores.items()}
    return found | {"rejected": share(scores["ours"][truth == left_out] < REJECT)}


def far(photos: Photos, strangers: dict[str, Array], count: int | None, seed: int) -> Figures:
    """Return the shares that are rejected at 0.05, and at the threshold that rejects 5 % of held-out photos of train/."""
    rows, X, y = drawn(photos.train.labels, count, seed), photos.train.features[DEFAULT], photos.train.labels
    rest = np.setdiff1d(np.arange(len(y)), rows)
    splits = [(rows, rest)] if len(rest) else [*StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y)]
    shown = {"known": photos.test.features[DEFAULT], **strangers}
    found = {}
    for judge, score in {"threshold": partial(typical, far=photos.far), "neighbours": neighbours}.items():
        threshold = float(np.quantile(np.concatenate([score(X[fit], y[fit], X[held]) for fit, held in splits]), REJECT))
        ends = np.cumsum([len(Q) for Q in shown.values()])[:-1]
        judged = np.split(score(X[rows], y[rows], np.concatenate(list(shown.values()))), ends)
        for name, scores in zip(shown, judged, strict=True):
            found[f"{name}, {judge}"] = share(scores < threshold)
            if judge == "threshold":
                found |= {"threshold": threshold, f"{name}, nominal": share(scores < REJECT)}
    return found


def bounds(photos: Photos, other: Array, count: int, seed: int) -> Figures:
    """Return calibration errors that chance alone leaves, and how many of another kind are rejected if more were known.

    The rejection is by the distance to the nearest class mean in the features that find other kinds, at the threshold that
    rejects 5 % of held-out photos of train/. The covariance is that of the drawn photos, or of all photos of train/.
    """
    X, y, Q, truth = split(photos, DEFAULT, count, seed)
    ours, random = ours_for(DEFAULT).fit(X, y), np.random.default_rng(seed)
    stated, scores = ours.predict_proba(Q).max(1), ours.decision_function(Q)
    found = {
        "ECE": calibration_error(ours.predict_proba(Q), truth),
        "true": float(np.mean([gap(stated, random.random(len(stated)) < stated) for _ in range(200)])),
        "best": calibration_error(softmax(scores / best_temperature(scores, truth), axis=1), truth),
    }
    far, train = list(photos.far or range(photos.train.features[DEFAULT].shape[1])), photos.train
    rest = np.setdiff1d(np.arange(len(train.labels)), drawn(train.labels, count, seed))
    means, held, all_rows = centres(X, y)[:, far], train.features[DEFAULT][rest][:, far], train.features[DEFAULT][:, far]
    for name, around in {
        "few": X[:, far] - means[np.searchsorted(np.unique(y), y)],
        "all": all_rows - centres(all_rows, train.labels)[train.labels],
    }.items():
        precision = LedoitWolf(assume_centered=True).fit(around).precision_
        known, unknown = (distances(means, precision, rows).min(0) for rows in (held, other[:, far]))
        found[name] = share(unknown > np.quantile(known, 1 - REJECT))
    return found


def constants(X: Array, y: Array, count: int, seed: int) -> Figures:
    """Return what the constants of calibration and typicality are on these samples, learned from `count` a class."""
    rows = drawn(y, count, seed)
    rest = np.setdiff1d(np.arange(len(y)), rows)
    rest = rest[drawn(y[rest], HELD_OUT, seed)]
    found = {}
    no_draws = {"TRUSTED_ABOVE": math.inf, "TRUSTED_BELOW": math.inf, "TRUSTED_NOISE": 0.0}
    with patch.multiple(calibration, **no_draws):
        with patch.object(calibration, "POWER", 0.0):
            ours = AMGCClassifier().fit(X[rows], y[rows])
        best = best_temperature(ours.decision_function(X[rest]), y[rest])
        found["lead"] = (calibration.UNKNOWN_LEAD if count == 1 else calibration.LEAD) * ours.temperature_ / best
        if count > 1:
            with patch.object(calibration, "POWER", 1.0):
                noisy = AMGCClassifier().fit(X[rows], y[rows])
            found["noise"] = calibration.NOISE * noisy.temperature_ / ours.temperature_
    if count <= 2:
        return found
    with patch.multiple(calibration, REAL=1.0, TRUSTED_ABOVE=0.0, TRUSTED_BELOW=0.0):  # nothing but draws counts
        ours = AMGCClassifier().fit(X[rows], y[rows])
    with patch.object(typicality, "REAL", 0.0):
        typical = typicality.measure(ours.statistics_)
        assert typical is not None
    own = np.array([ours.statistics_.index(label) for label in y[rest].tolist()])
    logs = log_distances(typical, X[rest], own)
    around = logs - (np.bincount(own, logs) / np.bincount(own))[own]
    variance = float(around @ around) / (len(own) - len(np.unique(own)))
    expected = typical.near.expected[own]
    return found | {
        "temperature": best / ours.temperature_,
        "spread": (1 + 1 / count) * math.sqrt(max(variance - typical.near.spread**2, 0.0)),
        "offset": float((logs - expected).mean()),
    }


def best_temperature(scores: Array, truth: Array) -> float:
    """Return the temperature with the smallest log-loss."""

    def loss(log_temperature: float) -> float:
        tempered = scores / math.exp(log_temperature)
        shares = np.exp(tempered - tempered.max(1, keepdims=True))
        return float(log_loss(truth, shares / shares.sum(1, keepdims=True)))

    middle = math.log(float(np.abs(scores - scores.mean(1, keepdims=True)).mean()))
    return math.exp(minimize_scalar(loss, bounds=(middle - 7, middle + 7), method="bounded").x)


def log_distances(typical: Typicality, Q: Array, rows: Array) -> Array:
    """Return the logarithms of the squared distances of samples to the means of their classes."""
    near = typical.near
    white = (Q.astype(np.float64) - near.centre) @ near.whiten
    return np.log(np.square(white - near.means[:, rows].T).sum(1))


def split(photos: Photos, kind: str, count: int | None, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return drawn photos with their classes, and test photos with theirs."""
    rows = drawn(photos.train.labels, count, seed)
    return photos.train.features[kind][rows], photos.train.labels[rows], photos.test.features[kind], photos.test.labels


def share(chosen: Array) -> float:
    return 100 * float(np.mean(chosen))


# ---- classifiers -----------------------------------------------------------------------------------------------------


def cosine(X: Array, y: Array, Q: Array) -> Array:
    """Return the cosines (n, K) of rows of Q with the class means."""
    return unit(Q) @ unit(centres(X, y)).T


def centres(X: Array, y: Array) -> Array:
    """Return the class means (K, d)."""
    return np.stack([X[y == label].mean(0) for label in np.unique(y)])


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
    return gap(probabilities.max(1), probabilities.argmax(1) == labels, bins)


def gap(stated: Array, right: Array, bins: int = 15) -> float:
    """Return the same for stated probabilities (n,) of answers that are right or not (n,)."""
    place = np.minimum((stated * bins).astype(int), bins - 1)
    gaps = np.bincount(place, right, bins) - np.bincount(place, stated, bins)
    return float(np.abs(gaps).sum() / len(stated))


def novelty(X: Array, y: Array, Q: Array, far: range | None) -> dict[str, Array]:
    """Return scores of Q that are small for samples of unseen classes."""
    ours = ours_for(DEFAULT).fit(X, y)
    labels = np.unique(y)
    means = centres(X, y)
    precision = LedoitWolf(assume_centered=True).fit(X - means[np.searchsorted(labels, y)]).precision_
    return {
        "ours": ours.typicality(Q, far=far),
        "Mahalanobis, shared covariance": -distances(means, precision, Q).min(0),
        "cosine to the nearest mean": cosine(X, y, Q).max(1),
        "largest probability (ours)": ours.predict_proba(Q).max(1),
        f"{NEIGHBOURS} nearest neighbours (keeps samples)": neighbours(X, y, Q),
    }


def distances(means: Array, precision: Array, Q: Array) -> Array:
    """Return the squared Mahalanobis distances (K, n) of rows of Q to the means."""
    return np.stack([np.einsum("nd,de,ne->n", Q - mean, precision, Q - mean, optimize=True) for mean in means])


def typical(X: Array, y: Array, Q: Array, far: range | None) -> Array:
    return ours_for(DEFAULT).fit(X, y).typicality(Q, far=far)


def neighbours(X: Array, _: Array, Q: Array) -> Array:
    """Return the mean cosine of each row of Q with the nearest rows of X."""
    return np.sort(unit(Q) @ unit(X).T, axis=1)[:, -NEIGHBOURS:].mean(1)


def drawn(labels: Array, count: int | None, seed: int) -> Array:
    """Return rows of `count` samples of each class; all if it is None."""
    random = np.random.default_rng(seed)
    return np.concatenate([random.permutation(np.flatnonzero(labels == label))[:count] for label in np.unique(labels)])


def joined(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Join kinds of features, each given as training and test features, each with the same total variance."""
    sizes = [np.sqrt(train.var(0).sum()) for train, _ in parts]
    train, test = (np.concatenate([part[half] / size for part, size in zip(parts, sizes, strict=True)], 1) for half in (0, 1))
    return train, test
