"""Shared code of the sources in `amgc.data.sets`: columns, and a data set for `amgc run` from shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from amgc.data.registry import MEMORY
from amgc.data.sets.arrays import stratified
from amgc.data.sets.folders import MEAN, STD
from amgc.data.shards import Columns, Sample, Shard, ShardError
from amgc.lazy import Lazy
from amgc.options import option
from amgc.text import byte_size, listing

if TYPE_CHECKING:
    import numpy as np

    from amgc.data.images import Dataset
else:
    np = Lazy("numpy")


@dataclass(frozen=True)
class SourceOptions(Columns):
    """Options of sources in `amgc run`."""

    size: int = option(64, "scale the shorter side to this many pixels and crop the centre")
    test: str | None = option(None, "pattern, or split of a Hugging Face data set, with the test images")
    test_share: float = option(0.2, "share of each class set aside for testing, without test images")
    split_seed: int = option(0, "seed of that split")
    on_corrupt: Literal["error", "skip"] = option("error", "stop at an unreadable image, or leave unreadable images out")
    memory: int = option(MEMORY, "bytes of pixels that may be kept in memory")


def dataset(name: str, train: Sequence[Shard], test: Sequence[Shard], options: SourceOptions) -> Dataset:
    """Return the images of shards, decoded once and kept in memory. Without `test` shards, a share is set aside."""
    import torch

    from amgc.data.decode import CorruptImageError, read_image, to_pixels
    from amgc.data.images import Dataset, Images

    if options.size < 1:
        raise ValueError(f"size must be at least 1 pixel, not {options.size}.")
    pixels: list[Any] = []
    labels: list[str] = []
    is_test: list[bool] = []
    skipped: list[str] = []
    each = 3 * options.size**2
    for shards, part in ((train, False), (test, True)):
        for sample in labelled(shards):
            try:
                image, _ = read_image(read(sample.content), sample.name, size=options.size)
            except CorruptImageError as error:
                if options.on_corrupt == "error":
                    raise
                skipped.append(error.path)
                continue
            pixels.append(to_pixels(image))
            labels.append(sample.label)
            is_test.append(part)
            if len(pixels) * each > options.memory:
                raise MemoryError(
                    f"the images of {name!r} at {options.size} pixels need more than {byte_size(options.memory)}, and they are "
                    "kept in memory. Choose a smaller --data.size, or more bytes with --data.memory."
                )
    names = tuple(sorted(set(labels)))
    if not names:
        raise ValueError(f"{name!r} has no images that can be used.")
    numbers = np.array([names.index(label) for label in labels])
    mask = np.array(is_test) if test else stratified(numbers, options.test_share, options.split_seed, names)
    stacked = torch.from_numpy(np.stack(pixels))
    del pixels
    splits = [Images.of(stacked[torch.from_numpy(own)], numbers[own]) for own in (~mask, mask)]
    return Dataset(splits[0], splits[1], names, name, MEAN, STD, tuple(skipped), options.memory)


def read(content: Any) -> Any:
    """Return the content of a sample as `read_image` takes it."""
    from amgc.data.decode import read_file

    return read_file(content) if isinstance(content, str) else content


def labelled(shards: Sequence[Shard]) -> Iterator[Sample]:
    """Yield the samples of shards. Raises ShardError for one without a label."""
    for shard in shards:
        for sample in shard.samples():
            if not sample.label:
                raise ShardError(shard.name, f"{sample.name!r} has no label; label_column says where labels are.")
            yield sample


def column(names: Sequence[str], wanted: str | None, usual: Sequence[str], shard: str, what: str) -> str | None:
    """Return the name of a column: the wanted one, or the first of the usual ones. Raises ShardError if it is missing."""
    if wanted is not None and wanted not in names:
        raise ShardError(shard, f"it has no column {wanted!r} of {what}; it has {listing(list(names))}.")
    return wanted or next((name for name in usual if name in names), None)


IMAGE, LABEL = ("image", "img", "jpg", "png", "webp", "picture"), ("label", "labels", "class", "fine_label", "cls")


def image_bytes(value: Any, shard: str, folder: str) -> bytes | str:
    """Return the encoded image of a cell: bytes, or a struct of bytes and path as Hugging Face stores it; b"" if it has none.

    Raises ShardError for a path outside `folder`, the folder of the data: untrusted data must not name other files.
    """
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str) or "\0" in value:
        return b""
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, value))
    if not path.startswith(os.path.join(root, "")):
        raise ShardError(
            shard, f"it names the file {value!r}, which is not in {root!r}; copy it there, or store the image itself."
        )
    return path


def label_text(value: Any, names: Sequence[str] | None) -> str:
    """Return a label as text. With `names`, numbers are indices into it."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if names is not None and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return str(names[value])
    return str(value)
