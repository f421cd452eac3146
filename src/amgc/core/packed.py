"""Read and edit a classifier's file as numpy arrays. Importing this module does not import torch, which takes over a second.

`IncrementalClassifier.packed` makes the header and the arrays. A trained head without class statistics has a header with the
classes only, and one row of each array for each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amgc.core.accounting import gaussian_epsilon
from amgc.core.linear import Linear
from amgc.core.typical import TYPICAL, Typicality
from amgc.tensor_files import without

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
SOLVED = ("temperature", "expected", "certificate")  # what a header says about the solved classifier
STATISTICS = "statistics."  # prefix of the arrays of the class statistics


def read(header: Header, arrays: Arrays) -> tuple[Linear, Typicality] | None:
    """Return the solved classifier and what is typical of its classes; None if the file does not have what is typical.

    Raises any exception if the parts do not fit together.
    """
    if not (typical := without(TYPICAL, arrays)):
        return None
    weight, bias, mean = arrays["head.weight"], arrays["head.bias"], arrays[f"{STATISTICS}mean"]
    if weight.shape != mean.shape or not bias.shape == mean.shape[:1]:
        raise ValueError(f"the weights have shape {weight.shape}")
    linear = Linear.of(weight, bias, mean, float(header["temperature"]), header["statistics"]["classes"])
    return linear, Typicality.from_arrays(typical, *mean.shape)


def class_counts(header: Header, arrays: Arrays) -> dict[str, int]:
    """Return the number of samples of each class."""
    return dict(zip(header["statistics"]["classes"], arrays[f"{STATISTICS}count"].tolist(), strict=True))


def forget(header: Header, arrays: Arrays, label: str) -> tuple[Header, Arrays]:
    """Return the file without a class: rows of a trained head, or statistics as `ClassStatistics.remove` leaves them.

    The classifier follows from the statistics and is left out.
    """
    if "statistics" not in header:
        gone = header["classes"].index(label)
        rows = {name: np.delete(array, gone, axis=0) for name, array in arrays.items()}
        return header | {"classes": _dropped(header["classes"], gone)}, rows
    statistics, kept = dict(header["statistics"]), without(STATISTICS, arrays)
    gone = statistics["classes"].index(label)
    statistics["classes"] = _dropped(statistics["classes"], gone)
    scatter = kept.pop("scatter", None)
    edited = {f"{STATISTICS}{name}": np.delete(array, gone, axis=0) for name, array in kept.items()}
    if scatter is not None:
        freedom = statistics["freedom"]
        statistics["freedom"] = freedom - int(kept["count"][gone]) + 1
        edited[f"{STATISTICS}scatter"] = scatter * (statistics["freedom"] / max(freedom, 1))
    about = {name: value for name, value in header.items() if name not in SOLVED}
    return about | {"statistics": statistics, "latest": _dropped(header["latest"], gone)}, edited


def rename(header: Header, label: str, new: str) -> Header:
    """Return the header with another name for a class."""
    if "statistics" not in header:
        return _renamed(header, label, new)
    private = {"private": _renamed_budget(header["private"], label, new)} if "private" in header else {}
    return header | {"statistics": _renamed(header["statistics"], label, new)} | private


def _renamed(header: Header, label: str, new: str) -> Header:
    return header | {"classes": [new if name == label else name for name in header["classes"]]}


def _renamed_budget(private: Header, label: str, new: str) -> Header:
    """Rename a class in the header of `amgc.core.privacy.Sums`. If a forgotten class had the name, their losses add up."""
    losses = {name: loss for name, loss, _ in private["spent"]}
    losses[new] = losses.get(new, 0.0) + losses.pop(label)
    delta = private["settings"]["delta"]
    spent = [[name, loss, gaussian_epsilon(loss, delta)] for name, loss in losses.items()]
    return _renamed(private, label, new) | {"spent": spent}


def _dropped(values: list[Any], gone: int) -> list[Any]:
    return [*values[:gone], *values[gone + 1 :]]
