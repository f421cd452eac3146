"""Features that amgc does not compute: vectors that the user has, or a function of the user that computes them from images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc.data.vectors import SUFFIXES, Split, is_vector_file, read_vectors
from amgc.model.folder import ModelError
from amgc.model.manifest import VECTORS
from amgc.model.pictures import Picture, PictureError

if TYPE_CHECKING:
    from PIL.Image import Image

BATCH, IMAGES = 4096, 16  # vectors, and images for a function, at a time
LEAST = 1024  # pixels each way below which images for a function are not reduced
Function: TypeAlias = Callable[[list["Image"]], "NDArray[Any] | Tensor | Sequence[Sequence[float]]"]


class VectorError(PictureError):
    """Something that should be a vector and cannot be used as one. `path` says which."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.args = (f"{path} cannot be used: {reason}.",)


@dataclass(frozen=True)
class Vectors:
    """Used instead of an extractor. Without a `function`, the user gives vectors of `dim` numbers instead of images."""

    name: str
    dim: int
    function: Function | None = None

    def encode_batches(self, given: Sequence[Picture]) -> Iterator[tuple[list[int], Tensor, list[tuple[int, PictureError]]]]:
        """Yield the same as `amgc.model.extractors.encode_batches`."""
        size = BATCH if self.name == VECTORS else IMAGES
        for start in range(0, len(given), size):
            rows: list[int] = []
            errors: list[tuple[int, PictureError]] = []
            found: list[Any] = []
            for row in range(start, min(start + size, len(given))):
                try:
                    found.append(self._checked(given[row]) if self.name == VECTORS else read(given[row]))
                    rows.append(row)
                except PictureError as error:
                    errors.append((row, error))
            array = np.empty((0, self.dim))
            if rows:
                array = np.stack(found) if self.name == VECTORS else self._computed(found)
            yield rows, torch.tensor(array), errors  # in torch's memory: see tensor_files._copies

    def _checked(self, given: Picture) -> NDArray[Any]:
        if len(given.source) != self.dim:
            raise VectorError(given.name, f"it has {len(given.source):,} numbers, and the model takes {self.dim:,}")
        if not np.isfinite(given.source).all():
            raise VectorError(given.name, "it holds NaN or infinity")
        vector: NDArray[Any] = given.source
        return vector

    def _computed(self, images: list[Image]) -> NDArray[Any]:
        if self.function is None:
            raise ModelError(
                "the features of this model are computed by a Python function, which is not stored. Open the model with it: "
                "Model.open(path, features=FUNCTION)."
            )
        found = compute(self.function, images)
        if found.shape[1] != self.dim:
            raise ModelError(
                f"the function gave {found.shape[1]:,} features, but the model has {self.dim:,}: it is another one."
            )
        return found


def measured(name: str, function: Function | None, first: Sequence[Picture]) -> Vectors:
    """Return `Vectors` with as many features as the first vector or the first readable image has."""
    if name == VECTORS:
        return Vectors(name, len(first[0].source))
    error: PictureError | None = None
    for picture in first:
        try:
            image = read(picture)
        except PictureError as reason:
            error = error or reason
            continue
        if function is None:
            Vectors(name, 0)._computed([image])  # raises the error
        assert function is not None
        return Vectors(name, compute(function, [image]).shape[1], function)
    assert error is not None
    if len(first) == 1:
        raise error
    raise ModelError(f"none of the {len(first)} images can be used; the first: {error}") from error


def compute(function: Function, images: list[Image]) -> NDArray[Any]:
    """Return the features (n, d) that a function computes."""
    found = function(images)
    array = found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(found)
    if array.ndim != 2 or len(array) != len(images) or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ValueError(
            f"the function of the features gave {array.dtype} {array.shape} for {len(images)} images; it must give finite "
            f"numbers of shape ({len(images)}, d)."
        )
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def read(picture: Picture) -> Image:
    """Return an image for a function, upright and in RGB; large JPEG files are reduced."""
    image = picture.read(LEAST)
    picture.digest = hashlib.blake2b(np.asarray(image).tobytes(), digest_size=16).digest()
    return image


def vectors(given: Any, split: Split = "test") -> list[Picture]:
    """Return a list of vectors from an array or tensor (d,) or (n, d), a table of pandas, lists of numbers, a file of vectors
    (.npz, .npy, .parquet; `split` as for `read_vectors`), or a sequence of any of these.
    """
    if isinstance(given, Picture):
        return [given]
    if isinstance(given, str | os.PathLike):
        return _from_file(os.fspath(given), split)
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    if isinstance(given, list | tuple) and any(isinstance(one, Picture | str | os.PathLike) for one in given):
        return [one for each in given for one in vectors(each, split)]
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ValueError(f"the vectors do not have the same number of features ({error}).") from error
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
        raise ValueError(
            f"this model takes vectors of numbers, (d,) or (n, d), not {type(given).__name__} {array.dtype} {array.shape}; its "
            "features are not computed from images."
        )
    array = array if array.dtype.kind == "f" else array.astype(np.float64)
    if array.ndim == 1:
        return [Picture("the vector", array)] if len(array) else []
    return [Picture(f"vector {number}", row) for number, row in enumerate(array, start=1)]


def _from_file(path: str, split: Split) -> list[Picture]:
    if not is_vector_file(path):
        raise ModelError(
            f"this model takes vectors, not images: {path!r} is not a file of vectors ({', '.join(SUFFIXES)}). Its features "
            "were given as vectors when it was created."
        )
    found = vectors(read_vectors(path, split).vectors)
    return [Picture(f"{path}, row {row}", one.source) for row, one in enumerate(found)]


def name_of(function: Function) -> str:
    """Return a name of a function for messages."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
