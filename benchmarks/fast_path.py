"""Measure CIFAR-100 with patches, or layers of small networks, and the closed form, from the raw files to the report.

    python benchmarks/fast_path.py --root DATA                 # everything, hours on two cores; resumable
    python benchmarks/fast_path.py --root DATA --only best     # or lengths, seeds, controls, front, tasks, orders, minutes
    python benchmarks/fast_path.py --root DATA --only lengths --tasks 10 20    # runs with these numbers of tasks only
    python benchmarks/fast_path.py --print                     # tables and plot of the existing runs
    python benchmarks/fast_path.py --quick                     # digits, seconds; nothing is kept

best: the preset best-cifar100-t10. lengths, seeds: the same with 20, 50 and 100 tasks (best-cifar100-t20), and with three
class orders. controls: other methods with the networks of `best`; the first encodes all images, the others read their
features from a cache, so their seconds say little. front: the fast presets, accuracy against time, by the number of filters.
tasks: 10, 20 and 100 tasks; with 100, task 1 is a single class. orders: three class orders. minutes: the two runs of front
that take one and two minutes. Each run is a folder under --out. Seconds are those of the whole command, memory is its peak.
Run it on an idle machine. A finished run is not repeated; a table stays as it was kept if fewer of its runs are there now.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from _report import RESULTS, kept

from amgc.features.registry import blank
from amgc.report.paper import figures
from amgc.runs import RunError, RunRecord, load_run

FRONT = (50, 100, 200, 400, 800, 1600, 2400, 3200)
COMPARED = 800  # for what takes many runs
SEEDS = (1993, 1994, 1995)


class Cell(NamedTuple):
    """A run: `amgc run PRESET --tasks T --seed SEED --method METHOD`, with the preset's number of filters if it is 0."""

    filters: int
    tasks: int = 10
    seed: int = 1993
    method: str = "amgc-closed"
    preset: str = "fast-cifar100-t10"

    def folder(self, out: Path) -> Path:
        kind = f"k{self.filters}" if self.filters else self.preset.split("-")[0]
        method = "" if self.method == "amgc-closed" else f"-{self.method}"
        return out / f"{kind}-t{self.tasks}-s{self.seed}{method}"


BEST, BEST_20 = Cell(0, preset="best-cifar100-t10"), Cell(0, 20, preset="best-cifar100-t20")
CELLS: dict[str, list[Cell]] = {
    "best": [BEST],
    "lengths": [BEST, *(BEST_20._replace(tasks=tasks) for tasks in (20, 50, 100))],
    "seeds": [best._replace(seed=seed) for best in (BEST, BEST_20) for seed in SEEDS],
    "controls": [BEST._replace(method=method) for method in ("lda", "ranpac", "acil")],
    "front": [Cell(filters) for filters in FRONT],
    "tasks": [Cell(COMPARED, tasks) for tasks in (10, 20, 100)],
    "orders": [Cell(COMPARED, seed=seed) for seed in SEEDS],
    "minutes": [Cell(400), Cell(COMPARED)],
}
QUICK = {"front": [Cell(10, 5, preset="fast-digits")]}


def work(cell: Cell, out: Path, root: str) -> None:
    """Run a cell and store its time and memory. An interrupted run starts again, so that its time is right."""
    folder = cell.folder(out)
    note = folder / "cost.json"
    if note.exists():
        return
    for file in folder.glob("*") if folder.exists() else ():
        file.unlink()
    command = [sys.executable, "-m", "amgc", "run", cell.preset, "--tasks", str(cell.tasks), "--method", cell.method]
    command += ["--features.filters", str(cell.filters)] if cell.filters else []
    command += ["--seed", str(cell.seed), "--out", str(folder), "--quiet"]
    if cell in CELLS["controls"]:
        if found(BEST, out) is None:
            sys.exit("controls start from the networks of `best`: run --only best first.")
        command += ["--start", str(BEST.folder(out)), "--feature-cache", str(out / "features")]
    start, load = time.monotonic(), os.getloadavg()[0]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"AMGC_DATA": root})
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    print(f"{'done' if status == 0 else 'FAILED'}: {folder.name}, {seconds:.0f} s", file=sys.stderr)
    if status == 0:
        note.write_text(json.dumps({"seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024, "load": load}))


def found(cell: Cell, out: Path) -> tuple[RunRecord, dict[str, float]] | None:
    """Return a finished run with its time and memory."""
    folder = cell.folder(out)
    try:
        return load_run(folder), json.loads((folder / "cost.json").read_text())
    except (OSError, RunError):
        return None


def show(name: str, cells: list[Cell], out: Path) -> None:
    """Print the table of the existing runs, or the table that was kept before if it has more."""
    rows = [(cell, run) for cell in dict.fromkeys(cells) if (run := found(cell, out))]
    file = RESULTS / "fast_path.txt"
    tables = file.read_text().split("\n\n") if file.exists() else []
    before = next((table for table in tables if table.startswith(f"{name}\n")), "")
    if len(rows) < len(re.findall(r"^ +\d+ ", before, flags=re.M)) or not rows:
        if before:
            print(before.rstrip() + "\n")
        return
    print(f"{name}\n  filters  features   T  seed     LA    AIA  task 1   seconds  peak GB  load before  method       commit")
    for cell, (run, cost) in rows:
        m, options = run.metrics, run.config.get("features_options") or {}
        filters = options.get("filters") or cell.filters
        features = blank(run.config["features"], image_shape=(3, 32, 32), **options).dim
        figures = f"{100 * m.last_accuracy:5.1f}  {100 * m.average_incremental_accuracy:5.1f}  {100 * m.accuracy[0]:6.1f}"
        spent = f"{cost['seconds']:8.0f}  {cost['peak_bytes'] / 1e9:7.1f}  {cost['load']:11.2f}"
        print(f"  {filters:7}  {features:8}  {cell.tasks:3}  {cell.seed}  {figures}  {spent}  {cell.method:11}  {run.commit}")
    for tasks in dict.fromkeys(cell.tasks for cell, _ in rows) if name in ("orders", "seeds") else ():
        same = [run.metrics for cell, (run, _) in rows if cell.tasks == tasks]
        for label, values in (
            ("LA", [100 * metrics.last_accuracy for metrics in same]),
            ("AIA", [100 * metrics.average_incremental_accuracy for metrics in same]),
        ):
            if len(same) > 1:
                average = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
                start = (
                    f"{label} over {len(same)} class orders" if name == "orders" else f"T = {tasks}, {label}, {len(same)} seeds"
                )
                print(f"  {start}: {average}")
    print()


def plot(out: Path, path: Path) -> None:
    """Plot accuracy against time, with the paper's AMGC as a line, if all runs are there."""
    rows = [(cell.filters, *run) for cell in CELLS["front"] if (run := found(cell, out))]
    if len(rows) < len(FRONT):
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
    arguments.add_argument("--tasks", type=int, nargs="+", help="only runs with these numbers of tasks; default: all")
    arguments.add_argument("--print", action="store_true", help="only print, plot and keep what is there")
    arguments.add_argument("--quick", action="store_true", help="digits with few filters, and nothing is kept")
    chosen = arguments.parse_args()
    if chosen.quick:
        with kept("fast_path"), tempfile.TemporaryDirectory() as folder:
            for name, cells in QUICK.items():
                for cell in cells:
                    work(cell, Path(folder), chosen.root)
                show(name, cells, Path(folder))
        return
    if not chosen.print:
        for name in chosen.only:
            for cell in CELLS[name]:
                if chosen.tasks is None or cell.tasks in chosen.tasks:
                    work(cell, chosen.out, chosen.root)
    with kept("fast_path"):
        for name, cells in CELLS.items():
            show(name, cells, chosen.out)
    plot(chosen.out, Path(__file__).parents[1] / "docs" / "fast_path.png")


if __name__ == "__main__":
    main()
