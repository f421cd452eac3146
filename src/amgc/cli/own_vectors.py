"""Files of feature vectors as arguments of `amgc learn` and `amgc evaluate`, instead of folders of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amgc.cli.errors import UsageError
from amgc.data.vectors import LABEL, Split, by_class, is_vector_file, read_vectors

if TYPE_CHECKING:
    from amgc.model import Model
    from amgc.model.inputs import Input


def are_vectors(given: Sequence[str]) -> bool:
    """Return whether files of vectors are given. Either all or none of the arguments are."""
    files = [path for path in given if is_vector_file(path)]
    if files and len(files) < len(given):
        raise UsageError(f"{files[0]!r} is a file of vectors, and others are not; a model takes either vectors or images.")
    return bool(files)


def vectors_by_class(files: Sequence[str], split: Split, label: str | None = None) -> dict[str, list[Input]]:
    """Return the vectors of each class. With `label`, all are of this class."""
    from amgc.model.inputs import vectors_from

    found: dict[str, list[Input]] = {}
    for path in files:
        own = vectors_from(path, split)
        if label is not None:
            found.setdefault(label, []).extend(own)
            continue
        content = read_vectors(path, split)
        if content.labels is None:
            raise UsageError(f"{path!r} has no labels: add an array 'y', or a column {LABEL!r} in Parquet, or use --label.")
        for name, rows in by_class(content).items():
            found.setdefault(name, []).extend(own[row] for row in rows)
    return found


def check_kind(model: Model, given_vectors: bool) -> None:
    """Raise an error if a model takes images and vectors are given, or the other way round."""
    noun = model.state.manifest.noun
    if given_vectors and noun == "image":
        raise UsageError(f"the model in {str(model.path)!r} takes images, not vectors; learn vectors in a new model.")
    if not given_vectors and noun == "vector":
        raise UsageError(f"the model in {str(model.path)!r} takes vectors: files of the kinds .npz, .npy and .parquet.")
