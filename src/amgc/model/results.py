"""What a model answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNKNOWN = "unknown"


class ModelError(ValueError):
    """What was asked for cannot be done with this model."""


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of a picture, the likeliest first, with their probabilities among the known classes.

    fit : the share of the first class's own pictures that lie farther from it than this one; near 0: it is none of them. 1
        where nothing is known of that, None for a model without distances.
    rejected : whether the fit is below what was asked for; `answer` is then "unknown".
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    fit: float | None
    rejected: bool = False
    source: str = ""

    @property
    def label(self) -> str:
        """The likeliest class, whether it fits or not."""
        return self.labels[0]

    @property
    def answer(self) -> str:
        """The likeliest class, or "unknown" if the picture was rejected."""
        return UNKNOWN if self.rejected else self.labels[0]

    def to_json(self) -> dict[str, Any]:
        pairs = [{"label": label, "probability": p} for label, p in zip(self.labels, self.probabilities, strict=True)]
        about = {"source": self.source, "answer": self.answer, "rejected": self.rejected, "fit": self.fit}
        return about | {"classes": pairs}


@dataclass(frozen=True)
class Learned:
    """What a call of `learn` did.

    added : images learned from, by class. again : those of these classes that were known before, and now know more.
    skipped : pictures that could not be used, with the reason. animated : of these the first frame was taken.
    """

    added: dict[str, int]
    again: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    animated: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def images(self) -> int:
        return sum(self.added.values())


@dataclass(frozen=True)
class Info:
    """What a model is and keeps.

    classes : images that each was learned from, in order of arrival; 0 where that is not known.
    features : the extractor's name, options, number of features, and checksum ("" before the first images).
    margins : m_k of the paper by class, where the classifier was solved with any.
    kept, not_kept : in words. bytes : of each file. changeable : whether it can learn more.
    """

    path: str
    classes: dict[str, int]
    features: dict[str, Any]
    image: dict[str, int | None]
    covariance: str | None
    margins: dict[str, float]
    bytes: dict[str, int]
    kept: tuple[str, ...]
    not_kept: tuple[str, ...]
    made: dict[str, Any]
    created: str
    changed: str
    generation: int
    amgc: str
    changeable: bool = True

    @property
    def images(self) -> int:
        return sum(self.classes.values())
