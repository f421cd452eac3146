"""Convert and check user input: labels of any type, and features as arrays or tensors."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Label: TypeAlias = Hashable


def plain(label: Any) -> Label:
    """Convert a numpy or torch scalar to a Python value."""
    if isinstance(label, np.generic | Tensor):
        label = label.item()
    if isinstance(label, float) and math.isnan(label):
        raise ValueError("NaN is not a class label.")
    return label  # type: ignore[no-any-return]


def group_by_label(labels: Iterable[Label] | np.ndarray | Tensor) -> tuple[list[Label], np.ndarray]:
    """Return the distinct labels in order of arrival, and the index of each sample's label among them."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        if labels.ndim != 1:
            raise ValueError(f"labels must be one per row, not an array of shape {labels.shape}.")
        values, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        arrival = np.argsort(first, kind="stable")
        position = np.empty_like(arrival)
        position[arrival] = np.arange(len(arrival))
        return [plain(values[i]) for i in arrival], position[inverse]
    seen: dict[Label, int] = {}
    inverse = np.fromiter((seen.setdefault(plain(label), len(seen)) for label in labels), dtype=np.int64)
    return list(seen), inverse


def read_features(features: Any, dim: int, device: torch.device) -> Tensor:
    """Convert features (N, dim) to a floating-point tensor on `device`, and check that they are finite."""
    if not isinstance(features, Tensor):
        array = np.asarray(features)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        features = torch.from_numpy(np.require(array, requirements=["C", "W"]))  # torch needs contiguous, writable memory
    tensor: Tensor = features.detach()
    if tensor.ndim != 2 or tensor.shape[1] != dim:
        raise ValueError(f"features must have shape (samples, {dim}), not {tuple(tensor.shape)}.")
    tensor = tensor.to(device)
    if not tensor.is_floating_point():
        tensor = tensor.double()
    check_finite(tensor)
    return tensor


def check_finite(features: np.ndarray | Tensor) -> None:
    """Raise if any row of features (N, d) is not finite."""
    if not len(features) or (math.isfinite(features.min()) and math.isfinite(features.max())):  # no copy of large features
        return
    finite = np.isfinite(features).all(1) if isinstance(features, np.ndarray) else torch.isfinite(features).all(1).cpu().numpy()
    bad = np.flatnonzero(~finite)
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(finite)} rows hold NaN or infinity (first: row {bad[0]}); class statistics need finite "
            "features: drop those rows or impute them."
        )


def check_range(features: np.ndarray, dtype: str) -> None:
    """Raise if squares of features (N, d) would overflow, or if all of them vanish in a dtype, "float32" or "float64"."""
    if not features.size:
        return
    limits, peak = np.finfo(dtype), max(abs(float(features.min())), abs(float(features.max())))
    if peak > math.sqrt(float(limits.max) / features.size):
        raise _out_of_range("large", peak, dtype)
    if 0 < peak < limits.tiny:
        raise _out_of_range("small", peak, dtype)


def check_small(peak: float, dtype: torch.dtype) -> None:
    """Raise if the largest feature mean is so small that squares lose digits: covariances would be wrong, without an error."""
    limits = torch.finfo(dtype)
    if 0 < peak < math.sqrt(limits.tiny / limits.eps):
        raise _out_of_range("small", peak, str(dtype).removeprefix("torch."))


@contextmanager
def in_range(dtype: torch.dtype) -> Iterator[None]:
    """Turn errors of arithmetic that overflows or vanishes into a ValueError with advice."""
    try:
        yield
    except (OverflowError, ZeroDivisionError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        name = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"the features are too large or too small for covariances in {name} ({error}); multiply them by a constant."
        ) from error


def _out_of_range(what: str, peak: float, dtype: str) -> ValueError:
    wider = ", or use dtype='float64'" if dtype == "float32" else ""
    return ValueError(
        f"the features are too {what} for covariances in {dtype}: the largest is {peak:.3g}. Multiply them by a number{wider}."
    )
