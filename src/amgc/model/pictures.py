"""Pictures of any kind (files, encoded bytes, PIL images, arrays, tensors) as uint8 pixels (channels, side, side).

Upright by their EXIF orientation, the shorter side scaled, the centre cut out. Files are decoded by threads, a few at a time.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from amgc.data.decode import CorruptImageError, available_cores, check_proportions, formats, list_images, shorter_side, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 100_000_000  # pixels of a picture
SMALLEST = 4  # pixels of its shorter side
AHEAD = 64  # files that are decoded before they are asked for
MOVING = ("GIF", "WEBP", "PNG", "AVIF")  # formats whose further frames are later moments; elsewhere they are pages or maps
SMALL_FILE = 16_000  # bytes: below, threads cost more than they save


class PictureError(CorruptImageError):
    """Something that should be a picture and cannot be used as one. `path` says which."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.args = (f"{path} cannot be used as a picture: {reason}.",)


@dataclass
class Picture:
    """A picture that is read when it is needed; `name` is its path, or says which of those given it is."""

    name: str
    source: Any
    animated: bool = False  # known once it has been read; the first frame is taken

    def read(self, least: int) -> Image:
        """The picture itself, upright, in RGB, no smaller than it is or than `least` pixels each way; or a PictureError."""
        from PIL import Image, ImageOps, UnidentifiedImageError

        if isinstance(self.source, str):
            content: Any = io.BytesIO(self._file(self.source))
        elif isinstance(self.source, bytes):
            content = io.BytesIO(self.source)
        else:
            content = None
        try:
            opened = from_array(self.source) if content is None else Image.open(content, formats=formats())
            self._check_size(opened)
            self.animated = opened.format in MOVING and bool(getattr(opened, "is_animated", False))
            opened.draft(None, (least, least))  # a photograph is decoded at a half, a quarter or an eighth of its size
            return to_rgb(ImageOps.exif_transpose(opened))
        except PictureError:
            raise
        except UnidentifiedImageError as error:
            raise PictureError(self.name, f"it is none of {', '.join(formats())}; convert it, or remove it") from error
        except Image.DecompressionBombError as error:
            raise self._too_large() from error
        except Exception as error:  # Pillow's readers raise whatever the damage makes them stumble over
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise  # about the machine, not about the picture: Pillow's own errors have no errno
            raise PictureError(self.name, f"{error or type(error).__name__}; repair it, or remove it") from error

    def _file(self, path: str) -> bytes:
        """Read here: what else the disk does wrong is then no fault of the picture."""
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would be to wait for ever
                raise PictureError(self.name, "it is no ordinary file")
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise PictureError(self.name, "there is no such file, or it is a link to one that is gone") from None
        except PermissionError:
            raise PictureError(self.name, "it may not be read; change its permissions") from None

    def _check_size(self, image: Image) -> None:
        if image.width * image.height > LARGEST:
            raise self._too_large()
        check_proportions(*image.size)
        if min(image.size) < SMALLEST:
            raise PictureError(
                self.name, f"it has {image.width} × {image.height} pixels, and {SMALLEST} each way are the least; remove it"
            )

    def _too_large(self) -> PictureError:
        return PictureError(self.name, f"it has more than {LARGEST // 1_000_000} million pixels; make it smaller first")


def from_array(source: Any) -> Image:
    """One picture from a PIL image or an array (h, w), (h, w, 1 to 4)."""
    from PIL import Image

    if isinstance(source, Image.Image):
        return source
    array = np.asarray(source)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise ValueError(f"its shape is {array.shape}, not (height, width) or (height, width, 1, 3 or 4)")
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    elif array.dtype == np.uint16:
        array = np.rint(array / 257).astype(np.uint8)
    elif np.issubdtype(array.dtype, np.floating):
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise ValueError("its values are not all from 0 to 1, as those of floating-point pictures must be")
        array = np.rint(array * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        if not (np.issubdtype(array.dtype, np.integer) and array.size and array.min() >= 0 and array.max() <= 255):
            raise ValueError(f"its values, of type {array.dtype}, are not all from 0 to 255")
        array = array.astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array))


def pictures(given: Any) -> list[Picture]:
    """What was given, one by one: a path (a folder stands for all pictures below it), encoded bytes, a PIL image, an array
    (h, w), (h, w, c) or (n, h, w, c), a tensor (c, h, w) or (n, c, h, w), or a sequence of any of these.
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
            raise ValueError(f"a tensor of pictures has shape (c, h, w) or (n, c, h, w), not {tuple(given.shape)}.")
        given = given.detach().cpu().movedim(-3, -1).numpy()
    if isinstance(given, np.ndarray):
        single = given.ndim == 2 or (given.ndim == 3 and given.shape[2] in (1, 3, 4))
        if given.ndim not in (2, 3, 4):
            raise ValueError(f"an array of pictures has shape (h, w), (h, w, c) or (n, h, w, c), not {given.shape}.")
        return _numbered([given] if single else list(given))
    if isinstance(given, Iterable):
        found = [(one, pictures(one)) for one in given]
        unnamed = all(len(each) == 1 and each[0].name == "the picture" for _, each in found)
        return _numbered([each[0].source for _, each in found]) if unnamed else [one for _, each in found for one in each]
    raise TypeError(f"a {type(given).__name__} is no picture; give paths, PIL images, arrays, tensors or encoded bytes.")


def _numbered(sources: Sequence[Any]) -> list[Picture]:
    if len(sources) == 1:
        return [Picture("the picture", sources[0])]
    return [Picture(f"picture {number}", source) for number, source in enumerate(sources, start=1)]


def _files(path: Path) -> list[Picture]:
    if path.is_dir():
        found = list_images(path)
        if not found:
            raise ValueError(f"the folder {str(path)!r} has no pictures.")
        return [Picture(str(file), str(file)) for file in found]
    return [Picture(str(path), str(path))]


@dataclass(frozen=True)
class Frame:
    """What becomes of a picture: shorter side scaled to `scale`, the centre of `side` pixels cut out, in 3 channels or 1."""

    side: int
    scale: int
    channels: int

    def pixels(self, picture: Picture) -> NDArray[np.uint8]:
        """(channels, side, side)."""
        image = shorter_side(picture.read(2 * self.scale), self.scale)
        if self.scale != self.side:
            edge = round((self.scale - self.side) / 2.0)
            image = image.crop((edge, edge, edge + self.side, edge + self.side))
        if self.channels == 1:
            return np.asarray(image.convert("L"))[None]
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))

    def each(self, given: Sequence[Picture]) -> Iterator[NDArray[np.uint8] | PictureError]:
        """The pixels of all, in order; for one that cannot be used its error."""
        workers = 1 if len(given) == 1 or _small(given) else available_cores()
        if workers == 1:
            yield from map(self._try, given)
            return
        with ThreadPoolExecutor(workers, thread_name_prefix="amgc-decode") as pool:
            for start in range(0, len(given), AHEAD):  # map submits all that it is given; slices keep it bounded
                yield from pool.map(self._try, given[start : start + AHEAD])

    def _try(self, picture: Picture) -> NDArray[np.uint8] | PictureError:
        try:
            return self.pixels(picture)
        except PictureError as error:
            return error


def _small(given: Sequence[Picture]) -> bool:
    """Whether these are arrays, or files that are small on average, by a look at up to 32 of them."""
    paths = [one.source for one in given[:: max(1, len(given) // 32)] if isinstance(one.source, str)]
    sizes = [os.path.getsize(path) for path in paths if os.path.exists(path)]
    return sum(sizes) < SMALL_FILE * max(1, len(sizes))
