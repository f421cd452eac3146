"""Measure a column of the paper's Table 1: every method on CIFAR-100, T = 10, at the budget of the preset cifar100-small.

    python benchmarks/competitors.py --root DATA   # two hours on one core, resumable
    python benchmarks/competitors.py --print       # print and keep the table of the existing runs

Each run is an ordinary folder under --out, seed/method; finished runs are reused, interrupted runs are resumed. Methods
whose task 1 is plain cross-entropy share its training (--start); its minutes count for each of them. Methods that freeze the
network run with three seeds, that is three class orders, the others with one. Every run has one thread. If the development data
is available, the frozen methods also run on the features of a full ResNet-18 that was trained on task 1 only. A gap that
remains there is not caused by the small network.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from _report import features_file, kept

from amgc.cli.presets import named
from amgc.methods.registry import find
from amgc.runs import RunError, RunRecord, load_run

SEEDS = (1993, 1994, 1995)
FROZEN = {name: (name, ()) for name in ("ncm", "fetril", "fecam", "lda", "acil", "ds-al", "ranpac")}
FROZEN |= {
    "amgc-freeze": ("amgc-exact", ()),
    "amgc-freeze-equal": ("amgc-exact", ("--balance", "per_class")),
    "dbgc-freeze-equal": ("amgc-exact", ("--margin", "0", "--balance", "per_class")),
}
TRAINED = {name: (name, ()) for name in ("finetune", "amgc", "ewc", "lwf", "ssre", "pass", "il2a", "joint")}
WIDE = {"acil": ("--expansion", "2048"), "ds-al": ("--expansion", "2048"), "ranpac": ("--projections", "2048")}
WIDE["fetril"] = ("--later.epochs", "50", "--later.head-lr", "0.05")
START = "ncm"  # trains task 1 and nothing else


def work(name: str, method: str, flags: tuple[str, ...], seed: int, out: Path, root: str) -> None:
    """Run a cell, or resume it."""
    folder, first = out / str(seed) / name, out / str(seed) / START
    if (folder / "run.json").exists():
        command = ["resume", str(folder)]
    else:
        command = ["run", "cifar100-small", "--method", method, "--seed", str(seed), "--out", str(folder), "--quiet", *flags]
        if name != START and find(method).kind.common_start:
            command += ["--start", str(first)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "AMGC_DATA": root}
    done = subprocess.run([sys.executable, "-m", "amgc", *command], capture_output=True, text=True, env=environment)
    print(f"{'done' if done.returncode == 0 else 'FAILED'}: {name}, seed {seed} {done.stderr[-300:]}", file=sys.stderr)


def work_on_features(name: str, method: str, flags: tuple[str, ...], file: Path, out: Path) -> None:
    """Run a cell on given features. There is no task 1 to train."""
    folder = out / "features" / name
    if not (folder / "run.json").exists():
        command = ["run", f"npz:{file}", "--method", method, "--tasks", "10", "--first.epochs", "1", "--out", str(folder)]
        subprocess.run([sys.executable, "-m", "amgc", *command, "--quiet", "--threads", "1", *flags], capture_output=True)


def finished(name: str, out: Path) -> list[RunRecord]:
    """Return the finished runs of a row, one for each seed."""
    found = []
    for seed in SEEDS:
        try:
            run = load_run(out / str(seed) / name)
        except (OSError, RunError):
            continue
        if run.finished:
            found.append(run)
    return found


def spread(values: list[float]) -> str:
    """Format the mean, and ± standard deviation if there are several values."""
    deviation = f" ±{statistics.stdev(values):4.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):5.1f}{deviation}"


def show(out: Path) -> None:
    """Print the table of the existing runs."""
    paper = named("paper-cifar100-t10").paper
    print("CIFAR-100, T = 10, preset cifar100-small: LA, AIA, accuracy on old and new classes after the last task, %;")
    print("minutes of a run on one thread, beside other work and stops; MB kept per class beside network and head; the paper's")
    print("LA / AIA\n")
    print(f"{'':20} {'LA':12} {'AIA':12} {'old':12} {'new':12} {'minutes':>7} {'MB/class':>8}  paper        runs, commit")
    for name, (method, _) in (TRAINED | FROZEN).items():
        runs = finished(name, out)
        if not runs:
            continue
        metrics = [run.metrics for run in runs]
        columns = [[m.last_accuracy for m in metrics], [m.average_incremental_accuracy for m in metrics]]
        columns += [[m.old_accuracy[-1] for m in metrics], [m.new_accuracy[-1] for m in metrics]]
        shown = " ".join(f"{spread([100 * (value or 0.0) for value in column]):12}" for column in columns)
        minutes = statistics.mean(sum(sum(task.values()) for task in run.seconds) for run in runs) / 60
        kept_mb = statistics.mean(run.kept_bytes[-1] / sum(run.sizes) for run in runs) / 1e6
        published = paper.get(method) if name == method else None
        beside = f"{published['LA']} / {published['AIA']}" if published else ""
        print(f"{name:20} {shown} {minutes:7.1f} {kept_mb:8.3f}  {beside:12} {len(runs)}, {runs[0].commit}")

    print("\nFrozen methods on the features of a full ResNet-18, 90.6 % on task 1 (development data), seed 1993: LA, AIA")
    for name in FROZEN:
        try:
            run = load_run(out / "features" / name)
        except (OSError, RunError):
            continue
        m, published = run.metrics, paper.get(name)
        beside = f"   paper {published['LA']} / {published['AIA']}" if published else ""
        if run.finished and m.last_accuracy is not None and m.average_incremental_accuracy is not None:
            print(f"{name:20} {100 * m.last_accuracy:5.1f} {100 * m.average_incremental_accuracy:5.1f}{beside}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    arguments.add_argument("--out", type=Path, default=Path("runs/competitors"))
    arguments.add_argument("--only", nargs="+", choices=[*TRAINED, *FROZEN], help="these rows")
    arguments.add_argument("--print", action="store_true", help="only print and keep what is there")
    chosen = arguments.parse_args()
    if not chosen.print:
        cells = [(name, *cell, seed) for seed in SEEDS for name, cell in FROZEN.items()]
        cells += [(name, *cell, SEEDS[0]) for name, cell in TRAINED.items()]
        for name, method, flags, seed in cells:
            if chosen.only is None or name in (*chosen.only, START):
                work(name, method, flags, seed, chosen.out, chosen.root)
        for name, (method, flags) in FROZEN.items():
            if (file := features_file()) and (chosen.only is None or name in chosen.only):
                work_on_features(name, method, (*flags, *WIDE.get(name, ())), file, chosen.out)
    with kept("competitors"):
        show(chosen.out)


if __name__ == "__main__":
    main()
