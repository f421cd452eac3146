"""How far covariances are drawn together when nobody says: by the number of samples, from the statistics alone."""

from __future__ import annotations

from torch import Tensor

from amgc.core.gaussian import oas
from amgc.core.loading import chosen_loading
from amgc.core.statistics import ClassStatistics

POOLED_SAMPLES = 3  # per feature: what the pooled covariance is worth beside a class's own


def towards_pooled(statistics: ClassStatistics) -> Tensor:
    """Towards the pooled covariance, per class (K,). Measured in `benchmarks/defaults.py`."""
    prior = POOLED_SAMPLES * statistics.dim
    return prior / (prior + statistics.count.double())


def towards_diagonal(statistics: ClassStatistics) -> float:
    """Of the pooled covariance towards its diagonal: by OAS; for a shared one, which is all that there is to tell classes
    apart by, by leave-one-out (`amgc.core.loading`): Σ + e diag(Σ) is (1 - b) Σ + b diag(Σ), but for its scale.
    """
    if statistics.form == "diagonal":
        return 0.0
    if statistics.form != "shared":
        return oas(statistics.pooled(), statistics.freedom)
    loading = chosen_loading(statistics.shared(), statistics.mean, statistics.count, statistics.freedom)
    return 1 / (1 + 1 / loading)
