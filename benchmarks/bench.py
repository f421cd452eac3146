"""Compare every method on CIFAR-100, T = 10 and 20, three seeds, at the one budget of bench.toml, through `amgc compare`.

    python benchmarks/bench.py --root DATA     # a night on two idle cores; stop it any time, the same command continues
    python benchmarks/bench.py --tasks 10 --seeds 1993 --only ldc dpcr    # a part of it
    python benchmarks/bench.py --dry-run       # list the runs and estimate their time
    python benchmarks/bench.py --print         # print and keep the table of the finished runs
    python benchmarks/bench.py --quick         # digits, three methods, one epoch; nothing is kept

One seed at a time, T = 10 before T = 20, and cheap methods first, so that a table exists early. Several machines and sessions
can fill the table: benchmarks/results/bench.txt has a line for each run, and lines whose runs are elsewhere stay, if bench.toml
had the same settings for the method then. docs/bench.md says what is comparable with published numbers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from _bench_runs import Run, read, spread, written
from _kept import RESULTS
from _report import kept

from amgc.cli.errors import STOPPED
from amgc.cli.main import main as amgc
from amgc.runs import RunRecord, find_runs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Frozen methods first: they share the training of task 1. `joint` is the upper bound.
METHODS = ("ncm", "lda", "fecam", "acil", "ds-al", "ranpac", "fetril", "amgc-exact", "amgc-closed", "lwf", "sdc", "adc", "ldc")
METHODS += ("dpcr", "amgc-drift", "amgc-drift-ve", "amgc", "efc", "efc++", "adagauss", "ewc", "finetune", "joint")
METHODS += ("ssre", "pass", "il2a")
TASKS = (10, 20)
SEEDS = (1993, 1994, 1995)
# LA / AIA on CIFAR-100 with a full ResNet-18 and hundreds of epochs, by number of tasks, and who reports them. A dagger: as
# quoted elsewhere, not read in the source itself. ADC's figure prints no numbers.
PUBLISHED: dict[str, tuple[str, dict[int, str]]] = {
    "ewc": ("AMGC, Table 1", {10: "9.7 / 27.2", 20: "5.5 / 19.5"}),
    "il2a": ("AMGC, Table 1", {10: "30.4 / 39.9", 20: "6.0 / 14.4"}),
    "pass": ("AMGC, Table 1", {10: "34.9 / 49.0", 20: "19.0 / 28.7"}),
    "ssre": ("AMGC, Table 1", {10: "32.1 / 45.9", 20: "17.7 / 31.8"}),
    "fetril": ("AMGC, Table 1", {10: "32.7 / 49.4", 20: "26.1 / 42.2"}),
    "fecam": ("AMGC, Table 1", {10: "31.7 / 48.0", 20: "25.0 / 41.1"}),
    "amgc": ("AMGC, Table 1", {10: "36.2 / 51.7", 20: "30.8 / 42.5"}),
    "sdc": ("ADC, Figure 5", {10: "about 41 / –"}),
    "lwf": ("DPCR, Table 1†", {10: "42.6 / 58.5", 20: "36.3 / 51.5"}),
    "acil": ("DPCR, Table 1†", {10: "35.5 / 50.5", 20: "27.2 / 39.6"}),
    "ds-al": ("DPCR, Table 1†", {10: "36.8 / 51.5"}),
    "adc": ("DPCR, Table 1†", {10: "46.8 / 62.1"}),
    "ldc": ("LDC, Table 1†; 20 tasks: DPCR†", {10: "45.4 / 59.5", 20: "36.8 / 53.1"}),
    "dpcr": ("DPCR, Table 1†", {10: "50.2 / 63.2", 20: "39.0 / 54.4"}),
    "efc": ("EFC, Table 1†", {10: "43.6 / 58.6"}),
    "efc++": ("EFC++†", {10: "47.5 / 61.6", 20: "33.7 / –"}),
    "adagauss": ("AdaGauss, Table 1†", {10: "46.1 / 60.2", 20: "37.8 / 52.4"}),
}


def compare(methods: tuple[str, ...], data: str, out: Path, flags: list[str], root: str) -> int:
    """Run what is missing."""
    os.environ["AMGC_DATA"] = root
    return amgc(["compare", *methods, "--data", data, "--out", str(out), *flags])


def show(out: Path, methods: tuple[str, ...], counts: tuple[int, ...] = TASKS) -> None:
    """Print the table of means over the finished runs, with a line for each method that has none; then the single runs."""
    found = {} if len(counts) == 1 else {run.key: run for run in earlier()}
    for record in find_runs(out):
        if record.finished:
            run = finished(record)
            found[run.key] = run
    print("LA, AIA, and accuracy on old and new classes after the last task, %, mean ± standard deviation over seeds;")
    print("minutes of a run beside other work, without what it took from another run;")
    print("published LA / AIA (other networks and budgets: not comparable with ours)")
    for tasks in counts:
        print(f"\nT = {tasks}")
        print(f"{'method':13}  {'LA':11}  {'AIA':11}  {'old':11}  {'new':11}  {'minutes':>7}  {'runs, commits':28}  published")
        for name in methods:
            source, figures = PUBLISHED.get(name, ("", {}))
            beside = f"{figures[tasks]} ({source})" if tasks in figures else "–"
            own = [run for run in found.values() if (run.method, run.tasks) == (name, tasks)]
            print(f"{name:13}  {row(own)}  {beside}")
    print(f"\n{written(found.values())}")


def earlier() -> list[Run]:
    """Return the kept runs with today's settings."""
    stay = []
    for run in read((RESULTS / "bench.txt").read_text(encoding="utf-8")):
        if settings(run.method, run.commit.split()[0]) == settings(run.method):
            stay.append(run)
        else:
            print(f"{run.method}, T = {run.tasks}: left out; its settings have changed since {run.commit}", file=sys.stderr)
    return stay


def finished(record: RunRecord) -> Run:
    """Return the figures of a finished run."""
    metrics = record.metrics
    shares = (metrics.last_accuracy, metrics.average_incremental_accuracy, metrics.old_accuracy[-1], metrics.new_accuracy[-1])
    minutes = sum(sum(task.values()) for task in record.seconds) / 60
    precision = record.config["machine"]["precision"]
    commit = " ".join([str(record.commit), *([precision] if precision != "32-true" else [])])
    figures = [f"{100 * (share or 0.0):.2f}" for share in shares]
    return Run(record.method, len(record.sizes), int(record.config["seed"]), *figures, f"{minutes:.1f}", commit)


@cache
def settings(method: str, commit: str = "") -> dict[str, Any]:
    """Return what bench.toml says of a method, now or at a commit."""
    path = Path(__file__).with_suffix(".toml")
    shown = subprocess.run(["git", "show", f"{commit}:./{path.name}"], cwd=path.parent, capture_output=True) if commit else None
    content = tomllib.loads((path.read_bytes() if shown is None else shown.stdout).decode())
    only = content.pop("only", {})
    return {key: value for key, value in content.items() if key not in ("about", "cost", "methods")} | {"own": only.get(method)}


def row(runs: list[Run]) -> str:
    """Return the figures of one method: five columns, and how many runs of which commits."""
    if not runs:
        return aligned(["–"] * 5, "not run")
    shown = [spread([float(getattr(run, name)) for run in runs]) for name in ("la", "aia", "old", "new")]
    minutes = statistics.mean(float(run.minutes) for run in runs)
    return aligned([*shown, f"{minutes:.1f}"], ", ".join([str(len(runs)), *sorted({run.commit for run in runs})]))


def aligned(columns: list[str], made: str) -> str:
    *figures, minutes = columns
    return "  ".join([*(f"{figure:11}" for figure in figures), f"{minutes:>7}", f"{made:28}"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    arguments.add_argument("--out", type=Path, default=Path("runs/bench"))
    arguments.add_argument("--only", nargs="+", choices=METHODS, help="these methods")
    arguments.add_argument("--precision", help="another one than float32, which the table then names: bf16-mixed")
    arguments.add_argument("--tasks", nargs="+", type=int, choices=TASKS, default=TASKS, help="these numbers of tasks")
    arguments.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=SEEDS, help="these seeds")
    for flag in ("--dry-run", "--print", "--quick"):
        arguments.add_argument(flag, action="store_true")
    chosen = arguments.parse_args()
    methods = tuple(chosen.only or METHODS)
    if chosen.quick:
        methods = tuple(chosen.only or ("ncm", "ldc", "efc++"))
        with tempfile.TemporaryDirectory() as folder:
            short = ["--first.epochs", "1", "--later.epochs", "1", "--second.epochs", "1", "--seeds", "1", "--tasks", "2"]
            if compare(methods, "digits", Path(folder), short, chosen.root):
                sys.exit(1)
            with kept("bench"):
                show(Path(folder), methods, (2,))
        return
    if not chosen.print:
        preset, failed = str(Path(__file__).with_suffix(".toml")), 0
        if chosen.dry_run:
            seeds = [f"--seed={chosen.seeds[0]}"] if len(chosen.seeds) == 1 else ["--seeds", *map(str, chosen.seeds)]
            grid = ["--tasks", *map(str, chosen.tasks), *seeds, "--dry-run"]
            sys.exit(compare(methods, preset, chosen.out, grid, chosen.root))
        machine = ["--feature-cache", str(chosen.out / "features")]  # frozen methods share the network, so also its features
        machine += ["--precision", chosen.precision] if chosen.precision else []
        for seed, tasks in itertools.product(chosen.seeds, chosen.tasks):
            flags = ["--tasks", str(tasks), "--seed", str(seed), *machine]
            ended = compare(methods, preset, chosen.out, flags, chosen.root)
            if ended == STOPPED:
                sys.exit(ended)
            failed |= ended
        if failed:
            sys.exit(failed)
    with kept("bench"):
        show(chosen.out, METHODS)


if __name__ == "__main__":
    main()
