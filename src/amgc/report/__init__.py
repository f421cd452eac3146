"""Metrics, tables and plots of runs. Nothing here imports torch; rich and matplotlib are imported when something is drawn."""

from amgc.report.details import details
from amgc.report.groups import Group, Spread, grouped, named_runs
from amgc.report.metrics import DEFINITIONS, Metrics
from amgc.report.plot import plot_accuracy
from amgc.report.runs import RunError, RunRecord, find_runs, labels, load_run
from amgc.report.table import accuracy_table, markdown_table

__all__ = [
    "DEFINITIONS",
    "Group",
    "Metrics",
    "RunError",
    "RunRecord",
    "Spread",
    "accuracy_table",
    "details",
    "find_runs",
    "grouped",
    "labels",
    "load_run",
    "markdown_table",
    "named_runs",
    "plot_accuracy",
]
