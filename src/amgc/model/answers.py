"""Predictions, and a way to compute a few of them without importing torch, which takes longer than the predictions.

For a few photographs, `predict_few` uses what the files of a model store: the weights of the extractor, the classifier, and
what is typical of the classes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amgc import files, tensor_files
from amgc.core.linear import Linear
from amgc.core.typical import TYPICAL, Typicality
from amgc.features.lite_arrays import LiteArrays
from amgc.features.lite_layout import VARIANTS
from amgc.model.folder import Folder
from amgc.model.inputs import Frame, Given, ImageError, Input, images_from
from amgc.model.manifest import CLASSES, Manifest
from amgc.tensor_files import without

UNKNOWN = "unknown"
MOST = 32  # images; importing torch takes about as long as these, and it is faster for more of them (benchmarks/start.py)


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of an image.

    labels, probabilities : the most likely class first. Probabilities are relative to the known classes.
    fit : how typical the image is of the first class: approximately the share of images of known classes that are less
        typical of their own class. Near 0 for most images of something else, but not for every image of a new class among
        similar ones. None if there are too few images, or no class statistics, to estimate it.
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
    if top < 1 or (reject is not None and not 0 <= reject <= 1):
        raise ValueError(f"top must be at least 1 and reject from 0 to 1; got top={top}, reject={reject}.")


def predictions(
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
        labels = tuple(names[place] for place in order[at])
        values = tuple(float(shares[at, place]) for place in order[at])
        rejected = reject is not None and fit is not None and fit < reject
        found.append(Prediction(labels, values, fit, rejected, source))
    return found


# ---- without torch ---------------------------------------------------------------------------------------------------

Answers = list[Prediction | ImageError]


def predict_few(path: str | os.PathLike[str], images: Given, top: int, reject: float | None) -> Answers | None:
    """Return the same as `Model.predict_each`, up to rounding, for a few images; None if torch is needed.

    It is needed for many images, for features that only torch computes, for models with a privacy budget, and for models that
    do not store what is typical: there are too few images to tell, or the model is of an earlier version of amgc.
    """
    check_request(top, reject)
    folder = Folder(path)
    if folder.manifest().features["name"] not in VARIANTS or len(given := images_from(images)) > MOST:
        return None
    model = folder.read(lambda manifest: Quick.read(folder, manifest))
    return None if model is None else model.predict(given, top, reject)


@dataclass(frozen=True)
class Quick:
    """The parts of a model that predictions need."""

    network: LiteArrays
    frame: Frame
    linear: Linear
    typicality: Typicality

    @classmethod
    def read(cls, folder: Folder, manifest: Manifest) -> Quick | None:
        """Read the files of a model. Returns None if torch is needed to predict."""
        if manifest.private or not manifest.classes:
            return None
        path = folder.checked(manifest.files["classes"])
        header, arrays = tensor_files.read_arrays(path, CLASSES)
        try:
            about, arrays = header["classifier"], without("classifier/", arrays)
            if not (typical := without(TYPICAL, arrays)):
                return None
            labels, mean = about["statistics"]["classes"], arrays["statistics.mean"]
            weight, bias = arrays["head.weight"], arrays["head.bias"]
            if weight.shape != mean.shape or not bias.shape == mean.shape[:1]:
                raise ValueError(f"the weights have shape {weight.shape}")
            if dict(zip(labels, arrays["statistics.count"].tolist(), strict=True)) != manifest.classes:
                raise ValueError("its classes are not those of the manifest")
            linear = Linear.of(weight, bias, mean, float(about["temperature"]), labels)
            typicality = Typicality.from_arrays(typical, *mean.shape)
            network = LiteArrays.read(folder.checked(manifest.files["extractor"]))
            if network is not None and network.layout.dim != mean.shape[1]:
                raise ValueError(f"it has {mean.shape[1]} features, the extractor {network.layout.dim}")
        except files.MISFITS as error:
            raise files.misfit(path, error) from error
        if network is None:
            return None
        channels, side, _ = network.image_shape
        return cls(network, Frame(side, manifest.image["scale"] or side, channels), linear, typicality)

    def predict(self, images: Sequence[Input], top: int, reject: float | None) -> Answers:
        """Return a prediction for each image, or its error."""
        found: dict[int, Prediction | ImageError] = {}
        features: dict[int, NDArray[np.float32]] = {}
        for row, pixels in enumerate(self.frame.each(images)):
            if isinstance(pixels, ImageError):
                found[row] = pixels
            else:
                features[row] = self.network.features(pixels)
        if features:
            array = np.stack([*features.values()])
            scores = self.linear.scores(array)
            shares, fits = self.linear.probabilities(scores), self.typicality(array, self.linear.rows[scores.argmax(1)])
            names = [images[row].name for row in features]
            found |= zip(features, predictions(self.linear.classes, shares, fits, names, top, reject), strict=True)
        return [found[row] for row in sorted(found)]
