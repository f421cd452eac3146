"""What a model says of pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from amgc.model.extractors import batches, encode
from amgc.model.pictures import Picture, PictureError
from amgc.model.results import ModelError, Prediction
from amgc.model.state import State


def answers(now: State, given: Sequence[Picture], top: int, reject: float | None) -> Iterator[Prediction | PictureError]:
    """One after another, a batch in memory at a time, all from one state; for a picture that cannot be used, its error."""
    if now.classifier is None:
        raise ModelError("the model knows no class yet; learn some first.")
    if top < 1 or (reject is not None and not 0 <= reject <= 1):
        raise ValueError(f"top must be at least 1, and reject from 0 to 1; not {top} and {reject}.")
    if reject is not None and now.fits is None:
        raise ModelError("this model cannot reject: it was made without images, so how its classes spread is not known.")
    return _answers(now, given, top, reject)


def _answers(now: State, given: Sequence[Picture], top: int, reject: float | None) -> Iterator[Prediction | PictureError]:
    assert now.extractor is not None and now.classifier is not None
    names = [str(name) for name in now.classifier.classes_.tolist()]
    for rows, pixels, wrong in batches(now.frame, given):
        found: dict[int, Prediction | PictureError] = dict(wrong)
        if rows:
            features = encode(now.extractor, pixels)
            shares = now.classifier.predict_proba(features.numpy())
            order = np.argsort(-shares, axis=1, kind="stable")[:, :top]
            first = [names[best] for best in order[:, 0]]
            fits: list[float | None] = [None] * len(rows)
            if now.fits is not None:
                fits = now.fits.of(features, first).tolist()
            for at, row in enumerate(rows):
                labels = tuple(names[place] for place in order[at])
                values = tuple(float(shares[at, place]) for place in order[at])
                fit = fits[at]
                rejected = reject is not None and fit is not None and fit < reject
                found[row] = Prediction(labels, values, fit, rejected, given[row].name)
        yield from (found[row] for row in sorted(found))
