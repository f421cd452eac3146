"""The folder of a run: names, versions and formats of its files, and the metrics that follow from them.

The engine writes a run through this package and the report reads it through this package. Nothing here imports torch.
"""

from amgc.runs.folder import RunError, RunExistsError, RunFolder, is_first_process
from amgc.runs.metrics import DEFINITIONS, Metrics
from amgc.runs.observed import Gaussian, Margins, Observed, Plane, load_observed
from amgc.runs.record import RunRecord, find_runs, flat, labels, load_run

__all__ = [
    "DEFINITIONS",
    "Gaussian",
    "Margins",
    "Metrics",
    "Observed",
    "Plane",
    "RunError",
    "RunExistsError",
    "RunFolder",
    "RunRecord",
    "find_runs",
    "flat",
    "is_first_process",
    "labels",
    "load_observed",
    "load_run",
]
