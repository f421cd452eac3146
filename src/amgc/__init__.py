"""amgc: a classifier that learns new classes without keeping the old data."""

from amgc.core.covariance import Covariances, LowRank, enlarge
from amgc.core.losses import (
    amarx_loss,
    amarx_margin_form,
    distribution_loss,
    margins,
    pairwise_margins,
    sample_loss,
    soft_margin_loss,
)
from amgc.core.solver import Head, solve_head
from amgc.core.statistics import ClassStatistics
from amgc.estimator import AMGCClassifier
from amgc.files import FileFormatError

__version__ = "0.1.0"
__all__ = [
    "AMGCClassifier",
    "ClassStatistics",
    "Covariances",
    "FileFormatError",
    "Head",
    "LowRank",
    "amarx_loss",
    "amarx_margin_form",
    "distribution_loss",
    "enlarge",
    "margins",
    "pairwise_margins",
    "sample_loss",
    "soft_margin_loss",
    "solve_head",
]
