"""Convert class statistics to a header and tensors for files, and back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amgc.core import symmetric

if TYPE_CHECKING:
    from amgc.core.statistics import ClassStatistics

ADDED = {"diagonal": "sketch", "shared": "size"}  # tensors that files of version 1 do not have
VERSION = 2  # of the forms in ADDED; the others have not changed


def header(statistics: ClassStatistics) -> dict[str, Any]:
    """Return what is needed besides the tensors, for JSON."""
    for label in statistics.classes:
        if not isinstance(label, str | int | float | bool):
            raise TypeError(f"a class label saved to a file must be a string or a number, not {label!r}.")
    about: dict[str, Any] = {"dim": statistics.dim, "covariance": statistics.form, "rank": statistics.rank}
    about |= {"dtype": str(statistics.dtype).removeprefix("torch."), "classes": statistics.classes}
    if statistics.form == "shared":
        about["freedom"] = statistics.freedom
    return about | ({"version": VERSION} if statistics.form in ADDED else {})


def tensors(statistics: ClassStatistics, *, exact: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a file: upper triangles of symmetric matrices, and factors as correlations in half precision.

    With `exact` factors are not rounded, for a run that must continue bit-identically.
    """
    found = {name: statistics._rows(name) for name in statistics._used}
    if statistics.form == "lowrank" and not exact:
        found["factor"] = (found["factor"] / _deviation(found["diagonal"])).half()
    if statistics.form == "full":
        upper = torch.triu_indices(statistics.dim, statistics.dim)
        found["full"] = found["full"][:, upper[0], upper[1]]
    if statistics.form == "shared":
        found["scatter"] = symmetric.packed(statistics._scatter.upper)
    return found


def nbytes(statistics: ClassStatistics) -> int:
    """Return the bytes of `tensors`, without making them."""
    triangle, total = statistics.dim * (statistics.dim + 1) // 2, 0
    for name, rows in statistics._used.items():
        numbers = triangle if name == "full" else math.prod(rows.shape[1:])
        total += len(statistics) * numbers * (2 if name == "factor" else rows.element_size())
    return total + (triangle * statistics._scatter.upper.element_size() if statistics.form == "shared" else 0)


def fill(statistics: ClassStatistics, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Fill empty statistics of the right form with what was read. Raises ValueError if header and tensors do not fit."""
    classes, dim, dtype = list(header["classes"]), statistics.dim, statistics.dtype
    if len(set(classes)) != len(classes):
        raise ValueError("a class is listed twice")
    if statistics.form == "shared":
        statistics._scatter.freedom = int(header["freedom"])
        symmetric.unpack_into(statistics._scatter.upper, tensors["scatter"].to(statistics.device))
    added = ADDED.get(statistics.form)
    if added and header.get("version", 1) != VERSION:
        if "version" in header or added in tensors:
            raise ValueError(f"version {header.get('version')} is not known")
        tensors = tensors | {added: _added(statistics, tensors, len(classes))}
    for name, empty in statistics._used.items():
        rows = tensors[name].to(empty.device)
        if name == "factor" and rows.dtype == torch.float16:
            rows = rows.to(dtype) * _deviation(tensors["diagonal"].to(rows.device))
        if name == "full":
            upper = torch.triu_indices(dim, dim)
            packed, rows = rows, empty.new_empty(len(rows), dim, dim)
            rows[:, upper[0], upper[1]] = packed
            rows[:, upper[1], upper[0]] = packed
        if rows.shape != (len(classes), *empty.shape[1:]) or rows.dtype != empty.dtype:
            raise ValueError(f"{name!r} has shape {tuple(rows.shape)} and type {rows.dtype}")
        if not bool(torch.isfinite(rows).all()):
            raise ValueError(f"{name!r} holds NaN or infinity")
        statistics._used[name] = rows
    if bool((statistics._used["count"] < 1).any()):
        raise ValueError("a class has no samples")
    statistics._set_classes(classes)


def _added(statistics: ClassStatistics, tensors: dict[str, Tensor], classes: int) -> Tensor:
    """Return the tensor that version 1 lacks, as if all classes varied equally and features were independent."""
    empty = statistics._used[ADDED[statistics.form]]
    if statistics.form == "shared":
        return statistics.shared().variances.sum().to(empty).repeat(classes)
    return tensors["diagonal"].to(empty).mean(1, keepdim=True).repeat(1, *empty.shape[1:])


def _deviation(variances: Tensor) -> Tensor:
    """Return standard deviations (K, d, 1), with 1 for features that do not vary."""
    return torch.where(variances > 0, variances, 1.0).sqrt()[..., None]
