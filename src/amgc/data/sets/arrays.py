"""Data sets that are arrays: scikit-learn's digits, and `.npz` files with images or features."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from amgc.data import storage
from amgc.data.registry import data_set
from amgc.lazy import Lazy
from amgc.options import NoOptions, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from amgc.data.images import Dataset
else:
    np = Lazy("numpy")

NEEDED = ("train_x", "train_y", "test_x", "test_y")


def stratified(labels: NDArray[np.int64], share: float, seed: int, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the test rows: about `share` of each class, at least one, at most all but one.

    Each class has its own random state, derived from the seed and its name. Adding a class does not change how the
    others are split.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share of test images must lie between 0 and 1, not {share}.")
    test = np.zeros(len(labels), dtype=bool)
    for label, name in enumerate(names):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            raise ValueError(f"class {name!r} has {len(rows)} images; to be split it needs at least 2.")
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        generator = np.random.RandomState([seed, *name.encode(errors="surrogateescape")])
        test[generator.permutation(rows)[:count]] = True
    return test


@data_set("digits", root="unused")
def digits(root: Path, options: NoOptions) -> Dataset:
    """1,797 handwritten digits of 8 × 8 pixels, 10 classes, from scikit-learn; nothing to download.

    Grey values 0 to 16 become 0 to 255; a fifth of each class, always the same, is the test set.
    """
    from amgc.data.images import Dataset, Images

    table = _digits_table()
    names = tuple(str(digit) for digit in range(10))
    pixels = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = table[:, -1].astype(np.int64)
    test = stratified(labels, 0.2, 0, names)
    return Dataset(
        Images.of(pixels[~test], labels[~test]),
        Images.of(pixels[test], labels[test]),
        names,
        "digits",
        mean=(0.3051,),  # of the training images
        std=(0.3757,),
        augmentation={"padding": 1},
    )


def _digits_table() -> NDArray[np.float64]:
    """Return scikit-learn's digits (n, 65): 64 grey values and the label.

    They are read from its folder in 0.02 s. Importing `sklearn.datasets` takes a second, and is the fallback.
    """
    spec = importlib.util.find_spec("sklearn")  # does not import it
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    raw: Any = load_digits()
    return np.column_stack([raw.data, raw.target])


@dataclass(frozen=True)
class NpzOptions:
    """Options of an `.npz` file."""

    layout: Literal["auto", "nhwc", "nchw"] = option("auto", "order of the axes of images; needed if the shape is ambiguous")


@data_set("npz", NpzOptions(), root="required")
def npz(path: Path, options: NpzOptions) -> Dataset:
    """npz:PATH, arrays train_x, train_y, test_x, test_y; images as uint8, or vectors of features.

    Images are (n, h, w), (n, h, w, c) or (n, c, h, w) with one or three channels. Features are (n, d), multiplied by
    `scale` (d,) if the file has one. `class_names` is optional: with it, labels are its indices; without it, classes are
    the sorted values of train_y.
    """
    from amgc.data.images import Dataset, Images

    arrays = _read(path)
    name = f"npz:{path.name}"
    train_y, test_y, names = _labels(arrays["train_y"], arrays["test_y"], arrays.get("class_names"), name)
    splits = []
    for split, labels in (("train", train_y), ("test", test_y)):
        samples = _samples(arrays[f"{split}_x"], f"{path}: {split}_x", options.layout, arrays.get("scale"))
        if len(samples) != len(labels):
            raise ValueError(f"{path}: {split}_x has {len(samples)} rows, {split}_y has {len(labels)}.")
        splits.append(Images.of(samples, labels))
    channels = splits[0].shape[0] if len(splits[0].shape) == 3 else 0
    return Dataset(splits[0], splits[1], names, name, mean=(0.5,) * channels, std=(0.25,) * channels)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path.resolve())!r}; npz:PATH takes a file with {', '.join(NEEDED)}.")
    try:
        storage.check_zip(path)
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in NEEDED if name not in file]
            if missing:
                raise KeyError(f"{str(path)!r} has no array {missing[0]!r}; it has {', '.join(file.files)}.")
            return {name: file[name] for name in (*NEEDED, "class_names", "scale") if name in file}
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except Exception as error:  # zipfile and numpy raise different errors for a damaged file
        reason = "it holds Python objects, which are never unpickled" if "allow_pickle" in str(error) else error
        raise ValueError(f"{str(path)!r} cannot be read as an .npz file: {reason}.") from error


def _labels(
    train: NDArray[Any], test: NDArray[Any], class_names: NDArray[Any] | None, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Return the labels of both splits as indices of the class names, which are returned too."""
    train, test = train.reshape(-1), test.reshape(-1)
    if class_names is not None:
        names = _text(class_names)
        for split, labels in (("train_y", train), ("test_y", test)):
            if labels.dtype.kind not in "iu" or (len(labels) and not 0 <= labels.min() <= labels.max() < len(names)):
                raise ValueError(f"{name}: {split} must be indices into the {len(names)} class_names.")
        return train.astype(np.int64), test.astype(np.int64), names
    if train.dtype.kind not in "iuUS":
        raise ValueError(f"{name}: labels must be integers or strings, not {train.dtype}.")
    classes = np.unique(train)
    strange = np.setdiff1d(test, classes)
    if len(strange):
        raise ValueError(f"{name}: class {strange[0].item()!r} is in test_y and not in train_y.")
    return np.searchsorted(classes, train), np.searchsorted(classes, test), _text(classes)


def _text(names: NDArray[Any]) -> tuple[str, ...]:
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.reshape(-1).tolist())


def _samples(x: NDArray[Any], what: str, layout: str, scale: NDArray[Any] | None) -> NDArray[Any]:
    if x.ndim == 2 and x.dtype.kind in "fiu":
        features = x.astype(np.float32)
        if scale is not None:
            features *= scale.astype(np.float32)
        wrong = ~np.isfinite(features).all(1)
        if wrong.any():
            raise ValueError(f"{what}: {wrong.sum()} of {len(x)} rows hold NaN or inf (first: row {wrong.argmax()}).")
        return features
    if x.ndim not in (3, 4) or x.dtype != np.uint8:
        raise ValueError(f"{what} is {x.dtype} {x.shape}; expected uint8 images (n, h, w[, c]) or features (n, d).")
    if x.ndim == 3:
        return x[:, None]
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if layout == "auto" and first == last:
        problem = "either end could be the channels" if first else "neither end has one or three channels"
        raise ValueError(f'{what} has shape {x.shape}: {problem}; set layout="nhwc" or "nchw".')
    nhwc = layout == "nhwc" or (layout == "auto" and last)
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if nhwc else x
