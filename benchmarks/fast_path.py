"""Measure CIFAR-100 without training: whitened patches and the closed form, from the raw files to the report.

    python benchmarks/fast_path.py --root DATA                 # everything, about an hour on two cores; resumable
    python benchmarks/fast_path.py --root DATA --only headline # or front, tasks, orders
    python benchmarks/fast_path.py --print                     # tables and plot of the existing runs

headline: as many filters as 20 minutes and 14 GB allow. front: accuracy against time, by the number of filters. tasks: 10, 20
and 100 tasks; with 100, task 1 is a single class. orders: three class orders. Each run is a folder under --out. Seconds are
those of the whole command, memory is its peak. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from _report import kept

from amgc.report import RunError, load_run
from amgc.report.paper import figures
from amgc.runs import RunRecord

FRONT = (50, 100, 200, 400, 800, 1600, 2400, 3200)
HEADLINE = 3200
COMPARED = 800  # for what takes many runs
SEEDS = (1993, 1994, 1995)

Cell = tuple[int, int, int]  # filters, tasks, seed
CELLS: dict[str, list[Cell]] = {
    "headline": [(HEADLINE, 10, 1993)],
    "front": [(filters, 10, 1993) for filters in FRONT],
    "tasks": [(COMPARED, tasks, 1993) for tasks in (10, 20, 100)],
    "orders": [(COMPARED, 10, seed) for seed in SEEDS],
}


def folder_of(cell: Cell, out: Path) -> Path:
    filters, tasks, seed = cell
    return out / f"k{filters}-t{tasks}-s{seed}"


def work(cell: Cell, out: Path, root: str) -> None:
    """Run a cell and store its time and memory. An interrupted run starts again, so that its time is right."""
    (filters, tasks, seed), folder = cell, folder_of(cell, out)
    note = folder / "cost.json"
    if note.exists():
        return
    for file in folder.glob("*") if folder.exists() else ():
        file.unlink()
    command = [sys.executable, "-m", "amgc", "run", f"fast-cifar100-t{tasks}", "--features.filters", str(filters)]
    command += ["--seed", str(seed), "--out", str(folder), "--quiet"]
    start, load = time.monotonic(), os.getloadavg()[0]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"AMGC_DATA": root})
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    print(f"{'done' if status == 0 else 'FAILED'}: {folder.name}, {seconds:.0f} s", file=sys.stderr)
    if status == 0:
        note.write_text(json.dumps({"seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024, "load": load}))


def found(cell: Cell, out: Path) -> tuple[RunRecord, dict[str, float]] | None:
    """Return a finished run with its time and memory."""
    folder = folder_of(cell, out)
    try:
        return load_run(folder), json.loads((folder / "cost.json").read_text())
    except (OSError, RunError):
        return None


def show(name: str, out: Path) -> None:
    """Print the table of the existing runs."""
    rows = [(cell, run) for cell in dict.fromkeys(CELLS[name]) if (run := found(cell, out))]
    if not rows:
        return
    print(f"{name}\n  filters  features   T  seed     LA    AIA  task 1   seconds  peak GB  load before  commit")
    for (filters, tasks, seed), (run, cost) in rows:
        m = run.metrics
        figures = f"{100 * m.last_accuracy:5.1f}  {100 * m.average_incremental_accuracy:5.1f}  {100 * m.accuracy[0]:6.1f}"
        spent = f"{cost['seconds']:8.0f}  {cost['peak_bytes'] / 1e9:7.1f}  {cost['load']:11.2f}"
        print(f"  {filters:7}  {8 * filters:8}  {tasks:3}  {seed}  {figures}  {spent}  {run.commit}")
    if name == "orders" and len(rows) > 1:
        for label, values in (
            ("LA", [100 * run.metrics.last_accuracy for _, (run, _) in rows]),
            ("AIA", [100 * run.metrics.average_incremental_accuracy for _, (run, _) in rows]),
        ):
            print(f"  {label} over {len(rows)} class orders: {statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}")
    print()


def plot(out: Path, path: Path) -> None:
    """Plot accuracy against time, with the paper's AMGC as a line."""
    rows = [(cell[0], *run) for cell in CELLS["front"] if (run := found(cell, out))]
    if len(rows) < 2:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=150, layout="constrained")
    minutes = [cost["seconds"] / 60 for _, _, cost in rows]
    for label, values in (
        ("AIA", [100 * run.metrics.average_incremental_accuracy for _, run, _ in rows]),
        ("LA", [100 * run.metrics.last_accuracy for _, run, _ in rows]),
    ):
        axes.plot(minutes, values, marker="o", label=label)
    for (filters, run, _), minute in zip(rows, minutes, strict=True):
        place = (minute, 100 * run.metrics.last_accuracy)
        axes.annotate(f"{filters}", place, textcoords="offset points", xytext=(4, -11), fontsize=8)
    paper = figures(1, "amgc", "cifar100", 10)["LA"]
    axes.axhline(paper, color="grey", linestyle="--", linewidth=1, label=f"best LA in the paper, {paper}")
    axes.set(xscale="log", xlabel="minutes on two CPU cores, from raw files to the report", ylabel="accuracy, %")
    axes.set_title("CIFAR-100, 10 tasks; numbers of filters beside the dots", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    arguments.add_argument("--out", type=Path, default=Path("runs/fast_path"))
    arguments.add_argument("--only", nargs="+", choices=list(CELLS), default=list(CELLS))
    arguments.add_argument("--print", action="store_true", help="only print, plot and keep what is there")
    chosen = arguments.parse_args()
    if not chosen.print:
        for name in chosen.only:
            for cell in CELLS[name]:
                work(cell, chosen.out, chosen.root)
    with kept("fast_path"):
        for name in CELLS:
            show(name, chosen.out)
    plot(chosen.out, Path(__file__).parents[1] / "docs" / "fast_path.png")


if __name__ == "__main__":
    main()
