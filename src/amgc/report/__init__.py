"""Metrics, tables and plots of runs. Nothing here imports torch; rich and matplotlib are imported when something is drawn."""

from amgc.report.details import details
from amgc.report.groups import Group, Spread, grouped, named_runs
from amgc.report.paper_formats import FORMATS, as_text
from amgc.report.paper_table import PaperTable, paper_table
from amgc.report.plot import plot_accuracy
from amgc.report.table import accuracy_table, markdown_table
from amgc.report.writing import whole_file
from amgc.runs import DEFINITIONS, Metrics, RunError, RunRecord, find_runs, labels, load_run
from amgc.runs.observed import Observed, load_observed

__all__ = [
    "DEFINITIONS",
    "FORMATS",
    "Group",
    "Metrics",
    "Observed",
    "PaperTable",
    "RunError",
    "RunRecord",
    "Spread",
    "accuracy_table",
    "as_text",
    "details",
    "find_runs",
    "grouped",
    "labels",
    "load_observed",
    "load_run",
    "markdown_table",
    "named_runs",
    "paper_table",
    "plot_accuracy",
    "whole_file",
]
