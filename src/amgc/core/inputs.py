"""Convert and check user input: labels of any type, and features as arrays or tensors."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
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
