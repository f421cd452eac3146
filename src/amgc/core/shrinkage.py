"""Default shrinkage of covariances, from the number of samples and the class statistics."""

from __future__ import annotations

from torch import Tensor

from amgc.core.gaussian import oas
from amgc.core.loading import chosen_loading
from amgc.core.statistics import ClassStatistics

POOLED_SAMPLES = 3  # per feature: the weight of the pooled covariance, in samples of a class


def towards_pooled(statistics: ClassStatistics) -> Tensor:
    """Return the shrinkage towards the pooled covariance per class (K,), as measured in `benchmarks/defaults.py`."""
    prior = POOLED_SAMPLES * statistics.dim
    return prior / (prior + statistics.count.double())


def towards_diagonal(statistics: ClassStatistics) -> float:
    """Return the shrinkage of the pooled covariance towards its diagonal: by OAS, or by leave-one-out for a shared covariance.

    Leave-one-out (`amgc.core.loading`) chooses Σ + e diag(Σ), which equals (1 - b) Σ + b diag(Σ) up to scale.
    """
    if statistics.form == "diagonal":
        return 0.0
    if statistics.form != "shared":
        return oas(statistics.pooled(), statistics.freedom)
    loading = chosen_loading(statistics.shared(), statistics.mean, statistics.count, statistics.freedom)
    return 1 / (1 + 1 / loading)
