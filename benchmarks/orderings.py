"""Check the orderings of the paper's Tables 2 and 3 on digits: AMGC and its ablations with the printed losses, three seeds.

    python benchmarks/orderings.py           # 21 runs of seconds each; resumable
    python benchmarks/orderings.py --quick   # one method, one epoch; nothing is kept

The same as `amgc compare amgc dbgc dbgc-sm sbgc dblc sbndbolc sblc --data digits --seeds 3`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _report import kept

import amgc

METHODS = ["amgc", "dbgc", "dbgc-sm", "sbgc", "dblc", "sbndbolc", "sblc"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("runs/orderings"))
    arguments.add_argument("--quick", action="store_true", help="one method, one epoch, and nothing is kept")
    chosen = arguments.parse_args()
    short = {"first": {"epochs": 1}, "later": {"epochs": 1}} if chosen.quick else {}
    with kept("orderings"), tempfile.TemporaryDirectory() as temporary:
        found = amgc.compare(
            METHODS[:1] if chosen.quick else METHODS,
            data="digits",
            seeds=1 if chosen.quick else 3,
            out=temporary if chosen.quick else chosen.out,
            tasks=2 if chosen.quick else 5,
            jobs=2,
            **short,
        )
        frame = found.frame().groupby("method", sort=False)[["LA", "AIA"]].agg(["mean", "std"])
        print("digits, T = 5, seeds 1993 to 1995: LA, AIA, % (mean ± standard deviation)")
        for method, row in (100 * frame).iterrows():
            numbers = [f"{row[name, 'mean']:5.1f} ± {row[name, 'std']:.1f}" for name in ("LA", "AIA")]
            print(f"  {method:<10} {'   '.join(numbers)}")


if __name__ == "__main__":
    main()
