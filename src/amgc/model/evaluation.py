"""How good a model is on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amgc.model.answering import answers
from amgc.model.lesson import Progress
from amgc.model.pictures import Picture, PictureError
from amgc.model.state import State

BINS = 15


@dataclass(frozen=True)
class Evaluation:
    """What came of labelled pictures.

    classes : of the model, in the order of `confusion` (K, K), true by predicted. Pictures of other classes are `unseen`.
    confidence (n,), correct (n,), fit (n,) : of each picture of a known class; unseen_fit (m,) of the others. NaN: no fit.
    reject : the fit below which pictures are rejected, or None. skipped : those that could not be used, with the reason.
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
        """The share of pictures of known classes whose likeliest class is the right one."""
        return float(self.correct.mean()) if len(self.correct) else float("nan")

    @property
    def by_class(self) -> dict[str, tuple[int, int]]:
        """Right and all pictures of each class that there are pictures of."""
        counts = {
            name: (int(row[k]), int(row.sum())) for k, (name, row) in enumerate(zip(self.classes, self.confusion, strict=True))
        }
        return {name: pair for name, pair in counts.items() if pair[1]}

    @property
    def reliability(self) -> list[tuple[float, float, int]]:
        """Mean confidence, accuracy and number of pictures in each of `BINS` bins of confidence that has any."""
        place = np.minimum((self.confidence * BINS).astype(int), BINS - 1)
        own = [place == number for number in range(BINS)]
        return [(float(self.confidence[m].mean()), float(self.correct[m].mean()), int(m.sum())) for m in own if m.any()]

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: |accuracy - confidence| over the bins, weighted by their pictures."""
        parts = self.reliability
        return sum(count * abs(right - sure) for sure, right, count in parts) / max(1, sum(count for *_, count in parts))

    def rejected(self, below: float | None = None) -> tuple[float, float]:
        """The shares of known and of unseen classes' pictures with a fit below `below` (default: `reject`)."""
        limit = self.reject if below is None else below
        if limit is None:
            return 0.0, 0.0
        return tuple(float((fit < limit).mean()) if len(fit) else float("nan") for fit in (self.fit, self.unseen_fit))  # type: ignore[return-value]

    def confused(self, most: int = 10) -> list[tuple[str, str, int]]:
        """The most frequent confusions: true class, what it was taken for, how often."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = [np.unravel_index(place, wrong.shape) for place in order]
        return [(self.classes[t], self.classes[p], int(wrong[t, p])) for t, p in places if wrong[t, p]]

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON: null where there are no pictures to say it of."""
        error = self.calibration_error if len(self.correct) else None
        about: dict[str, Any] = {"accuracy": _or_none(self.accuracy), "calibration_error": error}
        about |= {"pictures": len(self.correct), "by_class": self.by_class, "reliability": self.reliability}
        about |= {"confused": self.confused(), "unseen": self.unseen, "skipped": list(self.skipped), "reject": self.reject}
        known, others = map(_or_none, self.rejected())
        return about | ({} if self.reject is None else {"rejected": known, "rejected_unseen": others})


def _or_none(share: float) -> float | None:
    return None if np.isnan(share) else share


def evaluated(
    now: State, given: Sequence[Picture], labels: Sequence[str], reject: float | None, progress: Progress | None
) -> Evaluation:
    """The model's answers beside the right ones."""
    classes = tuple(now.manifest.classes)
    index = {name: place for place, name in enumerate(classes)}
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    known: list[tuple[float, bool, float]] = []
    others: list[float] = []
    unseen: dict[str, int] = {}
    skipped: list[tuple[str, str]] = []
    for done, (answer, label) in enumerate(zip(answers(now, given, 1, reject), labels, strict=True), start=1):
        if isinstance(answer, PictureError):
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
            progress(done, len(given))
    table = np.array(known, dtype=np.float64).reshape(len(known), 3)
    return Evaluation(
        classes,
        confusion,
        table[:, 0],
        table[:, 1].astype(bool),
        table[:, 2],
        np.array(others, dtype=np.float64),
        unseen,
        reject,
        tuple(skipped),
    )
