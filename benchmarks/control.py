"""Compare AMGC's closed form with other classifiers on the same training-free features of CIFAR-100, ten tasks.

    python benchmarks/control.py --root DATA --filters 800 1600    # resumable; --quick: digits instead, seconds

Each row is `amgc run fast-cifar100-t10 --features.filters K --method METHOD`. The features of a number of filters are
computed once and read from a cache by all rows, so a row's seconds do not include them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

from _report import kept

from amgc.cli.main import main as amgc
from amgc.runs import find_runs, load_run

ROWS: dict[str, list[str]] = {
    "amgc": ["--method", "amgc-closed"],
    "lda": ["--method", "lda"],
    "ncm": ["--method", "ncm"],
}


def folder_of(row: str, filters: int, out: Path) -> Path:
    return out / f"k{filters}-{row.replace(', ', '-').replace(' ', '-')}"


def work(row: str, filters: int, out: Path, preset: str, root: str) -> None:
    """Run a row, or resume it. A finished row is reused."""
    folder = folder_of(row, filters, out)
    if (folder / "run.json").exists():
        command = ["resume", str(folder)] if not load_run(folder).finished else []
    else:
        command = ["run", preset, *ROWS[row], "--features.filters", str(filters)]
        command += ["--feature-cache", str(out / "cache"), "--out", str(folder), "--quiet"]
    os.environ["AMGC_DATA"] = root
    with contextlib.redirect_stdout(io.StringIO()):
        if command and (code := amgc(command)):
            sys.exit(code)


def show(filters: int, out: Path) -> None:
    """Print the rows of a number of filters."""
    print(f"{filters} filters, T = 10, seed 1993: LA, AIA, %")
    for row in ROWS:
        (run,) = find_runs(folder_of(row, filters, out))
        values = (run.metrics.last_accuracy, run.metrics.average_incremental_accuracy)
        print(f"  {row:<10}", *[f"{100 * (value or 0):5.1f}" for value in values], f"  ({run.commit})")
    print()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    arguments.add_argument("--filters", type=int, nargs="+", default=[800, 1600])
    arguments.add_argument("--out", type=Path, default=Path("runs/control"))
    arguments.add_argument("--quick", action="store_true", help="digits with 20 filters, and nothing is kept")
    chosen = arguments.parse_args()
    with kept("control"), tempfile.TemporaryDirectory() as temporary:
        filters = [20] if chosen.quick else chosen.filters
        out = Path(temporary) if chosen.quick else chosen.out
        for count in filters:
            for row in ROWS:
                work(row, count, out, "fast-digits" if chosen.quick else "fast-cifar100-t10", chosen.root)
            show(count, out)


if __name__ == "__main__":
    main()
