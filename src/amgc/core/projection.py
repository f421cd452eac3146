"""Class statistics of linear functions of the features."""

from __future__ import annotations

import torch
from torch import Tensor

from amgc.core.statistics import ClassStatistics


def projected(statistics: ClassStatistics, directions: Tensor) -> ClassStatistics:
    """Return the statistics of the features x @ directions (d, m), in "shared" form."""
    result = ClassStatistics(directions.shape[1], "shared", dtype=torch.float64, device=statistics.device)
    result.classes, result._index = list(statistics.classes), dict(statistics._index)
    result._used = {"count": statistics.count.clone(), "mean": statistics.mean @ directions.to(statistics.mean)}
    columns = directions.to(statistics.device, statistics.dtype)
    within = statistics.shared().times(columns) if statistics.form == "shared" else statistics.pooled() @ columns
    pooled = (columns.T @ within).double()
    result._scatter.upper.copy_(pooled.triu() * statistics.freedom)
    # The classes' own traces are known in all dimensions only; the directions keep their ratios on average.
    sizes = statistics.sizes() if statistics.form == "shared" else statistics.covariances.variances().double().sum(1)
    average = (sizes * (statistics.count - 1).to(sizes)).sum() / max(statistics.freedom, 1)
    result._used["size"] = sizes * pooled.trace() / average.clamp_min(1e-300)
    result._scatter.freedom = statistics.freedom
    return result
