"""Check the parameters of the estimator."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, get_args

import numpy as np
import torch

from amgc.core.background import names
from amgc.core.privacy import Privacy
from amgc.core.solver import Balance
from amgc.core.statistics import Form

CHOICES = {"covariance": get_args(Form), "balance": get_args(Balance), "dtype": ("float32", "float64")}


PRIVATE = ("epsilon", "delta", "lessons", "clip", "directions", "centre")  # the fields of `Privacy`


class DeviceError(ValueError):
    """The device is unknown or not available on this machine."""


def check_parameters(
    *, margin: Any, rank: Any, shrinkage: Any, standardize: Any, device: Any, background: Any, **chosen: Any
) -> None:
    """Raise a ValueError if a parameter is invalid."""
    read_shrinkage(shrinkage)
    private = {name: chosen.pop(name) for name in PRIVATE}
    if private["epsilon"] is not None:
        Privacy(**private)
    for name, value in chosen.items():
        if not (isinstance(value, str) and value in CHOICES[name]):
            raise ValueError(f"{name} must be one of {', '.join(map(repr, CHOICES[name]))}, not {value!r}.")
    if not (_is_number(margin) and 0 <= margin < math.inf):
        raise ValueError(f"margin must be a number that is not negative, not {margin!r}.")
    if not (isinstance(rank, int | np.integer) and rank >= 1):
        raise ValueError(f"rank must be a whole number of at least 1, not {rank!r}.")
    if not (isinstance(standardize, bool | np.bool_) or (isinstance(standardize, str) and standardize == "auto")):
        raise ValueError(f"standardize must be True, False or 'auto', not {standardize!r}.")
    if background is not None and background not in names():
        raise ValueError(f"background must be one of {', '.join(map(repr, names()))} or None, not {background!r}.")
    available(device)


def read_shrinkage(shrinkage: Any) -> tuple[float, float] | None:
    """Return the shrinkage towards the pooled covariance and towards its diagonal; None for "auto"."""
    if isinstance(shrinkage, str) and shrinkage == "auto":
        return None
    pair = (shrinkage, 0.0) if _is_number(shrinkage) else shrinkage
    if isinstance(pair, tuple | list | np.ndarray) and len(pair) == 2 and all(_is_number(a) and 0 <= a <= 1 for a in pair):
        return float(pair[0]), float(pair[1])
    raise ValueError(f"shrinkage must be 'auto' or one or two numbers from 0 to 1, not {shrinkage!r}.")


def available(device: Any) -> str:
    """Return the name of a device after checking that it is available."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise DeviceError(f"device {device!r} is not available here ({error}); use device='cpu'.") from error
    return str(device)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
