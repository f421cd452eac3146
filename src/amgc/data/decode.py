"""Decode an image: a file, encoded bytes, a PIL image or an array to RGB, upright and of one size.

This is the only place where amgc decodes images.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from amgc import files
from amgc.text import byte_size

if TYPE_CHECKING:
    from PIL.Image import Image

# Formats that are opened, by Pillow's names. Others are not: EPS starts Ghostscript; PDF, HDF5 or MPEG hold no single image.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
READERS = ("WebP", "Tiff", "Jpeg2K", "Avif")  # those of these formats that `Image.preinit` does not import
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
        raise CorruptImageError(name, f"{shown}, and needs at least {smallest} each way", "remove it")


def _too_large(name: str) -> CorruptImageError:
    return CorruptImageError(name, f"it has more than {LARGEST // 1_000_000} million pixels", "make it smaller first")


def _unidentified(content: Any, known: Sequence[str]) -> str:
    """Return why no reader accepts a file."""
    if isinstance(content, bytes) and content[4:8] == b"ftyp":
        for name, (reason, brands) in OPTIONAL.items():
            if name not in known and content[8:12] in brands:
                return reason
    return f"it is none of {', '.join(known)}"


def formats() -> list[str]:
    """Return those of `FORMATS` that can be read: AVIF needs Pillow 11.3, HEIF pillow-heif; MPO is read by JPEG's reader."""
    from PIL import Image

    _import_readers()
    return [name for name in FORMATS if name in Image.OPEN]


def suffixes() -> set[str]:
    """Return the suffixes of image files, in lower case."""
    from PIL import Image

    return {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS} | {*OPTIONAL_SUFFIXES}


@cache
def _import_readers() -> None:
    """Import Pillow's readers of `FORMATS`; `Image.init` would import three times as many. HEIC needs the extra `heic`."""
    from PIL import Image

    Image.preinit()
    for name in READERS:
        with suppress(ImportError):
            import_module(f"PIL.{name}ImagePlugin")
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()


def to_rgb(image: Image, width: int | None = None) -> Image:
    """Return an image of any mode as RGB, its rows scaled to `width` pixels if it is given.

    16-bit greys are scaled (a plain convert would clip them to white); transparent images are put on white. A few rows are
    converted at a time: the values of 50 million pixels as float64 would take 0.4 GB.
    """
    from PIL import Image

    width, rows = width or image.width, max(1, STRIP // image.width)
    result = Image.new("RGB", (width, image.height))
    for top in range(0, image.height, rows):
        strip = _to_rgb(image.crop((0, top, image.width, min(top + rows, image.height))))
        if strip.width != width:
            strip = strip.resize((width, strip.height), Image.Resampling.BILINEAR)
        result.paste(strip, (0, top))
    return result


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

    Horizontally first, then vertically, in two separate calls, because Pillow 13 chooses the order by the sizes. It rounds
    in between, so the order changes some pixels by one, and `amgc export` relies on it.
    """
    from PIL import Image

    width, height = image.size
    if width <= height:
        width, height = size, max(size, int(size * height / width))
    else:
        width, height = max(size, int(size * width / height)), size
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    narrow = to_rgb(image, width)
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
