"""Predictions, and how they follow from probabilities. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = "unknown"


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
