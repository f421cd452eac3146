"""Run and compare methods from Python: `amgc.run`, `amgc.compare` and `amgc.load_run`.

The functions take what the commands of the same name take, and write the same folders. Settings, scheduling and files are
those of `amgc.cli`; tables and plots are those of `amgc.report`.
"""

import os

from amgc.api.commands import compare, load_run, run
from amgc.api.runs import Comparison, Plot, Runs

# Waiting threads sleep, as on the command line (see cli.main). torch reads the variable when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["Comparison", "Plot", "Runs", "compare", "load_run", "run"]
