"""Read files of feature vectors (embeddings) with labels: .npz, .npy and Parquet. Does not import torch."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from amgc.data import storage
from amgc.lazy import Lazy
from amgc.text import listing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Lazy("numpy")

SUFFIXES = (".npz", ".npy", ".parquet")
LABEL = "label"  # the column of a Parquet file
Split: TypeAlias = Literal["train", "test"]


class VectorFile(NamedTuple):
    """Vectors (n, d), and the label of each; None if the file has no labels."""

    vectors: NDArray[Any]
    labels: list[str] | None


def is_vector_file(path: str | Path) -> bool:
    """Return whether a file has the name of a file of vectors.

    >>> is_vector_file("embeddings.NPZ"), is_vector_file("photo.jpg")
    (True, False)
    """
    return Path(path).suffix.lower() in SUFFIXES


def read_vectors(path: str | Path, split: Split = "train") -> VectorFile:
    """Read vectors and, if there are any, their labels, as text.

    .npz : arrays `x` (n, d) and `y` (n,), or `train_x`, `train_y`, `test_x` and `test_y`, of which `split` chooses. With
        `class_names`, labels are indices into it. .npy : the vectors. .parquet : a column `label`, and one column of lists or
        all other columns, which must be numbers.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}.")
    vectors, labels = _parquet(path) if path.suffix.lower() == ".parquet" else _arrays(path, split)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.size:
        raise ValueError(f"{str(path)!r} contains {vectors.dtype} {vectors.shape}; expected vectors of numbers, (n, d).")
    if labels is not None and len(labels) != len(vectors):
        raise ValueError(f"{str(path)!r} has {len(vectors)} vectors and {len(labels)} labels.")
    return VectorFile(vectors, labels)


def by_class(file: VectorFile) -> dict[str, list[int]]:
    """Return the rows of each class, in the order in which classes first appear.

    >>> import numpy as np
    >>> by_class(VectorFile(np.zeros((3, 2)), ["b", "a", "b"]))
    {'b': [0, 2], 'a': [1]}
    """
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(file.labels or ()):
        rows.setdefault(label, []).append(row)
    return rows


def _arrays(path: Path, split: Split) -> tuple[NDArray[Any], list[str] | None]:
    try:
        if zipfile.is_zipfile(path):
            storage.check_zip(path)
        loaded = np.load(path, allow_pickle=False)
        if not hasattr(loaded, "files"):
            return loaded, None
        with loaded as file:
            prefix = f"{split}_" if f"{split}_x" in file else ""
            if f"{prefix}x" not in file:
                raise KeyError(f"{str(path)!r} has no array 'x' or '{split}_x'; it has {listing(file.files)}.")
            names = file.get("class_names")
            return file[f"{prefix}x"], _text(file[f"{prefix}y"], names, path) if f"{prefix}y" in file else None
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except Exception as error:  # zipfile and numpy raise different errors for a damaged file
        reason = "it holds Python objects, which are never unpickled" if "allow_pickle" in str(error) else error
        raise ValueError(f"{str(path)!r} cannot be read as a file of numpy: {reason}.") from error


def _text(labels: NDArray[Any], names: NDArray[Any] | None, path: Path) -> list[str]:
    """Return labels as text; with `names`, labels are indices into it."""
    found = labels.reshape(-1).tolist()
    if names is not None:
        known = [_word(name) for name in names.reshape(-1).tolist()]
        if not all(isinstance(one, int) and 0 <= one < len(known) for one in found):
            raise KeyError(f"{str(path)!r}: labels must be indices into the {len(known)} class_names.")
        return [known[one] for one in found]
    if not all(isinstance(one, int | str | bytes) for one in found):
        raise KeyError(f"{str(path)!r}: labels must be integers or strings, not {labels.dtype}.")
    return [_word(one) for one in found]


def _word(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _parquet(path: Path) -> tuple[NDArray[Any], list[str] | None]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(f"reading {str(path)!r} needs pyarrow, an extra: pip install 'amgc[parquet]' ({error}).") from error
    try:
        about = parquet.read_metadata(path)
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        values = sum(group.column(place).num_values for group in groups for place in range(about.num_columns))
        storage.check_unpacked(path.stat().st_size, 8 * values)
        table = parquet.read_table(path)
    except Exception as error:  # pyarrow has its own exceptions
        raise ValueError(f"{str(path)!r} cannot be read as a Parquet file: {error}.") from error
    labels = [str(one) for one in table[LABEL].to_pylist()] if LABEL in table.column_names else None
    columns = {name: table[name].to_numpy() for name in table.column_names if name != LABEL}
    lists = [name for name, values in columns.items() if values.dtype == object and len(values) and np.ndim(values[0]) == 1]
    try:
        if lists:
            (name,) = lists  # other columns, such as a path, are not features
            return np.stack(list(columns[name])), labels
        return np.column_stack(list(columns.values())), labels
    except ValueError as error:
        found = listing([f"{name} ({values.dtype})" for name, values in columns.items()])
        raise ValueError(
            f"the columns of {str(path)!r} are not vectors: {found}. It needs one column of lists of equal length, or columns "
            f"of numbers, and optionally a column {LABEL!r}."
        ) from error
