"""torch and modules that need it, imported on first use, so that `amgc run --help` does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amgc.lazy import Lazy

if TYPE_CHECKING:
    import torch as torch

    from amgc.core import covariance as covariance
    from amgc.core import drift as drift
    from amgc.core import gaussian as gaussian
    from amgc.core import losses as losses
    from amgc.core import running as running
    from amgc.core import solver as solver
    from amgc.core import statistics as statistics
    from amgc.core import symmetric as symmetric
    from amgc.data import augment as augment
    from amgc.features import branches as branches
else:
    torch, augment = Lazy("torch"), Lazy("amgc.data.augment")
    covariance, drift, gaussian, losses, running, solver, statistics, symmetric = (
        Lazy(f"amgc.core.{name}")
        for name in ("covariance", "drift", "gaussian", "losses", "running", "solver", "statistics", "symmetric")
    )
    branches = Lazy("amgc.features.branches")
