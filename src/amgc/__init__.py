"""amgc: a classifier that learns new classes without keeping the old data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amgc.lazy import lazy_names

if TYPE_CHECKING:
    from amgc.api import Runs, compare, load_run, run
    from amgc.core.covariance import Covariances, LowRank, enlarge
    from amgc.core.losses import (
        amarx_loss,
        distribution_loss,
        margins,
        pairwise_margins,
        sample_loss,
        soft_margin_loss,
    )
    from amgc.core.privacy import Privacy
    from amgc.core.solver import Head, solve_head
    from amgc.core.statistics import ClassStatistics
    from amgc.estimator import AMGCClassifier
    from amgc.files import FileFormatError
    from amgc.model import Model

__version__ = "0.1.0"
__all__ = [
    "AMGCClassifier",
    "ClassStatistics",
    "Covariances",
    "FileFormatError",
    "Head",
    "LowRank",
    "Model",
    "Privacy",
    "Runs",
    "amarx_loss",
    "compare",
    "distribution_loss",
    "enlarge",
    "load_run",
    "margins",
    "pairwise_margins",
    "run",
    "sample_loss",
    "soft_margin_loss",
    "solve_head",
]

# Names are imported when first used: torch alone takes over a second, which a command's --help must not cost.
__getattr__ = lazy_names(
    __name__,
    {
        "api": ("Runs", "compare", "load_run", "run"),
        "core.covariance": ("Covariances", "LowRank", "enlarge"),
        "core.losses": (
            "amarx_loss",
            "distribution_loss",
            "margins",
            "pairwise_margins",
            "sample_loss",
            "soft_margin_loss",
        ),
        "core.privacy": ("Privacy",),
        "core.solver": ("Head", "solve_head"),
        "core.statistics": ("ClassStatistics",),
        "estimator": ("AMGCClassifier",),
        "files": ("FileFormatError",),
        "model": ("Model",),
    },
)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
