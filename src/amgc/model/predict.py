"""Predict classes of images, and evaluate predictions on labelled images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from amgc.features.extractor import Extractor
from amgc.model.answers import Prediction, check_request, predictions
from amgc.model.changes import ProgressCallback
from amgc.model.folder import ModelError
from amgc.model.inputs import Given, ImageError, Input
from amgc.model.manifest import normal
from amgc.model.state import FixedHead, State

BINS = 15  # of confidence, for calibration


def check_can_predict(state: State, top: int, reject: float | None) -> None:
    """Raise an error if a model cannot answer such a request."""
    if state.classifier is None:
        raise ModelError("the model has no classes yet; learn some first.")
    check_request(top, reject)
    if reject is not None and isinstance(state.classifier, FixedHead):
        raise ModelError("this model cannot reject: it was created from a trained head and has no class statistics.")


def predict(state: State, images: Sequence[Input], top: int, reject: float | None) -> Iterator[Prediction | ImageError]:
    """Yield a prediction for each image in order, or its error. Only one batch is in memory at a time."""
    for rows, features, errors in state.encoded(images):
        found: dict[int, Prediction | ImageError] = dict(errors)
        if rows:
            found |= zip(rows, classify(state, features, [images[row].name for row in rows], top, reject), strict=True)
        yield from (found[row] for row in sorted(found))


def classify(state: State, features: Tensor, sources: Sequence[str], top: int, reject: float | None) -> list[Prediction]:
    """Return the predictions for features (n, d) of images with these names."""
    classifier, array = state.classifier, features.numpy()
    assert classifier is not None
    far, fits = state.extractor.far if isinstance(state.extractor, Extractor) else None, None
    if not isinstance(classifier, FixedHead) and classifier.typical(far) is not None:
        fits = classifier.typicality(array, far=far)
    return predictions(classifier.classes_, classifier.predict_proba(array), fits, sources, top, reject)


@dataclass(frozen=True)
class Evaluation:
    """The result of `Model.evaluate`.

    classes : classes of the model, in the order of rows (true) and columns (predicted) of `confusion` (K, K).
    confidence (n,), correct (n,), fit (n,) : of each image of a known class. The fit is NaN if it cannot be estimated.
    unseen, unseen_fit (m,) : number of images by class, and fits, of classes that the model does not know.
    reject : the fit below which images are rejected, or None.
    skipped : unreadable images, each with the reason.
    """

    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    fit: NDArray[np.float64]
    unseen_fit: NDArray[np.float64]
    unseen: dict[str, int]
    reject: float | None
    skipped: tuple[tuple[str, str], ...]

    @property
    def accuracy(self) -> float:
        """The share of images of known classes that are classified correctly; NaN if there are none."""
        return float(self.correct.mean()) if len(self.correct) else float("nan")

    @property
    def has_fits(self) -> bool:
        """Whether the model can estimate how typical the images are of their classes."""
        return not np.isnan([*self.fit, *self.unseen_fit]).all()

    @property
    def by_class(self) -> dict[str, tuple[int, int]]:
        """Number of correctly classified images, and of all images, for each class that has any."""
        counts = {
            name: (int(row[k]), int(row.sum())) for k, (name, row) in enumerate(zip(self.classes, self.confusion, strict=True))
        }
        return {name: pair for name, pair in counts.items() if pair[1]}

    @property
    def reliability(self) -> list[tuple[float, float, int]]:
        """Mean confidence, accuracy and number of images of each non-empty bin of confidence."""
        place = np.minimum((self.confidence * BINS).astype(int), BINS - 1)
        own = [place == number for number in range(BINS)]
        return [(float(self.confidence[m].mean()), float(self.correct[m].mean()), int(m.sum())) for m in own if m.any()]

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: the mean of |accuracy - confidence| over the bins, weighted by their images."""
        parts = self.reliability
        return sum(count * abs(right - sure) for sure, right, count in parts) / max(1, sum(count for *_, count in parts))

    def rejected(self, below: float | None = None) -> tuple[float, float]:
        """Return the share of images with a fit below `below` (default: `reject`), for known and for unseen classes."""
        limit = self.reject if below is None else below
        if limit is None:
            return 0.0, 0.0
        return tuple(float((fit < limit).mean()) if len(fit) else float("nan") for fit in (self.fit, self.unseen_fit))  # type: ignore[return-value]

    def confused(self, most: int = 10) -> list[tuple[str, str, int]]:
        """Return the most frequent confusions: true class, predicted class, number of images."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = [np.unravel_index(place, wrong.shape) for place in order]
        return [(self.classes[t], self.classes[p], int(wrong[t, p])) for t, p in places if wrong[t, p]]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON; values that are undefined without images are None."""
        error = self.calibration_error if len(self.correct) else None
        about: dict[str, Any] = {"accuracy": _or_none(self.accuracy), "calibration_error": error}
        about |= {"images": len(self.correct), "by_class": self.by_class, "reliability": self.reliability}
        about |= {"confused": self.confused(), "unseen": self.unseen, "skipped": list(self.skipped), "reject": self.reject}
        known, others = map(_or_none, self.rejected())
        return about | ({} if self.reject is None else {"rejected": known, "rejected_unseen": others})


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluations of several batches of images by one model as one."""
    first = parts[0]
    unseen: dict[str, int] = {}
    for part in parts:
        for name, count in part.unseen.items():
            unseen[name] = unseen.get(name, 0) + count

    def array(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    return replace(
        first,
        confusion=np.sum([part.confusion for part in parts], axis=0),
        confidence=array("confidence"),
        correct=array("correct"),
        fit=array("fit"),
        unseen_fit=array("unseen_fit"),
        unseen=unseen,
        skipped=tuple(one for part in parts for one in part.skipped),
    )


def _or_none(share: float) -> float | None:
    return None if np.isnan(share) else share


def labelled(
    images: Given | Mapping[str, Given], labels: Sequence[str] | None, read: Callable[[Given], list[Input]]
) -> tuple[list[Input], list[str]]:
    """Return images and their labels, which are given by class or as two sequences. `read` makes a list of given images."""
    if isinstance(images, Mapping):
        if labels is not None:
            raise ValueError("images are given by class, so there must be no labels.")
        pairs = [(image, label) for label, own in images.items() for image in read(own)]
        given, labels = [image for image, _ in pairs], [label for _, label in pairs]
    elif labels is None:
        raise ValueError("evaluate needs the labels of the images, or images by class as for learn_all.")
    else:
        given = read(images)
    if len(given) != len(labels):
        raise ValueError(f"there are {len(given)} images but {len(labels)} labels.")
    return given, [normal(label) for label in labels]


def evaluate(
    state: State, images: Sequence[Input], labels: Sequence[str], reject: float | None, progress: ProgressCallback | None
) -> Evaluation:
    """Compare predictions with labels."""
    check_can_predict(state, 1, reject)
    classes = tuple(state.manifest.classes)
    index = {name: place for place, name in enumerate(classes)}
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    known: list[tuple[float, bool, float]] = []
    others: list[float] = []
    unseen: dict[str, int] = {}
    skipped: list[tuple[str, str]] = []
    for done, (answer, label) in enumerate(zip(predict(state, images, 1, reject), labels, strict=True), start=1):
        if isinstance(answer, ImageError):
            skipped.append((answer.path, answer.reason))
        else:
            fit = float("nan") if answer.fit is None else answer.fit
            if label in index:
                confusion[index[label], index[answer.label]] += 1
                known.append((answer.probabilities[0], answer.label == label, fit))
            else:
                others.append(fit)
                unseen[label] = unseen.get(label, 0) + 1
        if progress is not None:
            progress(done, len(images))
    table = np.array(known, dtype=np.float64).reshape(len(known), 3)
    return Evaluation(
        classes,
        confusion,
        confidence=table[:, 0],
        correct=table[:, 1].astype(bool),
        fit=table[:, 2],
        unseen_fit=np.array(others, dtype=np.float64),
        unseen=unseen,
        reject=reject,
        skipped=tuple(skipped),
    )
