"""Time the start of the command line: help texts, the first training step of `amgc run`, and the whole run.

    python benchmarks/start.py            # about two minutes; keep the machine otherwise idle
    python benchmarks/start.py --quick    # once each, without the whole run

Wall-clock seconds from the start of the process, median and range of several runs, on digits with the default methods. The
first training step comes after the steps that are timed for the cost estimate.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

from _report import kept

# Ends the process at the first optimiser step of `train`; those before it measure the cost.
UNTIL_THE_FIRST_STEP = """
import os, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
import amgc.engine.run as run
from amgc.cli.main import main

whole = run.train

def train(*arguments):
    register_optimizer_step_post_hook(lambda *_: os._exit(0))
    whole(*arguments)

run.train = train
sys.exit(main(sys.argv[1:]) or 3)
"""
AMGC = [sys.executable, "-m", "amgc"]


def seconds(command: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return time.perf_counter() - start


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true")
    quick = arguments.parse_args().quick
    jobs: dict[str, tuple[list[str], int]] = {
        "amgc --help": ([*AMGC, "--help"], 20),
        "amgc run --help": ([*AMGC, "run", "--help"], 20),
        "amgc run, first training step": ([sys.executable, "-c", UNTIL_THE_FIRST_STEP, "run", "--quiet"], 7),
        "amgc run, all of it": ([*AMGC, "run"], 3),
    }
    with kept("start"):
        for name, (command, rounds) in jobs.items():
            if quick and name.endswith("all of it"):
                continue
            taken = [seconds(command) for _ in range(1 if quick else rounds)]
            print(f"  {name:32} {statistics.median(taken):6.2f} s ({min(taken):.2f} to {max(taken):.2f})", flush=True)


if __name__ == "__main__":
    main()
