"""Measure drift compensation on one training by LwF: class means, ridge regression and AMGC's exact head, with and without VE.

    python benchmarks/compensation.py                        # digits, five tasks, three seeds; a minute or two
    python benchmarks/compensation.py --cifar --root DATA    # CIFAR-100 at the budget of bench.toml, one seed; half an hour
    python benchmarks/compensation.py --cifar --root DATA --start runs/bench/bench-t10-s199[345]/sdc    # three seeds
    python benchmarks/compensation.py --quick                # digits, one epoch, one seed; nothing is kept

All rows of a seed have the same network, because none of them changes its training: only what is stored of old classes and the
classifier differ. `none` never moves statistics, `mean` moves means by the drift of the new images near them, `linear` maps
means and covariances. λ is AMGC's margin (VE) of old classes. Two controls of it: a ridge on the variances of all classes,
as large as VE is on average (λ = 0.4 of about 0.2), and λ for all classes. The rows of LDC are runs of their own, with
the same training. CIFAR-100 has no rows of LDC and ADC, because benchmarks/bench.py runs them with the same training. `--start`
takes the training from runs of it with other seeds, ten tasks each: that of task 1 from …/ncm, that of all tasks from the first
of sdc, adc, ldc, dpcr and amgc-drift that was run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import torch
from _report import kept

from amgc import solve_head
from amgc.cli.presets import named
from amgc.data import TaskStream, load
from amgc.engine.config import Config, Machine
from amgc.engine.run import run
from amgc.engine.session import order_and_sizes
from amgc.methods.amgc_drift import AMGCDrift
from amgc.methods.contract import Features, Task, TaskImages
from amgc.methods.lwf import LwF
from amgc.methods.registry import find, method
from amgc.options import merged
from amgc.runs import load_run

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "class means, not moved": ("adc", {"steps": 0, "nearest": 1, "still": True}),
    "sdc": ("sdc", {}),
    "adc": ("adc", {}),
    "dpcr": ("dpcr", {}),
}
ROWS |= {
    f"amgc, {kind}, λ = {margin:g}": ("amgc-drift", {"compensation": kind, "margin": margin})
    for kind in ("none", "mean", "linear")
    for margin in (0.0, 0.4)
}
CONTROLS = {
    "amgc, linear, ridge 0.08": ("amgc-drift", {"ridge": 0.08}),
    "amgc, linear, λ = 0.4 for all classes": ("amgc-drift", {"margin": 0.4, "everywhere": True}),
}
LDC = {
    "ldc, random start, 20 epochs": {"initial": "random"},
    "ldc, random start, 200 epochs": {"initial": "random", "second": {"epochs": 200}},
    "ldc, from the identity, 20 epochs": {"initial": "identity"},
}


class Everywhere(AMGCDrift):
    """AMGC with drift compensation that enlarges the variances of all classes."""

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        for rows, labels in features:
            self.statistics.update(rows, labels)
        solved = solve_head(self.statistics, margin=self.hyper.margin, balance=self.hyper.balance)
        order = [self.statistics.index(label) for label in task.seen]
        self.solved.set(solved.weight[order], solved.bias[order])


class Shared:
    """The images of a task, of which every network computes the features once for all rows."""

    def __init__(self, images: TaskImages) -> None:
        self.images, self.features = images, cache(images.features)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.images, name)


@method("many", find("sdc").hyper)
class Many(LwF[Any]):
    """LwF's training, after which every row of the table stores its own statistics of the same features."""

    predictions: ClassVar[dict[str, list[torch.Tensor]]] = {}
    chosen: ClassVar[dict[str, tuple[str, dict[str, Any]]]] = ROWS

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rows: dict[str, Any] = {}
        for name, (name_of_method, options) in self.chosen.items():
            entry, options = find(name_of_method), dict(options)
            still, everywhere = options.pop("still", False), options.pop("everywhere", False)
            kind = Everywhere if everywhere else entry.kind
            made = kind(replace(entry.hyper, first=self.hyper.first, later=self.hyper.later, **options), *arguments[1:])
            made.still = still  # type: ignore[attr-defined]
            self.rows[name] = made

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        shared: Any = Shared(images)
        for made in self.rows.values():
            made.task, made.old = task, None if made.still else self.old
            made.collect(task, shared, generator)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        super().end(task, features, generator)
        batches = list(features)
        for made in self.rows.values():
            made.end(task, batches, generator)

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        own = super().scores(features)
        for name, made in self.rows.items():
            self.predictions.setdefault(name, []).append(made.scores(features).argmax(1))
        self.predictions.setdefault("lwf, its own head", []).append(own.argmax(1))
        return own


def figures(right: list[torch.Tensor], total: list[torch.Tensor], old: int) -> list[float]:
    """Return LA, AIA, and the accuracy on old and new classes after the last task, in percent, from counts of every class."""
    each = [float(one.sum() / all.sum()) for one, all in zip(right, total, strict=True)]
    halves = [float(right[-1][part].sum() / total[-1][part].sum()) for part in (slice(old), slice(old, None))]
    return [100 * value for value in (each[-1], statistics.mean(each), *halves)]


def counted(predictions: list[torch.Tensor], stream: TaskStream) -> list[float]:
    """Return the figures of a row, from all its predictions in the order of the evaluation."""
    joined, start, right, total = torch.cat(predictions), 0, [], []
    for task in range(len(stream)):
        labels = torch.cat([stream.test_new(index).labels for index in range(task + 1)])
        correct = labels[joined[start : start + len(labels)] == labels]
        right.append(correct.bincount(minlength=int(labels.max()) + 1))
        total.append(labels.bincount())
        start += len(labels)
    return figures(right, total, len(total[-2]))


def settings(name: str, preset: str, changes: dict[str, Any], seed: int, **machine: Any) -> Config:
    found, like = named(preset), "sdc" if name == "many" else name
    hyper = merged(found.hyper_of(find(like)), changes)
    return Config(
        name,
        hyper,
        data=found.data,
        features=found.features,
        features_options=found.features_options,
        tasks=found.tasks,
        seed=seed,
        machine=Machine(device="cpu", threads=torch.get_num_threads(), **machine),
    )


def measured(
    preset: str, seed: int, short: dict[str, Any], ldc: dict[str, dict[str, Any]], **machine: Any
) -> dict[str, list[float]]:
    """Return LA, AIA, and the accuracy on old and new classes, of every row."""
    dataset, found = load(named(preset).data), {}
    Many.predictions = {}
    with tempfile.TemporaryDirectory() as folder:
        config = settings("many", preset, short, seed, **machine)
        run(config, Path(folder) / "many", dataset=dataset)
        stream = TaskStream(dataset, *order_and_sizes(config, dataset))
        found = {name: counted(each, stream) for name, each in Many.predictions.items()}
        for name, changes in ldc.items():
            lines = run(settings("ldc", preset, short | changes, seed), Path(folder) / name, dataset=dataset)
            right, total = ([torch.tensor(line[part]) for line in lines] for part in ("correct", "total"))
            found[name] = figures(right, total, len(total[-2]))
    return found


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):5.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--cifar", action="store_true", help="CIFAR-100 at the budget of bench.toml")
    arguments.add_argument("--root", help="folder of cifar-100-python")
    arguments.add_argument("--start", nargs="+", default=[], help="runs of bench.py, one for each seed: take their training")
    arguments.add_argument("--precision", default="32-true", help="on CIFAR-100: 32-true or bf16-mixed")
    arguments.add_argument("--quick", action="store_true")
    chosen = arguments.parse_args()
    if chosen.root:
        os.environ["AMGC_DATA"] = chosen.root
    preset, seeds, ldc = "digits", [0, 1, 2], LDC
    if chosen.cifar:
        preset, seeds, ldc = str(Path(__file__).with_name("bench.toml")), [1993], {}
        seeds = [load_run(start).config["seed"] for start in chosen.start] or seeds
        Many.chosen = {name: row for name, row in (ROWS | CONTROLS).items() if name != "adc"}
    short = {"first": {"epochs": 1}, "later": {"epochs": 1}} if chosen.quick else {}
    torch.set_num_threads(torch.get_num_threads() if chosen.cifar else 1)
    with kept("compensation_cifar" if chosen.cifar else "compensation"):
        rows = [
            measured(preset, seed, short, ldc, start=start, precision=chosen.precision)
            for seed, start in list(zip_longest(seeds, chosen.start))[: 1 if chosen.quick else None]
        ]
        print(f"{Path(preset).stem}, {chosen.precision}, seeds {', '.join(map(str, seeds))}: LA, AIA, old, new in percent")
        for name in rows[0]:
            columns = zip(*(row[name] for row in rows), strict=True)
            print(f"  {name:37}  " + "  ".join(f"{spread(list(values)):12}" for values in columns).rstrip())


if __name__ == "__main__":
    main()
