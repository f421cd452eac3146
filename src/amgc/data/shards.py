"""Shards: the parts of a data set that workers read, each from beginning to end. Does not import torch.

A source is a data set that can be read in shards: `wds:PATTERN`, `parquet:PATTERN`, `hf:NAME`, or an address such as
`s3://bucket/photos`. The modules of `amgc.data.sets` register them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from amgc.data import registry, storage
from amgc.options import option
from amgc.registry import split_name

# Images in folders: a shard has at most FILES of them. With fewer than SHARDS * FILES images it has at least FEW, so that all
# workers get some.
FILES, FEW, SHARDS = 1000, 60, 32


@dataclass(frozen=True)
class Sample:
    """An image or a vector of a shard.

    content : the encoded image, the path of its file, or an array (d,). label : "" if the source has none.
    """

    name: str
    label: str
    content: Any


class ShardError(ValueError):
    """A shard that cannot be read, or whose samples cannot be used. The message names it."""

    def __init__(self, shard: str, reason: str) -> None:
        super().__init__(f"{shard}: {reason}")
        self.shard, self.reason = shard, reason

    def __reduce__(self) -> tuple[type[ShardError], tuple[str, str]]:
        return type(self), (self.shard, self.reason)  # pickle would call it with the message alone


class Shard(Protocol):
    """A part of a source. It can be pickled, and reads nothing before `samples` is called."""

    @property
    def name(self) -> str:
        """The file or address, for messages."""

    @property
    def size(self) -> int:
        """How large it is, to estimate time and show progress."""

    @property
    def unit(self) -> str:
        """What `size` counts: "images" or "bytes"."""

    def stamp(self) -> str:
        """Return a text that changes when the contents change."""

    def samples(self) -> Iterator[Sample]:
        """Yield the samples. Raises ShardError if the shard cannot be read."""


@dataclass(frozen=True)
class Columns:
    """Where a source has its images and labels."""

    split: str = option("train", "split of a Hugging Face data set")
    image_column: str | None = option(None, "column of the images (default: image, or the only one that has images)")
    label_column: str | None = option(None, "column of the labels (default: label); of tar files the suffix, cls, or json:KEY")


@dataclass(frozen=True)
class FileShard:
    """Image files with their labels."""

    files: tuple[tuple[str, str], ...]
    unit: ClassVar[str] = "images"

    @property
    def name(self) -> str:
        return f"{len(self.files)} files from {self.files[0][0]!r} on"

    @property
    def size(self) -> int:
        return len(self.files)

    def stamp(self) -> str:
        digest = hashlib.sha256()
        for path, label in self.files:
            try:
                status = os.stat(path)
                digest.update(f"{path!r} {label!r} {status.st_size} {status.st_mtime_ns}\n".encode())
            except OSError:  # the reader says why
                digest.update(f"{path!r} {label!r} gone\n".encode())
        return digest.hexdigest()

    def samples(self) -> Iterator[Sample]:
        for path, label in self.files:
            yield Sample(path, label, path)


@dataclass(frozen=True)
class StoredShard:
    """A file on a disk or at an address. Subclasses yield its samples."""

    path: str
    unit: ClassVar[str] = "bytes"

    @property
    def name(self) -> str:
        return self.path

    @property
    def size(self) -> int:
        return storage.describe(self.path)[0]

    def stamp(self) -> str:
        return storage.describe(self.path)[1]


@dataclass(frozen=True)
class VectorShard(StoredShard):
    """A file of vectors; see `amgc.data.vectors`."""

    split: str = "train"
    label: str | None = None

    def samples(self) -> Iterator[Sample]:
        from amgc.data.vectors import read_vectors

        try:
            found = read_vectors(self.path, "test" if self.split == "test" else "train")
        except (ValueError, OSError) as error:
            raise ShardError(self.path, str(error)) from error
        if found.labels is None and self.label is None:
            raise ShardError(self.path, "it has no labels: add an array 'y', or a column 'label' in Parquet.")
        labels = [self.label] * len(found.vectors) if self.label is not None else found.labels
        rows = found.vectors if found.vectors.dtype.kind == "f" else found.vectors.astype("float64")
        for number, (row, label) in enumerate(zip(rows, labels or (), strict=True)):
            yield Sample(f"{self.path}, row {number}", label or "", row)


def file_shards(images: dict[str, list[str]], most: int | None = None) -> list[FileShard]:
    """Split the files of each class into shards of at most `most` files, in the order in which they are given.

    Without `most`, their number follows from that of the images alone, so that the result does not depend on the machine.

    >>> [len(file_shards({"cat": ["a.png"] * count})) for count in (50, 480, 10_000, 100_000)]
    [1, 8, 32, 100]
    """
    pairs = [(path, label) for label, own in images.items() for path in own]
    if most is None:
        count = max(-(-len(pairs) // FILES), min(SHARDS, -(-len(pairs) // FEW)))
        most = max(1, -(-len(pairs) // max(1, count)))
    return [FileShard(tuple(pairs[start : start + most])) for start in range(0, len(pairs), most)]


def is_source(name: str) -> bool:
    """Return whether an argument is a source, and not the path of a file or folder.

    >>> is_source("wds:train-*.tar"), is_source("s3://bucket/photos"), is_source("photos/train"), is_source("C:/photos")
    (True, True, False, False)
    """
    kind, rest = split_name(name)
    if "://" in name and len(kind) > 1:
        return True
    known = registry.data_sets().get(kind) if rest else None
    return known is not None and known.shards is not None and not Path(name).exists()


def open_source(name: str, chosen: dict[str, Any] | None = None) -> list[Shard]:
    """Return the shards of a source in their order. `chosen` are fields of `Columns` that differ from their defaults."""
    kind, path = split_name(name)
    entry = registry.data_sets().get(kind)
    if entry is None or entry.shards is None:
        entry, path = registry.data_sets()["url"], name
    assert entry.shards is not None
    found: Sequence[Shard] = entry.shards(path, Columns(**(chosen or {})))
    if not found:
        raise FileNotFoundError(f"there is nothing at {name!r}.")
    return list(found)
