"""Warm start on CIFAR-100: methods with a frozen network on the same features of lite0, which was trained on ImageNet.

    AMGC_DATA=DATA python benchmarks/warm.py    # the first run encodes 60,000 images; resumable
    python benchmarks/warm.py --quick           # two methods on digits without a network; nothing is kept

The same as `amgc compare amgc-closed lda ranpac acil ds-al fecam ncm --data warm-cifar100-t10 warm-cifar100-t20`.
ImageNet's classes include most of CIFAR-100's, so these figures are not comparable with those of a cold start.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _report import kept

import amgc

METHODS = ["amgc-closed", "lda", "ranpac", "acil", "ds-al", "fecam", "ncm"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("runs/warm"))
    arguments.add_argument("--tasks", type=int, nargs="+", default=[10, 20], choices=[10, 20])
    arguments.add_argument("--quick", action="store_true", help="two methods on digits, and nothing is kept")
    chosen = arguments.parse_args()
    with kept("warm", [f"warm-cifar100-t{tasks}," for tasks in chosen.tasks]), tempfile.TemporaryDirectory() as temporary:
        for tasks in chosen.tasks[: 1 if chosen.quick else None]:
            out = Path(temporary) if chosen.quick else chosen.out / f"t{tasks}"
            data = "fast-digits" if chosen.quick else f"warm-cifar100-t{tasks}"
            found = amgc.compare(METHODS[:2] if chosen.quick else METHODS, data=data, out=out, jobs=1)
            print(f"\n{data}, seed 1993: LA, AIA, %, and seconds of the run")
            for run in found.values():
                figures = run.metrics.last_accuracy, run.metrics.average_incremental_accuracy
                seconds = sum(sum(task.values()) for task in run.seconds)
                print(f"  {run.method:<12}", *[f"{100 * (figure or 0):5.1f}" for figure in figures], f"{seconds:8.0f}")


if __name__ == "__main__":
    main()
