"""Images of any kind (files, encoded bytes, PIL images, arrays, tensors), for a model to learn from or to classify.

`amgc.data.decode` decodes them. A `Frame` converts them to the pixels that a model's extractor needs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from amgc.data.decode import CorruptImageError, read_file, read_image, to_pixels
from amgc.data.image_files import decode_each, list_images, threads_for

if TYPE_CHECKING:
    from PIL.Image import Image

# The types that `pictures` accepts. Iterables may be nested.
Given: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Image | NDArray[Any] | Tensor | Iterable[Any]"
SMALLEST = 4  # minimum number of pixels of the shorter side


class PictureError(CorruptImageError):
    """An input cannot be used as a picture. `path` is its path, or its number among the inputs."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.args = (f"{path} cannot be used as a picture: {reason}.",)


@dataclass
class Picture:
    """An image that is read when it is needed. `name` is its path, or its number among the inputs."""

    name: str
    source: Any
    animated: bool = False  # set when the image is read; only its first frame is used
    digest: bytes = b""  # hash of the pixels that `Frame.pixels` returned; the same for copies of an image

    def read(self, least: int, size: int | None = None) -> Image:
        """Return the image in RGB, rotated upright. Large images may be reduced, to at least `least` pixels on each side.

        With `size`, the shorter side is scaled to that and the centre cropped.

        Raises PictureError if it cannot be used.
        """
        try:
            source = read_file(self.source) if isinstance(self.source, str) else self.source
            image, self.animated = read_image(source, self.name, reduce_to=least, smallest=SMALLEST, size=size)
        except CorruptImageError as error:
            raise PictureError(error.path, f"{error.reason}; {error.advice}") from error
        return image


def pictures(given: Given | Picture) -> list[Picture]:
    """Return a list of images from a path (of a file, or of a folder for all images below it), encoded bytes, a PIL image,
    an array (h, w), (h, w, c) or (n, h, w, c), a tensor (c, h, w) or (n, c, h, w), or a sequence of any of these.
    """
    from PIL import Image

    if isinstance(given, Picture):
        return [given]
    if isinstance(given, str | os.PathLike):
        return _files(Path(given))
    if isinstance(given, bytes | bytearray | memoryview):
        return [Picture("the picture", bytes(given))]
    if isinstance(given, Image.Image):
        return [Picture(str(getattr(given, "filename", "") or "the picture"), given)]
    if isinstance(given, Tensor):
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
        found = [(one, pictures(one)) for one in items]
        unnamed = all(len(each) == 1 and each[0].name == "the picture" for _, each in found)
        return _numbered([each[0].source for _, each in found]) if unnamed else [one for _, each in found for one in each]
    raise TypeError(f"a {type(given).__name__} is not an image; use paths, PIL images, arrays, tensors or encoded bytes.")


def _numbered(sources: Sequence[Any]) -> list[Picture]:
    if len(sources) == 1:
        return [Picture("the picture", sources[0])]
    return [Picture(f"picture {number}", source) for number, source in enumerate(sources, start=1)]


def _files(path: Path) -> list[Picture]:
    if path.is_dir():
        found = list_images(path)
        if not found:
            raise ValueError(f"the folder {str(path)!r} contains no images.")
        return [Picture(str(file), str(file)) for file in found]
    return [Picture(str(path), str(path))]


@dataclass(frozen=True)
class Frame:
    """Scale the shorter side of an image to `scale` pixels and crop the central `side` × `side`, in 3 channels or 1."""

    side: int
    scale: int
    channels: int

    def pixels(self, picture: Picture) -> NDArray[np.uint8]:
        """Return the pixels of an image, (channels, side, side)."""
        image = picture.read(2 * self.scale, self.scale)
        if self.scale != self.side:
            edge = round((self.scale - self.side) / 2.0)
            image = image.crop((edge, edge, edge + self.side, edge + self.side))
        pixels = np.asarray(image.convert("L"))[None] if self.channels == 1 else to_pixels(image)
        picture.digest = hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
        return pixels

    def each(self, given: Sequence[Picture]) -> Iterator[NDArray[np.uint8] | PictureError]:
        """Yield the pixels of each image in order, or the error of an image that cannot be used."""
        workers = threads_for([one.source for one in given if isinstance(one.source, str)])
        for result in decode_each(self.pixels, given, workers):
            assert not isinstance(result, CorruptImageError) or isinstance(result, PictureError)
            yield result
