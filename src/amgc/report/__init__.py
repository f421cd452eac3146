"""Tables, plots and HTML reports of runs. Nothing here imports torch; rich and matplotlib are imported when they are used."""

from amgc.report.groups import MethodRuns, Spread, grouped, named_runs
from amgc.report.paper_table import PaperTable, paper_table
from amgc.report.plot import plot_accuracy
from amgc.report.run_tables import accuracy_table, details
from amgc.report.table import FORMATS, Table

__all__ = [
    "FORMATS",
    "MethodRuns",
    "PaperTable",
    "Spread",
    "Table",
    "accuracy_table",
    "details",
    "grouped",
    "named_runs",
    "paper_table",
    "plot_accuracy",
]
