"""Decode images: files, encoded bytes, PIL images and arrays to RGB, upright and of one size. Unusable images are named.

This is the only place where amgc decodes images. Threads decode several files at a time, not worker processes: Pillow decodes
and resizes without holding the interpreter's lock, so threads scale as well, start at once and copy nothing between
processes. For small files threads only slow each other down, and one is used (benchmarks/decode.py measures both).
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc import files
from amgc.text import byte_size

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

# Formats that are opened, by Pillow's names. Others are not: EPS starts Ghostscript; PDF, HDF5 or MPEG hold no single image.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
# Suffixes and brands (bytes 8 to 12) of formats that may need an extra or a newer Pillow. Such files are always listed,
# so that the error can say what is missing.
OPTIONAL_SUFFIXES = (".heic", ".heif", ".hif", ".avif")
OPTIONAL = {
    "HEIF": (
        "it is HEIC; to read it, pip install 'amgc[heic]'",
        (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"),
    ),
    "AVIF": ("it is AVIF; to read it, install Pillow 11.3 or newer", (b"avif", b"avis")),
}
ANIMATED = ("GIF", "WEBP", "PNG", "AVIF")  # formats whose further frames are an animation; elsewhere they are pages or maps
LARGEST = 100_000_000  # pixels
LARGEST_FILE = 1 << 30  # bytes: an image of 100 million pixels, not compressed, with four channels of 16 bits, has 0.8 GB
GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}  # ENXIO: a socket
LONGEST = 100  # times the shorter side: a few bytes may describe an image a million pixels long, which would be scaled first
STRIP = 1_000_000  # pixels that are converted at a time
SMALL_FILE = 16_000  # bytes: below, threads cost more than they save
AHEAD = 64  # images that are decoded before they are needed


class CorruptImageError(ValueError):
    """A file, or another source, that should be an image and cannot be used as one."""

    def __init__(self, path: str, reason: str, advice: str = "repair it, or remove it") -> None:
        super().__init__(
            f"{path!r} is not a readable image ({reason}); repair or remove it, or leave unreadable files out with "
            f'on_corrupt="skip" (amgc run: --data.on-corrupt skip).'
        )
        self.path = path
        self.reason = reason
        self.advice = advice

    def __reduce__(self) -> tuple[type[CorruptImageError], tuple[str, str]]:
        return type(self), (self.path, self.reason)  # pickle would call it with the message alone


def decode(path: str | os.PathLike[str], size: int) -> NDArray[np.uint8]:
    """Return the image in a file as RGB (3, size, size): upright, shorter side scaled to `size`, centre cropped."""
    image, _ = read_image(read_file(path), os.fspath(path), size=size)
    return to_pixels(image)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of an image file. Raises CorruptImageError if there is no readable regular file of a usual size.

    Other errors of the disk are not errors of the image.
    """
    name = os.fspath(path)
    try:
        return files.read_bytes(path, LARGEST_FILE)
    except files.FileFormatError:
        kind = f"it is larger than {byte_size(LARGEST_FILE)}" if os.path.isfile(path) else "it is not a regular file"
        raise CorruptImageError(name, kind) from None
    except PermissionError:
        raise CorruptImageError(name, "permission denied", "change its permissions") from None
    except OSError as error:
        if error.errno in GONE:
            raise CorruptImageError(name, "there is no such file, or it is a link to a missing file") from None
        raise


def read_image(
    source: Any, name: str, *, reduce_to: int | None = None, smallest: int = 1, size: int | None = None
) -> tuple[Image, bool]:
    """Return an image, upright and in RGB, and whether it is the first frame of an animation.

    Raises CorruptImageError, with `name` as its path, for what is not an image, is damaged, or is too large, long or small.

    source : the content of an image file as bytes, a PIL image, or an array (h, w), (h, w, 1 to 4).
    reduce_to : JPEG files may be decoded at 1/2, 1/4 or 1/8 of their size, but at no fewer pixels than this each way.
    smallest : pixels that the shorter side must have.
    size : the shorter side is scaled to `size` and the centre cropped, with little memory; None for the whole image.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    known = formats()
    try:
        opened = Image.open(io.BytesIO(source), formats=known) if isinstance(source, bytes) else from_array(source)
        _check_size(name, *opened.size, smallest)
        animated = opened.format in ANIMATED and bool(getattr(opened, "is_animated", False))
        if reduce_to is not None:
            opened.draft(None, (reduce_to, reduce_to))
        # Resizing before turning would need less memory, but the centre crop must see the image upright.
        upright = opened
        if isinstance(source, bytes):
            ImageOps.exif_transpose(opened, in_place=True)  # a copy would need twice the memory
        else:
            upright = ImageOps.exif_transpose(opened)
        return to_rgb(upright) if size is None else shorter_side(upright, size), animated
    except CorruptImageError:
        raise
    except UnidentifiedImageError as error:
        raise CorruptImageError(name, _unidentified(source, known), "convert it, or remove it") from error
    except Image.DecompressionBombError as error:
        raise _too_large(name) from error
    except Exception as error:  # Pillow's readers raise errors of any type for damaged files
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise  # an error of the machine: Pillow's own errors have no errno
        raise CorruptImageError(name, f"{error or type(error).__name__}") from error


def _check_size(name: str, width: int, height: int, smallest: int) -> None:
    if width * height > LARGEST:
        raise _too_large(name)
    shown = f"it has {width} × {height} pixels"
    if max(width, height) > LONGEST * min(width, height):
        raise CorruptImageError(name, f"{shown}, one side more than {LONGEST} times the other")
    if min(width, height) < smallest:
        raise CorruptImageError(name, f"{shown}, and {smallest} each way are the least", "remove it")


def _too_large(name: str) -> CorruptImageError:
    return CorruptImageError(name, f"it has more than {LARGEST // 1_000_000} million pixels", "make it smaller first")


def _unidentified(content: Any, known: Sequence[str]) -> str:
    """Say why no reader accepts a file."""
    if isinstance(content, bytes) and content[4:8] == b"ftyp":
        for name, (reason, brands) in OPTIONAL.items():
            if name not in known and content[8:12] in brands:
                return reason
    return f"it is none of {', '.join(known)}"


def formats() -> list[str]:
    """Return those of `FORMATS` that can be read: AVIF needs Pillow 11.3, HEIF pillow-heif; MPO is read by JPEG's reader."""
    from PIL import Image

    _register_heif()
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


@cache
def _register_heif() -> None:
    """Let Pillow read HEIC, if the extra `heic` is installed."""
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()


def to_rgb(image: Image) -> Image:
    """Return an image of any mode as RGB. 16-bit greys are scaled (a plain convert would clip them to white); transparent
    images are put on white.
    """
    return _in_strips(image, image.width)


def _in_strips(image: Image, width: int) -> Image:
    """Return an image of any mode as RGB, its rows scaled to `width` pixels.

    It is converted a few rows at a time: the values of 50 million pixels as float64 would take 0.4 GB.
    """
    from PIL import Image

    rows = max(1, STRIP // image.width)
    if image.height <= rows:
        return _scaled(_to_rgb(image), width)
    result = Image.new("RGB", (width, image.height))
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        result.paste(_scaled(_to_rgb(strip), width), (0, top))
    return result


def _scaled(image: Image, width: int) -> Image:
    """Scale the rows of an image. Each depends on its own pixels only."""
    from PIL import Image

    return image if image.width == width else image.resize((width, image.height), Image.Resampling.BILINEAR)


def _to_rgb(image: Image) -> Image:
    from PIL import Image

    if image.mode in ("RGB", "L", "1", "CMYK", "YCbCr", "HSV") and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        top = 1.0 if image.mode == "F" else 65535.0
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= top):
            raise ValueError(f"it has values from {values.min():g} to {values.max():g}; expected 0 to {top:g}")
        return Image.fromarray(np.rint(values * (255.0 / top)).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA", "LA", "La", "RGBA", "RGBa", "RGB", "L", "1"):
        if image.mode == "La":
            image = image.convert("LA")
        clear = image.convert("RGBA")
        page = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(page, clear).convert("RGB")
    raise ValueError(f"mode {image.mode} has no known conversion to RGB; save it as RGB")


def shorter_side(image: Image, size: int) -> Image:
    """Return an image of any mode as RGB after Resize(size) and CenterCrop(size) of torchvision, as in PyCIL: bilinear, the
    same rounding.

    Horizontally first, then vertically, each in a call of its own, because Pillow 13 chooses the order by the sizes. It rounds
    in between, so the order changes some pixels by one, and `amgc export` relies on it.
    """
    from PIL import Image

    width, height = image.size
    if width <= height:
        width, height = size, max(size, int(size * height / width))
    else:
        width, height = max(size, int(size * width / height)), size
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    narrow = _in_strips(image, width)
    scaled = narrow if narrow.height == height else narrow.resize((width, height), Image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def to_pixels(image: Image) -> NDArray[np.uint8]:
    """Return the pixels of an RGB image, (3, h, w)."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def from_array(source: Any) -> Image:
    """Return a PIL image from itself or from an array (h, w), (h, w, 1 to 4)."""
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
            raise ValueError("its values are not all from 0 to 1, as those of floating-point images must be")
        array = np.rint(array * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        if not (np.issubdtype(array.dtype, np.integer) and array.size and array.min() >= 0 and array.max() <= 255):
            raise ValueError(f"its values, of type {array.dtype}, are not all from 0 to 255")
        array = array.astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array))


def decode_each(
    function: Callable[[T], NDArray[np.uint8]], items: Sequence[T], workers: int, ahead: int = AHEAD
) -> Iterator[NDArray[np.uint8] | CorruptImageError]:
    """Yield `function(item)` for each item in order, computed by threads. For an unusable image its error is yielded."""

    def attempt(item: T) -> NDArray[np.uint8] | CorruptImageError:
        try:
            return function(item)
        except CorruptImageError as error:
            return error

    if workers <= 1 or len(items) <= 1:
        yield from map(attempt, items)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="amgc-decode") as pool:
        for start in range(0, len(items), ahead):  # map submits all that it gets; slices limit memory
            yield from pool.map(attempt, items[start : start + ahead])


def threads_for(paths: Sequence[str]) -> int:
    """Return how many threads should decode these files: one if they are small on average, judged by up to 32 of them."""
    sizes = [os.path.getsize(path) for path in paths[:: max(1, len(paths) // 32)] if os.path.exists(path)]
    return 1 if sum(sizes) < SMALL_FILE * max(1, len(sizes)) else available_cores()


class Files:
    """Image files of one size, decoded when they are needed. One of the sources of pixels; see `amgc.data.images`."""

    def __init__(self, paths: Sequence[str], size: int, workers: int | None = None) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1 pixel, not {size}.")
        self.paths = list(paths)
        self.size = size
        self.workers = workers if workers is not None else threads_for(self.paths)

    @property
    def shape(self) -> tuple[int, ...]:
        return (3, self.size, self.size)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Tensor) -> Tensor:
        result = np.empty((len(rows), *self.shape), dtype=np.uint8)
        for place, pixels in enumerate(self.each(rows.tolist())):
            if isinstance(pixels, CorruptImageError):
                raise pixels
            result[place] = pixels
        return torch.from_numpy(result)

    def subset(self, rows: Tensor) -> Files:
        return Files([self.paths[row] for row in rows.tolist()], self.size, self.workers)

    def each(self, rows: Sequence[int]) -> Iterator[NDArray[np.uint8] | CorruptImageError]:
        """Yield the pixels of these rows in order. For an unreadable file its error is yielded."""
        return decode_each(lambda row: decode(self.paths[row], self.size), rows, self.workers, ahead=256)


def available_cores() -> int:
    """Return how many cores this process may use, at most 16: beyond, the disk is the limit."""
    try:
        return min(16, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on macOS and Windows
        return min(16, os.cpu_count() or 1)


@dataclass(frozen=True)
class Listing:
    """The files below a folder. images : sorted. left_out : other files and hidden folders, sorted, by the reason."""

    images: list[Path]
    left_out: dict[str, list[Path]]


def list_images(folder: Path) -> list[Path]:
    """Return the image files below a folder, sorted. Hidden files and files with other suffixes are left out."""
    return list_files(folder).images


def list_files(folder: Path) -> Listing:
    """Return the image files below a folder, by their suffixes, and what is left out."""
    from PIL import Image

    suffixes = {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS} | {*OPTIONAL_SUFFIXES}
    found: list[Path] = []
    hidden: list[Path] = []
    for parent, folders, names in os.walk(folder):
        hidden += [Path(parent, name) for name in (*folders, *names) if name.startswith(".")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    others = sorted(path for path in found if path.suffix.lower() not in suffixes)
    left_out = {"not an image, by its name": others, "hidden": sorted(hidden)}
    images = sorted(path for path in found if path.suffix.lower() in suffixes)
    return Listing(images, {reason: paths for reason, paths in left_out.items() if paths})


def list_folders(folder: Path) -> list[Path]:
    """Return the sub-folders, sorted. Hidden ones are left out."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
