"""A comparison of all methods on digits, two jobs at a time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import amgc
from amgc.methods.registry import methods
from amgc.report import find_runs


@pytest.mark.slow
def test_all_methods_on_digits_end_without_a_warning():
    """`amgc compare --all --data digits`, with four of its classes and one of its epochs."""
    environment = os.environ | {"PYTHONPATH": str(Path(amgc.__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-m", "amgc", "compare", "--all", "--data", "digits", "--jobs", "2"]
    short = ["--classes", "0", "1", "2", "3", "--tasks", "2", "--first.epochs", "1", "--later.epochs", "1"]
    done = subprocess.run([*command, *short], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    table = done.stdout[done.stdout.rindex("\nmethod ") :]
    rows = dict(re.findall(r"^(\S+) +(\d+\.\d) +\d+\.\d *$", table, re.MULTILINE))
    assert list(rows) == [name for name, entry in methods().items() if entry.kind.__module__.startswith("amgc.")]  # not tests'
    runs = find_runs("runs/compare")
    assert len(runs) == len(rows) and all(run.finished for run in runs)
    for run in runs:
        assert rows[run.method] == f"{100 * run.metrics.last_accuracy:.1f}"
        assert (run.path.with_suffix(".log")).read_text() == ""  # no warning, nothing else either
