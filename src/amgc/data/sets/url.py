"""Folders of images at an address that fsspec reads: `s3://bucket/photos`, one sub-folder for each class."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from amgc.data import storage
from amgc.data.registry import data_set
from amgc.data.shards import FILES, Columns, Sample, ShardError
from amgc.data.source_sets import SourceOptions, dataset
from amgc.files import FileFormatError

if TYPE_CHECKING:
    from amgc.data.images import Dataset

LARGEST = 1 << 30  # bytes of an image


@dataclass(frozen=True)
class UrlShard:
    """Some files of a folder: address, label and size of each."""

    files: tuple[tuple[str, str, int], ...]
    unit: ClassVar[str] = "bytes"

    @property
    def name(self) -> str:
        return f"{len(self.files)} files from {self.files[0][0]!r} on"

    @property
    def size(self) -> int:
        return sum(size for *_, size in self.files)

    def stamp(self) -> str:
        return hashlib.sha256(repr(self.files).encode()).hexdigest()

    def samples(self) -> Iterator[Sample]:
        for path, label, size in self.files:
            if size > LARGEST:
                yield Sample(path, label, b"")
                continue
            try:
                with storage.open_file(path) as file:
                    yield Sample(path, label, file.read())
            except FileNotFoundError as error:
                raise ShardError(self.name, f"{path!r} does not exist any more.") from error
            except FileFormatError:  # a pipe or a device
                yield Sample(path, label, b"")


def shards(address: str, columns: Columns) -> list[UrlShard]:
    """Return the images below an address. The folder of an image, just below the address, is its class."""
    from amgc.data.decode import suffixes

    known = suffixes()
    system, root = storage.file_system(address)
    try:
        found = system.find(root, detail=True)
    except FileNotFoundError:
        found = {}
    files = []
    for path, about in sorted(found.items()):
        inside = path.removeprefix(root).strip("/").split("/")
        if f".{inside[-1].rpartition('.')[2]}".lower() not in known or any(part.startswith(".") for part in inside):
            continue
        files.append((str(system.unstrip_protocol(path)), inside[0] if len(inside) > 1 else "", int(about.get("size") or 0)))
    if not files:
        raise FileNotFoundError(f"there are no images at {address!r}.")
    return [UrlShard(tuple(files[start : start + FILES])) for start in range(0, len(files), FILES)]


@data_set("url", SourceOptions(), root="required", shards=shards)
def url(address: str, options: SourceOptions) -> Dataset:
    """url:ADDRESS, a folder with one sub-folder per class at s3://, gs:// or anything else that fsspec reads."""
    test = shards(options.test, options) if options.test else []
    return dataset(f"url:{address.rstrip('/').rpartition('/')[2]}", shards(address, options), test, options)
