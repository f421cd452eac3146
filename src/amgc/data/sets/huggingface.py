"""Data sets of Hugging Face's library `datasets`: `hf:NAME_OR_PATH`, read as a stream."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from amgc.data.registry import data_set
from amgc.data.shards import Columns, Sample, ShardError
from amgc.data.source_sets import IMAGE, LABEL, SourceOptions, column, dataset, image_bytes, label_text

if TYPE_CHECKING:
    from amgc.data.images import Dataset


@dataclass(frozen=True)
class StreamShard:
    """One of `count` shards of a split."""

    path: str
    split: str
    number: int
    count: int
    size: int  # rows of the split, divided by the number of shards; 1 if not known
    image: str | None = None
    label: str | None = None
    unit: ClassVar[str] = "images"

    @property
    def name(self) -> str:
        return f"{self.path}, {self.split}, shard {self.number} of {self.count}"

    def stamp(self) -> str:
        about = getattr(_stream(self.path, self.split), "_info", None)
        return f"{getattr(about, 'version', '')} {getattr(about, 'download_checksums', '')} {self.size}"

    def samples(self) -> Iterator[Sample]:
        library = _library()
        stream = _stream(self.path, self.split)
        features = stream.features or {}
        image = column(list(features), self.image, IMAGE, self.name, "images")
        if image is None:
            raise ShardError(self.name, f"it has no column of images; --image-column names one of {', '.join(features)}.")
        label = column(list(features), self.label, LABEL, self.name, "labels")
        names = getattr(features.get(label), "names", None)
        if isinstance(features.get(image), library.Image):
            stream = stream.cast_column(image, library.Image(decode=False))  # amgc decodes, with its checks
        try:
            for number, row in enumerate(stream.shard(self.count, self.number)):
                content = image_bytes(row[image], self.name, self.path)
                own = label_text(row[label], names) if label else ""
                yield Sample(f"{self.name}, row {number}", own, content)
        except (OSError, ShardError):
            raise
        except Exception as error:  # datasets and its readers have many of their own
            raise ShardError(self.name, f"it cannot be read ({error}).") from error


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise ImportError(f"hf:… needs Hugging Face's datasets: pip install 'amgc[hf]' ({error}).") from error


def _stream(path: str, split: str) -> Any:
    library = _library()
    try:
        library.disable_progress_bars()
        return library.load_dataset(path, split=split, streaming=True)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no Hugging Face data set {path!r} ({error}).") from error
    except ValueError as error:
        raise ValueError(f"the data set {path!r} cannot be read with split {split!r}: {error}.") from error


def shards(path: str, columns: Columns) -> list[StreamShard]:
    """Return the shards of a split, as many as it has files."""
    stream = _stream(path, columns.split)
    count = max(1, stream.num_shards)
    known = (getattr(stream.info, "splits", None) or {}).get(columns.split)
    rows = max(1, (known.num_examples if known else 0) // count)
    names = columns.image_column, columns.label_column
    return [StreamShard(path, columns.split, number, count, rows, *names) for number in range(count)]


@data_set("hf", SourceOptions(), root="required", shards=shards)
def hf(path: str, options: SourceOptions) -> Dataset:
    """hf:NAME_OR_PATH, a data set that Hugging Face's `datasets` reads: from the hub, or from local files."""
    test = shards(path, replace(options, split=options.test)) if options.test else []
    return dataset(f"hf:{path.rstrip('/').rpartition('/')[2]}", shards(path, options), test, options)
