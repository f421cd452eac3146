"""torch and what needs it, imported when a method first uses it: `amgc run --help` then costs no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch

    from amgc.core import covariance as covariance
    from amgc.core import gaussian as gaussian
    from amgc.core import losses as losses
    from amgc.core import running as running
    from amgc.core import solver as solver
    from amgc.core import statistics as statistics
    from amgc.data import augment as augment
    from amgc.features import branches as branches
else:

    class _Lazy:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(importlib.import_module(self._name), attribute)

    torch, augment = _Lazy("torch"), _Lazy("amgc.data.augment")
    covariance, gaussian, losses, running, solver, statistics = (
        _Lazy(f"amgc.core.{name}") for name in ("covariance", "gaussian", "losses", "running", "solver", "statistics")
    )
    branches = _Lazy("amgc.features.branches")
