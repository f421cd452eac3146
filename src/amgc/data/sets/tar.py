"""WebDataset tar files: `wds:PATTERN`. Read with the standard library, from a disk or an address of fsspec."""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amgc import files
from amgc.data import storage
from amgc.data.registry import data_set
from amgc.data.shards import Columns, Sample, ShardError, StoredShard
from amgc.data.source_sets import IMAGE, SourceOptions, dataset

if TYPE_CHECKING:
    from amgc.data.images import Dataset

SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "avif", "heic")
LABELS = ("cls", "label", "txt")
LARGEST = 1 << 30  # bytes of a member, as of an image file
ZEROS = b"\0" * tarfile.BLOCKSIZE


@dataclass(frozen=True)
class TarShard(StoredShard):
    """A tar file. Members with the same name up to its first dot are one sample: `0001.jpg` and its label `0001.cls`."""

    image: str | None = None
    label: str | None = None

    def samples(self) -> Iterator[Sample]:
        key, parts = "", dict[str, bytes]()
        for member, content in self._members():
            folder, file = os.path.split(member)
            stem, _, suffix = file.partition(".")
            if os.path.join(folder, stem) != key:
                yield from self._sample(key, parts)
                key, parts = os.path.join(folder, stem), {}
            parts[suffix.lower()] = content
            if sum(map(len, parts.values())) > LARGEST:
                raise ShardError(self.path, f"the members of {key!r} together are larger than 1 GB.")
        yield from self._sample(key, parts)

    def _members(self) -> Iterator[tuple[str, bytes]]:
        try:
            with storage.open_file(self.path) as file, tarfile.open(fileobj=file, mode="r:*") as archive:
                for member in archive:
                    if not member.isfile() or os.path.basename(member.name).startswith("."):
                        continue
                    if member.size > LARGEST:
                        raise ShardError(self.path, f"its member {member.name!r} is larger than 1 GB.")
                    content = archive.extractfile(member)
                    assert content is not None
                    yield member.name, content.read()
                # tarfile takes a damaged header for the end. At the end there is a block of zeros.
                inner: Any = archive.fileobj
                inner.seek(archive.offset)
                if inner.read(tarfile.BLOCKSIZE) != ZEROS:
                    raise ShardError(self.path, f"it is damaged, or cut off, at byte {archive.offset:,}.")
        except FileNotFoundError as error:
            raise ShardError(self.path, "there is no such file.") from error
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, files.FileFormatError) as error:
            raise ShardError(self.path, f"it is not a tar file, or it is damaged ({error}).") from error

    def _sample(self, key: str, parts: dict[str, bytes]) -> Iterator[Sample]:
        if not parts:
            return
        image = self.image or next((suffix for suffix in (*SUFFIXES, *IMAGE) if suffix in parts), None)
        if image is None or image not in parts:
            return  # a sample of text, say
        yield Sample(f"{self.path}: {key}.{image}", self._label(key, parts), parts[image])

    def _label(self, key: str, parts: dict[str, bytes]) -> str:
        suffix, _, name = (self.label or "").partition(":")
        try:
            if suffix == "json" or (not self.label and "json" in parts and not any(label in parts for label in LABELS)):
                found = files.parse_json(parts["json"]).get(name or "label") if "json" in parts else None
                return "" if found is None else str(found)
            chosen = suffix or next((label for label in LABELS if label in parts), "")
            return parts[chosen].decode().strip() if chosen in parts else ""
        except (ValueError, AttributeError) as error:
            raise ShardError(self.path, f"the label of {key!r} cannot be read ({error}).") from error


def shards(pattern: str, columns: Columns) -> list[TarShard]:
    """Return the tar files of a pattern."""
    return [TarShard(path, columns.image_column, columns.label_column) for path in storage.expand(pattern)]


@data_set("wds", SourceOptions(), root="required", shards=shards)
def wds(pattern: str, options: SourceOptions) -> Dataset:
    """wds:PATTERN, WebDataset tar files such as train-{000..009}.tar, on a disk or at s3:// and the like."""
    test = shards(options.test, options) if options.test else []
    return dataset(f"wds:{os.path.basename(pattern)}", shards(pattern, options), test, options)
