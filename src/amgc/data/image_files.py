"""List image files, and decode many of them with threads.

Threads, not worker processes: Pillow decodes and resizes without holding the interpreter's lock, so threads scale as well as
processes, start faster and copy nothing between processes. For small files threads only slow each other down, and one is used
(benchmarks/decode.py measures both).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from amgc.data.decode import CorruptImageError, decode, suffixes
from amgc.lazy import Lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")

T = TypeVar("T")

SMALL_FILE = 16_000  # bytes: below, threads cost more than they save
AHEAD = 64  # images that are decoded before they are needed
MOST_THREADS = 16  # with more, the disk is the limit


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
    return 1 if sum(sizes) < SMALL_FILE * max(1, len(sizes)) else min(MOST_THREADS, available_cores())


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
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


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
    known = suffixes()
    found: list[Path] = []
    hidden: list[Path] = []
    for parent, folders, names in os.walk(folder):
        hidden += [Path(parent, name) for name in (*folders, *names) if name.startswith(".")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    others = sorted(path for path in found if path.suffix.lower() not in known)
    left_out = {"not an image, by its name": others, "hidden": sorted(hidden)}
    images = sorted(path for path in found if path.suffix.lower() in known)
    return Listing(images, {reason: paths for reason, paths in left_out.items() if paths})


def list_folders(folder: Path) -> list[Path]:
    """Return the sub-folders, sorted. Hidden ones are left out."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
