"""Image files to pixels: any mode to RGB, upright, at one size; decoded by threads, an unreadable file named.

Threads rather than worker processes: Pillow decodes and resizes photographs without holding the interpreter's lock, so
threads scale as well, start at once and copy nothing between processes. With small files, of which Pillow's part is
small, threads only get in each other's way, and one is used (benchmarks/decode.py prints all of it).
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


# What is opened, by Pillow's names. Others stay shut: EPS starts Ghostscript; PDF, HDF5 or MPEG hold no single picture.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")


LONGEST = 100  # times the shorter side: a few bytes may describe a picture a million pixels long, which would be scaled first


class CorruptImageError(ValueError):
    """A file that should hold an image and cannot be read as one."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path!r} is not a readable image ({reason}); repair or remove it, or leave unreadable files out with "
            f'on_corrupt="skip" (amgc run: --data.on-corrupt skip).'
        )
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[CorruptImageError], tuple[str, str]]:
        return type(self), (self.path, self.reason)  # pickle would call it with the message alone


def decode(path: str | os.PathLike[str], size: int) -> NDArray[np.uint8]:
    """The picture in a file as RGB (3, size, size): upright, shorter side scaled to `size`, centre cut out."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    known = formats()
    with open(path, "rb") as file:  # read here: what the disk does wrong is then no fault of the picture
        content = io.BytesIO(file.read())
    try:
        with Image.open(content, formats=known) as image:
            # Resized before it is turned, a photograph costs less memory; but the centre crop must see it upright.
            upright = ImageOps.exif_transpose(image)
            picture = shorter_side(to_rgb(upright), size)
            return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))
    except UnidentifiedImageError as error:
        raise CorruptImageError(os.fspath(path), f"it is none of {', '.join(known)}") from error
    except Exception as error:  # Pillow's readers raise whatever the damage makes them stumble over
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise  # about the machine, not about the picture: Pillow's own errors have no errno
        raise CorruptImageError(os.fspath(path), f"{type(error).__name__}: {error}") from error


def formats() -> list[str]:
    """Those of `FORMATS` that this Pillow has a reader for (AVIF came late; MPO is read by JPEG's)."""
    from PIL import Image

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def to_rgb(image: Image) -> Image:
    """Any mode to RGB. 16-bit greys are scaled (a plain convert would clip them to white); transparency is put on
    white.
    """
    from PIL import Image

    if image.mode in ("RGB", "L", "1", "CMYK", "YCbCr", "HSV") and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        top = 1.0 if image.mode == "F" else 65535.0
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= top):
            raise ValueError(f"its values run from {values.min():g} to {values.max():g}; expected 0 to {top:g}")
        return Image.fromarray(np.rint(values * (255.0 / top)).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "PA", "LA", "La", "RGBA", "RGBa", "RGB", "L", "1"):
        if image.mode == "La":
            image = image.convert("LA")
        clear = image.convert("RGBA")
        page = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(page, clear).convert("RGB")
    raise ValueError(f"mode {image.mode} has no known conversion to RGB; save it as RGB")


def shorter_side(image: Image, size: int) -> Image:
    """Resize(size) and CenterCrop(size) of torchvision, which PyCIL uses: bilinear, the same rounding.

    First across, then down, each in a call of its own: left to itself, Pillow 13 begins with down for some sizes. It rounds to
    whole numbers in between, so the order makes some pixels one brighter or darker, and `amgc export` has to know it.
    """
    from PIL import Image

    width, height = image.size
    check_proportions(width, height)
    if (width, height) == (size, size):
        return image
    if width <= height:
        width, height = size, max(size, int(size * height / width))
    else:
        width, height = max(size, int(size * width / height)), size
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    narrow = image.resize((width, image.height), Image.Resampling.BILINEAR)
    return narrow.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def check_proportions(width: int, height: int) -> None:
    """ValueError for a picture that is far longer than it is wide."""
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(f"it has {width} × {height} pixels, one side more than {LONGEST} times the other")


class Files:
    """Image files that are decoded when they are asked for: paths (n,), one size."""

    def __init__(self, paths: Sequence[str], size: int, workers: int | None = None) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1 pixel, not {size}.")
        self.paths = list(paths)
        self.size = size
        self.workers = workers if workers is not None else 1 if _small(self.paths) else available_cores()

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

    def each(self, rows: Sequence[int], ahead: int = 256) -> Iterator[NDArray[np.uint8] | CorruptImageError]:
        """Pixels of these rows in order; for an unreadable file its error, so that the caller may go on."""
        if self.workers <= 1 or len(rows) <= 1:
            yield from (self._try(row) for row in rows)
            return
        with ThreadPoolExecutor(self.workers, thread_name_prefix="amgc-decode") as pool:
            for start in range(0, len(rows), ahead):  # map submits all that it is given; slices keep it bounded
                yield from pool.map(self._try, rows[start : start + ahead])

    def _try(self, row: int) -> NDArray[np.uint8] | CorruptImageError:
        try:
            return decode(self.paths[row], self.size)
        except CorruptImageError as error:
            return error


def _small(paths: Sequence[str]) -> bool:
    """Whether files are on average below 16 kB, by a look at up to 32 of them."""
    sizes = [os.path.getsize(path) for path in paths[:: max(1, len(paths) // 32)] if os.path.exists(path)]
    return sum(sizes) < 16_000 * len(sizes)


def available_cores() -> int:
    """The cores that this process may use; no more than 16, where a disk is the limit."""
    try:
        return min(16, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on macOS and Windows
        return min(16, os.cpu_count() or 1)


def list_images(folder: Path) -> list[Path]:
    """The image files below a folder, by name; hidden files, and files that are no images by their suffix, do not
    count.
    """
    from PIL import Image

    suffixes = {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS}
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if path.suffix.lower() in suffixes)


def list_folders(folder: Path) -> list[Path]:
    """The sub-folders by name, hidden ones left out."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
