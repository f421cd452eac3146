"""AMGC's ablations, learning rates and margins on CIFAR-100 at the budget of the preset cifar100-small.

    python benchmarks/ablation.py --root DATA                # everything; hours on two cores, resumable
    python benchmarks/ablation.py --root DATA --only table2  # Table 2 of the paper; or rates, margins, conditions
    python benchmarks/ablation.py --print                    # print and keep the tables of the existing runs

Each cell is an ordinary run folder under --out. Finished runs are reused, interrupted runs are resumed. Task 1 is trained once
for each number of tasks, and the other runs start from it (--start), which saves time and does not change the results. Two runs
are executed at a time with one thread each, so their times are not comparable.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _report import kept

from amgc.report.paper import figures
from amgc.runs import RunError, load_run

METHODS = ("amgc", "sblc", "sbndbolc", "sbgc", "dblc", "dbgc", "dbgc-sm")
DOUBTFUL = ("sbgc", "dblc")  # what the paper prints for them stands twice in its Table 2, or contradicts its text
MOVING = ("1e-4", "1e-3", "1e-2")
MARGINS = ("0", "0.1", "0.4", "1")
BALANCES = ("two_means", "per_class")

# Does more or less training, or another way to keep the new classes' running statistics, change what a margin does?
# `dbgc` has options for that; with a margin it is `amgc`.
CONDITIONS = {
    "steps0.2": ("--later.epochs", "1"),
    "steps4": ("--later.epochs", "20"),
    "reset-task": ("--reset", "task"),
    "decay0.1": ("--decay", "0.1"),
}
MOVING_CONDITIONS = {"reset-task": ("--reset", "task"), "straight": ("--mean-gradient", "straight_through")}
TABLES = ("table2", "rates", "margins", "conditions")

Cell = tuple[str, str, tuple[str, ...]]  # name, method, flags


def cells(only: str, tasks: int) -> list[Cell]:
    """Return the runs of one table for a number of tasks. The first run trains task 1 for the others."""
    table2: list[Cell] = [("finetune", "finetune", ())] + [(name, name, ()) for name in METHODS]
    table2 += [("amgc-freeze", "amgc-exact", ()), ("dbgc-freeze", "amgc-exact", ("--margin", "0"))]
    table2 += [(f"{name}-per_class", name, ("--balance", "per_class")) for name in ("dbgc", "amgc")]
    rates: list[Cell] = [("sgd-two_means-m0.4", "amgc", ("--later.extractor-lr", "0")), ("amgc", "amgc", ())]
    rates += [moving(rate, "two_means", "0.4", "0.2") for rate in MOVING] + [
        moving("1e-3", "two_means", margin, "0.05") for margin in ("0", "0.4")
    ]
    # A network that moves by 1e-3 or more diverges at the preset's head learning rate, 0.2.
    where = [("1e-4", "0.2", "two_means"), ("1e-4", "0.2", "per_class"), ("1e-3", "0.05", "per_class")]
    margins = [moving(rate, balance, margin, head) for rate, head, balance in where for margin in ("0", "0.4")]
    for balance in BALANCES:
        for margin in MARGINS:
            flags = ("--balance", balance, "--margin", margin)
            margins.append((f"solved-{balance}-m{margin}", "amgc-exact", flags))
            margins.append((f"sgd-{balance}-m{margin}", "amgc", ("--later.extractor-lr", "0", *flags)))
            adam = ("--later.optimizer", "adam", "--later.head-lr", "1e-3")
            margins.append((f"adam-{balance}-m{margin}", "amgc", ("--later.extractor-lr", "0", *adam, *flags)))
    conditions: list[Cell] = []
    for margin in ("0", "0.4"):
        for name, ways in CONDITIONS.items():
            for balance in BALANCES:
                flags = ("--balance", balance, "--margin", margin, "--later.extractor-lr", "0", *ways)
                conditions.append((f"{name}-{balance}-m{margin}", "dbgc", flags))
        for name, ways in MOVING_CONDITIONS.items():
            moved, _, flags = moving("1e-4", "per_class", margin, "0.2")
            conditions.append((f"{name}-{moved}", "dbgc", (*flags, *ways)))
    once = {"margins": margins, "conditions": conditions}
    chosen = {"table2": table2, "rates": rates} | {name: found if tasks == 10 else [] for name, found in once.items()}
    return [("finetune", "finetune", ())] * (only != "table2") + chosen[only]


def moving(rate: str, balance: str, margin: str, head: str) -> Cell:
    """Return the run of AMGC with these rates, in which the network learns in later tasks."""
    flags = ("--balance", balance, "--margin", margin, "--later.extractor-lr", rate, "--later.head-lr", head)
    return f"lr{rate}-h{head}-{balance}-m{margin}", "amgc", flags


def work(cell: Cell, tasks: int, out: Path, root: str) -> None:
    """Run a cell, or resume it."""
    name, method, flags = cell
    folder, first = out / f"t{tasks}" / name, out / f"t{tasks}" / "finetune"
    if (folder / "run.json").exists():
        command = ["resume", str(folder)]
    else:
        command = ["run", "cifar100-small", "--method", method, "--tasks", str(tasks), "--out", str(folder)]
        command += ["--quiet", *flags, *(() if name == "finetune" else ("--start", str(first)))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "AMGC_DATA": root}
    done = subprocess.run([sys.executable, "-m", "amgc", *command], capture_output=True, text=True, env=environment)
    print(f"{'done' if done.returncode == 0 else 'FAILED'}: {name}, T = {tasks} {done.stderr[-300:]}", file=sys.stderr)
    if done.returncode:
        folder.with_name(f"{name}.error").write_text(done.stderr)


def show(only: str, tasks: int, out: Path) -> None:
    """Print the table of the existing runs."""
    print(f"{only}, T = {tasks}: LA, AIA, accuracy on task 1's, old and new classes after the last task, %")
    for name, _, flags in cells(only, tasks):
        try:
            run = load_run(out / f"t{tasks}" / name)
        except (OSError, RunError):
            continue
        if not run.finished:
            said = (out / f"t{tasks}" / name).with_name(f"{name}.error")
            end = said.read_text().strip().splitlines()[-1] if said.exists() else "it was stopped, or is still going"
            print(f"  {name:34} {run.done} of {len(run.sizes)} tasks; then: {end}")
            continue
        m = run.metrics
        shares = [m.last_accuracy, m.average_incremental_accuracy, m.first_task_accuracy[-1]]
        shares += [m.old_accuracy[-1], m.new_accuracy[-1]]
        shown = " ".join(f"{100 * value:5.1f}" for value in shares if value is not None)
        flags = (*flags, f"({run.commit})")
        printed = (figures(2, name, "cifar100", tasks) or figures(3, name, "cifar100", tasks)) if only == "table2" else {}
        paper = f"   paper: {printed['LA']} / {printed['AIA']}{' ?' * (name in DOUBTFUL)}" if printed else ""
        print(f"  {name:34} {shown}   {' '.join(flags)}{paper}")
    print()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    arguments.add_argument("--out", type=Path, default=Path("runs/ablation"))
    arguments.add_argument("--only", choices=TABLES)
    arguments.add_argument("--tasks", type=int, choices=(10, 20))
    arguments.add_argument("--print", action="store_true", help="only print and keep what is there")
    chosen = arguments.parse_args()
    tables = [chosen.only] if chosen.only else TABLES
    counts = [chosen.tasks] if chosen.tasks else [10, 20]
    if not chosen.print:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda tasks: work(("finetune", "finetune", ()), tasks, chosen.out, chosen.root), counts))
            for only in tables:
                todo = [(cell, tasks) for tasks in counts for cell in cells(only, tasks)[1:]]
                list(pool.map(lambda job: work(job[0], job[1], chosen.out, chosen.root), todo))
    with kept("ablation"):
        for only in TABLES:
            for tasks in (10, 20):
                if len(cells(only, tasks)) > 1:
                    show(only, tasks, chosen.out)


if __name__ == "__main__":
    main()
