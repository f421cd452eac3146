"""How far covariances are drawn together when nobody says: by the number of samples, from the statistics alone."""

from __future__ import annotations

import torch
from torch import Tensor

from amgc.core import symmetric
from amgc.core.gaussian import oas, oas_share
from amgc.core.statistics import ClassStatistics

POOLED_SAMPLES = 3  # per feature: what the pooled covariance is worth beside a class's own
DIAGONAL_SAMPLES = 0.15  # per feature: what the diagonal of a shared covariance is worth at least beside the matrix


def towards_pooled(statistics: ClassStatistics) -> Tensor:
    """Towards the pooled covariance, per class (K,). Measured in `benchmarks/defaults.py`."""
    prior = POOLED_SAMPLES * statistics.dim
    return prior / (prior + statistics.count.double())


def towards_diagonal(statistics: ClassStatistics) -> float:
    """Of the pooled covariance towards its diagonal: as far as OAS says.

    In many dimensions OAS says too little, as it asks for the covariance and not for its inverse: a shared one, which is all
    that classes are told apart by, goes at least as far as 0.15 d samples of its diagonal would draw it. Measured in
    `benchmarks/shared.py --only shrinkage`.
    """
    if statistics.form == "diagonal":
        return 0.0
    if statistics.form != "shared":
        return oas(statistics.pooled(), statistics.freedom)
    upper = statistics.shared().upper
    variances = upper.diagonal().double()
    square = symmetric.square_sum(upper, torch.where(variances > 0, variances, 1.0).rsqrt())
    prior = DIAGONAL_SAMPLES * statistics.dim
    share = oas_share(square, int((variances > 0).sum()), statistics.dim, statistics.freedom)
    return max(share, prior / (prior + statistics.freedom))
