"""Predict classes of images, and evaluate predictions on labelled images.

Importing this module does not import torch, which takes longer than a few predictions. For these, `predict_few` uses what the
files of a model store: the weights of the extractor, the classifier, and what is typical of the classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from amgc import files, tensor_files
from amgc.core import packed
from amgc.core.linear import Linear
from amgc.core.typical import Typicality
from amgc.features.lite_arrays import LiteArrays
from amgc.features.lite_layout import VARIANTS
from amgc.model.folder import Folder, ModelError
from amgc.model.inputs import Frame, Given, ImageError, Input, images_from
from amgc.model.manifest import CLASSES, Manifest, normal

if TYPE_CHECKING:
    from torch import Tensor

    from amgc.model.state import State

UNKNOWN = "unknown"
MOST = 32  # images; importing torch takes about as long as these, and it is faster for more of them (benchmarks/start.py)
MOST_TOLD = 0.5  # of a fit. Images that were learned have higher ones, which are of no use to reject others
BINS = 15  # of confidence, for calibration


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of an image.

    labels, probabilities : the most likely class first. Probabilities are relative to the known classes.
    fit : how typical the image is of the first class: approximately the share of images of known classes that are less
        typical of their own class. Near 0 for most images of something else, but not for every image of a new class among
        similar ones. At most 0.5, because higher values tell which images were learned. None if there are too few images, or
        no class statistics, to estimate it.
    rejected : whether the fit is below the requested threshold; `answer` is then "unknown".
    source : path or number of the image.
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    fit: float | None
    rejected: bool = False
    source: str = ""

    @property
    def label(self) -> str:
        """The most likely class, whether the image was rejected or not."""
        return self.labels[0]

    @property
    def answer(self) -> str:
        """The most likely class, or "unknown" if the image was rejected."""
        return UNKNOWN if self.rejected else self.labels[0]

    def to_json(self) -> dict[str, Any]:
        pairs = [{"label": label, "probability": p} for label, p in zip(self.labels, self.probabilities, strict=True)]
        about = {"source": self.source, "answer": self.answer, "rejected": self.rejected, "fit": self.fit}
        return about | {"classes": pairs}


def check_request(top: int, reject: float | None) -> None:
    """Raise ValueError for arguments of `Model.predict` that are out of range."""
    if top < 1 or (reject is not None and not 0 <= reject <= MOST_TOLD):
        raise ValueError(f"top must be at least 1 and reject from 0 to {MOST_TOLD:g}; got top={top}, reject={reject}.")


def check_can_predict(state: State, top: int, reject: float | None) -> None:
    """Raise an error if a model cannot answer such a request."""
    if state.classifier is None:
        raise ModelError("the model has no classes yet; learn some first.")
    check_request(top, reject)
    if reject is not None and state.fixed:
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
    assert state.classifier is not None
    array = features.numpy()
    return _predictions(
        state.classifier.classes_, state.classifier.predict_proba(array), state.fits(array), sources, top, reject
    )


def _predictions(
    classes: NDArray[Any],
    shares: NDArray[np.float64],
    fits: NDArray[np.float64] | None,
    sources: Sequence[str],
    top: int,
    reject: float | None,
) -> list[Prediction]:
    """Return predictions from probabilities (n, K) of the classes (K,) and fits (n,). sources (n,) : names of the images."""
    names = [str(name) for name in classes.tolist()]
    order = np.argsort(-shares, axis=1, kind="stable")[:, :top]
    found = []
    for at, (source, fit) in enumerate(zip(sources, [None] * len(sources) if fits is None else fits.tolist(), strict=True)):
        fit = None if fit is None else min(fit, MOST_TOLD)
        labels = tuple(names[place] for place in order[at])
        values = tuple(float(shares[at, place]) for place in order[at])
        rejected = reject is not None and fit is not None and fit < reject
        found.append(Prediction(labels, values, fit, rejected, source))
    return found


# ---- without torch ---------------------------------------------------------------------------------------------------


def predict_few(
    path: str | os.PathLike[str], images: Given, top: int, reject: float | None
) -> list[Prediction | ImageError] | None:
    """Return the same as `Model.predict_each`, up to rounding, for a few images; None if torch is needed.

    It is needed for many images, for features that only torch computes, for models with a privacy budget, and for models that
    do not store what is typical: there are too few images to tell, or the model is of an earlier version of amgc.
    """
    check_request(top, reject)
    folder = Folder(path)
    if folder.manifest().features.name not in VARIANTS or len(given := images_from(images)) > MOST:
        return None
    parts = folder.read(lambda manifest: _read(folder, manifest))
    if parts is None:
        return None
    network, frame, linear, typicality = parts
    found: dict[int, Prediction | ImageError] = {}
    features: dict[int, NDArray[np.float32]] = {}
    for row, pixels in enumerate(frame.each(given)):
        if isinstance(pixels, ImageError):
            found[row] = pixels
        else:
            features[row] = network.features(pixels)
    if features:
        array = np.stack([*features.values()])
        scores = linear.scores(array)
        shares, fits = linear.probabilities(scores), typicality(array, linear.rows[scores.argmax(1)])
        names = [given[row].name for row in features]
        found |= zip(features, _predictions(linear.classes, shares, fits, names, top, reject), strict=True)
    return [found[row] for row in sorted(found)]


def _read(folder: Folder, manifest: Manifest) -> tuple[LiteArrays, Frame, Linear, Typicality] | None:
    """Read the parts of a model that predictions need. Returns None if torch is needed to predict."""
    if manifest.private or not manifest.classes:
        return None
    path = folder.checked(manifest.files["classes"])
    header, arrays = tensor_files.read_arrays(path, CLASSES)
    try:
        about, arrays = header["classifier"], tensor_files.without("classifier/", arrays)
        if (solved := packed.read(about, arrays)) is None:
            return None
        if packed.class_counts(about, arrays) != manifest.classes:
            raise ValueError("its classes are not those of the manifest")
        network, dim = LiteArrays.read(folder.checked(manifest.files["extractor"])), solved[0].coef.shape[1]
        if network is not None and network.layout.dim != dim:
            raise ValueError(f"it has {dim} features, the extractor {network.layout.dim}")
    except files.MISFITS as error:
        raise files.misfit(path, error) from error
    if network is None:
        return None
    channels, side, _ = network.image_shape
    return network, Frame(side, manifest.image.scale or side, channels), *solved


# ---- evaluation ------------------------------------------------------------------------------------------------------


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
    return given, list(labels)


def evaluate(
    state: State,
    batches: Iterable[tuple[Sequence[Input], Sequence[str]]],
    reject: float | None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Compare predictions with labels, which are given batch by batch. `progress` is called with the number of images done."""
    check_can_predict(state, 1, reject)
    classes = tuple(state.manifest.classes)
    index = {name: place for place, name in enumerate(classes)}
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    known: list[tuple[float, bool, float]] = []
    others: list[float] = []
    unseen: dict[str, int] = {}
    skipped: list[tuple[str, str]] = []
    pairs = (pair for images, labels in batches for pair in zip(predict(state, images, 1, reject), labels, strict=True))
    for done, (answer, label) in enumerate(((answer, normal(label)) for answer, label in pairs), start=1):
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
            progress(done)
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
