"""Parquet files with a column of encoded images: `parquet:PATTERN`. Hugging Face stores image data sets in this form."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amgc import files
from amgc.data import storage
from amgc.data.registry import data_set
from amgc.data.shards import Columns, Sample, ShardError, StoredShard
from amgc.data.source_sets import IMAGE, LABEL, SourceOptions, column, dataset, image_bytes, label_text

if TYPE_CHECKING:
    from amgc.data.images import Dataset

ROWS = 256  # that are read at a time, at most
MOST_BYTES = 256 << 20  # that they may take


@dataclass(frozen=True)
class ParquetShard(StoredShard):
    """A Parquet file."""

    image: str | None = None
    label: str | None = None

    def samples(self) -> Iterator[Sample]:
        try:
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ImportError(f"reading {self.path!r} needs pyarrow: pip install 'amgc[parquet]' ({error}).") from error
        arrow = importlib.import_module("pyarrow")
        try:
            with storage.open_file(self.path) as file:
                table = parquet.ParquetFile(file)
                names = table.schema_arrow.names
                image = column(names, self.image, IMAGE, self.path, "images") or _binary(table.schema_arrow)
                if image is None:
                    raise ShardError(self.path, f"it has no column of images; --image-column names one of {', '.join(names)}.")
                label = column(names, self.label, LABEL, self.path, "labels")
                classes = class_names(table.schema_arrow.metadata, label)
                number = 0
                for batch in table.iter_batches(_rows(table.metadata), columns=[image, *([label] if label else [])]):
                    labels = batch.column(label).to_pylist() if label else [None] * len(batch)
                    for value, own in zip(batch.column(image), labels, strict=True):
                        row = f"{self.path}, row {number}"
                        content = image_bytes(value.as_py(), row, os.path.dirname(os.path.abspath(self.path)))
                        yield Sample(row, label_text(own, classes), content)
                        number += 1
        except FileNotFoundError as error:
            raise ShardError(self.path, "there is no such file.") from error
        except (arrow.ArrowException, files.FileFormatError) as error:
            raise ShardError(self.path, f"it is not a Parquet file, or it is damaged ({error}).") from error


def _rows(about: Any) -> int:
    """Return how many rows to read at a time: values that are stored once, and used in many rows, are unpacked for each."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(about.num_columns)]
    largest = max((column.total_uncompressed_size for column in columns), default=0)
    return min(max(MOST_BYTES // max(largest, 1), 1), ROWS)


def _binary(schema: Any) -> str | None:
    """Return the only column of bytes, or of structs with bytes."""
    found = [field.name for field in schema if "binary" in str(field.type)]
    return found[0] if len(found) == 1 else None


def class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> Sequence[str] | None:
    """Return the names of the classes that Hugging Face writes into a file; None if there are none."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        about = files.parse_json((metadata or {})[b"huggingface"])
        names = about["info"]["features"][label]["names"]
        return [str(name) for name in names] if isinstance(names, list) else None
    return None


def shards(pattern: str, columns: Columns) -> list[ParquetShard]:
    """Return the Parquet files of a pattern."""
    return [ParquetShard(path, columns.image_column, columns.label_column) for path in storage.expand(pattern)]


@data_set("parquet", SourceOptions(), root="required", shards=shards)
def parquet(pattern: str, options: SourceOptions) -> Dataset:
    """parquet:PATTERN, Parquet files with a column of images and one of labels, on a disk or at s3:// and the like."""
    test = shards(options.test, options) if options.test else []
    return dataset(f"parquet:{os.path.basename(pattern)}", shards(pattern, options), test, options)
