"""Processes of their own that need not import torch: they are forked from one that has, which takes seconds once.

For tests that need a process for themselves, and not for its start.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

LOADED = ["pytest", "sklearn.linear_model", "matplotlib.figure", "amgc.cli.compare", "amgc.engine.run", "amgc.estimator"]
LOADED += ["amgc.model", "amgc.report.page", "amgc.features.patches", "in_process"]


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    return context


def script(path: Path, *arguments: str, folder: Path, timeout: float = 600) -> str:
    """What `python -W error PATH ARGUMENTS` prints; its exit code has to be 0. Jobs of a comparison are as in `commands`."""
    return _output("_script", [str(path), *arguments], folder, {}, timeout)


def commands(given: Sequence[Sequence[str]], folder: Path, environment: Mapping[str, str], timeout: float = 600) -> str:
    """What `amgc` prints with these arguments, one after another; the jobs of a comparison are done in the same process."""
    return _output("_commands", given, folder, environment, timeout)


def _output(function: str, arguments: Sequence, folder: Path, environment: Mapping[str, str], timeout: float) -> str:
    output = folder / ".output.txt"
    variables = {**os.environ, **environment}
    process = _server().Process(target=_work, args=(function, arguments, str(folder), variables, str(output)))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"{arguments} takes longer than {timeout} s: {output.read_text()[-2000:]}")
    printed = output.read_text()
    output.unlink()
    assert process.exitcode == 0, printed[-3000:]
    return printed


def _work(function: str, arguments: Sequence, folder: str, environment: Mapping[str, str], output: str) -> None:
    with open(output, "wb") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.warnoptions[:] = ["error"]
    warnings.resetwarnings()
    warnings.simplefilter("error")
    globals()[function](arguments)


def make_cheap() -> None:
    """Do the jobs of a comparison in this process. Time one step for a cost estimate, not three. New models get few filters."""
    import in_process

    from amgc.cli import compare
    from amgc.engine import cost
    from amgc.model import extractors

    compare.make_executor = lambda *_: (in_process.Here(), 1)
    cost.STEPS, extractors.FILTERS = 1, 40


def _script(command: Sequence[str]) -> None:
    make_cheap()
    sys.argv[:] = command
    sys.path.insert(0, str(Path(command[0]).parent.resolve()))
    runpy.run_path(command[0], run_name="__main__")


def _commands(given: Sequence[Sequence[str]]) -> None:
    from amgc.cli.main import main

    make_cheap()
    for arguments in given:
        if code := main(list(arguments)):
            sys.exit(f"amgc {arguments} ended with {code}")
