"""The inputs of a model: images in any form, or feature vectors.

`amgc.data.decode` decodes images. A `Frame` converts them to the pixels that a model's extractor needs. `Vectors` replaces the
extractor if amgc does not compute the features: the user provides vectors, or a function that computes them from images.
Importing this module does not import torch.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from amgc.data.decode import CorruptImageError, read_file, read_image, to_pixels
from amgc.data.image_files import decode_each, list_images, threads_for
from amgc.data.vectors import SUFFIXES, Split, is_vector_file, read_vectors
from amgc.lazy import Lazy
from amgc.model.folder import ModelError
from amgc.model.manifest import VECTORS

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor
else:
    torch = Lazy("torch")

# The types that `images_from` accepts. Iterables may be nested.
Given: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Image | NDArray[Any] | Tensor | Iterable[Any]"
Function: TypeAlias = Callable[[list["Image"]], "NDArray[Any] | Tensor | Sequence[Sequence[float]]"]
SMALLEST = 4  # minimum number of pixels of the shorter side
PIXELS = 1 << 20  # approximate number of values in a batch of images
BATCH, IMAGES = 4096, 16  # vectors, and images for a function, at a time
LEAST = 1024  # pixels each way below which images for a function are not reduced


class ImageError(CorruptImageError):
    """An image or a vector cannot be used. `path` is its path, or its number among the inputs."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.args = (f"{path} cannot be used: {reason}.",)


def none_usable(errors: Sequence[ImageError]) -> ImageError | ModelError:
    """Return the error of a single image that cannot be used, or one error for several."""
    if len(errors) == 1:
        return errors[0]
    error = ModelError(f"none of the {len(errors)} images can be used; the first: {errors[0]}")
    error.__cause__ = errors[0]
    return error


@dataclass
class Input:
    """An image that is read when it is needed, or a vector. `name` is its path, or its number among the inputs."""

    name: str
    source: Any
    animated: bool = False  # set when the image is read; only its first frame is used
    digest: bytes = b""  # hash of the pixels, set when they are computed; the same for copies of an image

    def read(self, least: int, size: int | None = None) -> Image:
        """Return the image in RGB, rotated upright. Large images may be reduced, to at least `least` pixels on each side.

        With `size`, the shorter side is scaled to that and the centre cropped.

        Raises ImageError if it cannot be used.
        """
        try:
            source = read_file(self.source) if isinstance(self.source, str) else self.source
            image, self.animated = read_image(source, self.name, reduce_to=least, smallest=SMALLEST, size=size)
        except CorruptImageError as error:
            raise ImageError(error.path, f"{error.reason}; {error.advice}") from error
        return image


def is_tensor(given: object) -> TypeGuard[Tensor]:
    """Return whether something is a tensor of torch, which need not be imported for the answer no."""
    return "torch" in sys.modules and isinstance(given, torch.Tensor)


# ---- images ----------------------------------------------------------------------------------------------------------


def images_from(given: Given | Input) -> list[Input]:
    """Return a list of images from a path (of a file, or of a folder for all images below it), encoded bytes, a PIL image,
    an array (h, w), (h, w, c) or (n, h, w, c), a tensor (c, h, w) or (n, c, h, w), or a sequence of any of these.
    """
    from PIL import Image

    if isinstance(given, Input):
        return [given]
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        paths = list_images(path) if path.is_dir() else [path]
        if not paths:
            raise ValueError(f"the folder {str(path)!r} contains no images.")
        return [Input(str(file), str(file)) for file in paths]
    if isinstance(given, bytes | bytearray | memoryview):
        return [Input("the image", bytes(given))]
    if isinstance(given, Image.Image):
        return [Input(str(getattr(given, "filename", "") or "the image"), given)]
    if is_tensor(given):
        if given.ndim not in (3, 4):
            raise ValueError(f"a tensor of images has shape (c, h, w) or (n, c, h, w), not {tuple(given.shape)}.")
        given = given.detach().cpu().movedim(-3, -1).numpy()
    if isinstance(given, np.ndarray):
        single = given.ndim == 2 or (given.ndim == 3 and given.shape[2] in (1, 3, 4))
        if given.ndim not in (2, 3, 4):
            raise ValueError(f"an array of images has shape (h, w), (h, w, c) or (n, h, w, c), not {given.shape}.")
        return _numbered([given] if single else list(given))
    if isinstance(given, Iterable):
        items: Iterable[Any] = given
        found = [images_from(one) for one in items]
        if all(len(each) == 1 and each[0].name == "the image" for each in found):
            return _numbered([each[0].source for each in found])
        return [one for each in found for one in each]
    raise TypeError(f"a {type(given).__name__} is not an image; use paths, PIL images, arrays, tensors or encoded bytes.")


def _numbered(sources: Sequence[Any]) -> list[Input]:
    if len(sources) == 1:
        return [Input("the image", sources[0])]
    return [Input(f"image {number}", source) for number, source in enumerate(sources, start=1)]


@dataclass(frozen=True)
class Frame:
    """Scale the shorter side of an image to `scale` pixels and crop the central `side` × `side`, in 3 channels or 1."""

    side: int
    scale: int
    channels: int

    @property
    def batch(self) -> int:
        """The number of images at a time."""
        return max(16, min(256, PIXELS // (self.channels * self.side**2)))

    def pixels(self, given: Input) -> NDArray[np.uint8]:
        """Return the pixels of an image, (channels, side, side)."""
        image = given.read(2 * self.scale, self.scale)
        if self.scale != self.side:
            edge = round((self.scale - self.side) / 2.0)
            image = image.crop((edge, edge, edge + self.side, edge + self.side))
        pixels = np.asarray(image.convert("L"))[None] if self.channels == 1 else to_pixels(image)
        given.digest = hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
        return pixels

    def each(self, given: Sequence[Input]) -> Iterator[NDArray[np.uint8] | ImageError]:
        """Yield the pixels of each image in order, or the error of an image that cannot be used."""
        workers = threads_for([one.source for one in given if isinstance(one.source, str)])
        for result in decode_each(self.pixels, given, workers):
            assert not isinstance(result, CorruptImageError) or isinstance(result, ImageError)
            yield result


# ---- vectors ---------------------------------------------------------------------------------------------------------


def vectors_from(given: Any, split: Split = "test") -> list[Input]:
    """Return a list of vectors from an array or tensor (d,) or (n, d), a table of pandas, lists of numbers, a file of vectors
    (.npz, .npy, .parquet; `split` as for `read_vectors`), or a sequence of any of these.
    """
    if isinstance(given, Input):
        return [given]
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        if not is_vector_file(path):
            raise ModelError(
                f"this model takes vectors, not images: {path!r} is not a file of vectors ({', '.join(SUFFIXES)}). Its "
                "features were given as vectors when it was created."
            )
        found = vectors_from(read_vectors(path, split).vectors)
        return [Input(f"{path}, row {row}", one.source) for row, one in enumerate(found)]
    if is_tensor(given):
        given = given.detach().cpu().numpy()
    if isinstance(given, list | tuple) and any(isinstance(one, Input | str | os.PathLike) for one in given):
        return [one for each in given for one in vectors_from(each, split)]
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
        return [Input("the vector", array)] if len(array) else []
    return [Input(f"vector {number}", row) for number, row in enumerate(array, start=1)]


@dataclass(frozen=True)
class Vectors:
    """Used instead of an extractor. Without a `function`, the user gives vectors of `dim` numbers instead of images."""

    name: str
    dim: int
    function: Function | None = None

    @classmethod
    def measure(cls, name: str, function: Function | None, first: Sequence[Input]) -> Vectors:
        """Return `Vectors` with as many features as the first vector or the first readable image has."""
        if name == VECTORS:
            return cls(name, len(first[0].source))
        errors: list[ImageError] = []
        for given in first:
            try:
                return cls(name, compute(function, [image_for_function(given)]).shape[1], function)
            except ImageError as error:
                errors.append(error)
        raise none_usable(errors)

    @property
    def batch(self) -> int:
        """The number of vectors, or of images for the function, at a time."""
        return BATCH if self.name == VECTORS else IMAGES

    def each(self, given: Sequence[Input]) -> Iterator[NDArray[Any] | Image | ImageError]:
        """Yield each vector, or each image for the function, in order, or the error of one that cannot be used."""
        for one in given:
            try:
                yield self._checked(one) if self.name == VECTORS else image_for_function(one)
            except ImageError as error:
                yield error

    def features(self, found: list[Any]) -> NDArray[Any]:
        """Return the features (n, d) of what `each` has yielded."""
        array = np.stack(found) if self.name == VECTORS else compute(self.function, found)
        if array.shape[1] != self.dim:
            raise ModelError(
                f"the function gave {array.shape[1]:,} features, but the model has {self.dim:,}; use the function that it "
                "was created with."
            )
        return array

    def _checked(self, given: Input) -> NDArray[Any]:
        vector: NDArray[Any] = given.source
        if len(vector) != self.dim:
            raise ImageError(given.name, f"it has {len(vector):,} numbers, and the model takes {self.dim:,}")
        if not np.isfinite(vector).all():
            raise ImageError(given.name, "it holds NaN or infinity")
        return vector


def compute(function: Function | None, images: list[Image]) -> NDArray[Any]:
    """Return the features (n, d) that a function computes."""
    if function is None:
        raise ModelError(
            "the features of this model are computed by a Python function, which is not stored. Open the model with it: "
            "Model.open(path, features=FUNCTION)."
        )
    found = function(images)
    array = found.detach().cpu().numpy() if is_tensor(found) else np.asarray(found)
    if array.ndim != 2 or len(array) != len(images) or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ValueError(
            f"the function of the features gave {array.dtype} {array.shape} for {len(images)} images; it must give finite "
            f"numbers of shape ({len(images)}, d)."
        )
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def image_for_function(given: Input) -> Image:
    """Return an image for a function, upright and in RGB; large JPEG files are reduced."""
    image = given.read(LEAST)
    given.digest = hashlib.blake2b(np.asarray(image).tobytes(), digest_size=16).digest()
    return image
