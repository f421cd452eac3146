"""Compare our RanPAC with a plain version of the official algorithm: seconds, the chosen λ, and accuracy.

    python benchmarks/ranpac.py            # M = 5,000, three tasks of ten classes, several minutes
    python benchmarks/ranpac.py --quick    # M = 600; nothing is kept

Both get the same features and the same random weights, and choose λ on the same rows. The plain version follows the official
RanPAC.py: float32, whole Gram matrices, and one solve of M equations for each of 17 values of λ. With the development data the
features are those of a ResNet-18 on CIFAR-100; otherwise they are synthetic, and their accuracies say nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
import torch
from _report import features_file, kept

from amgc.data import load
from amgc.engine.session import Identity
from amgc.methods.contract import Task
from amgc.methods.ranpac import RanPAC
from amgc.methods.registry import find

Block = tuple[torch.Tensor, torch.Tensor]
RIDGES = [10.0**power for power in range(-8, 9)]


class Plain:
    """The official algorithm, written down plainly."""

    def __init__(self, random: torch.Tensor, classes: int) -> None:
        self.random, width = random.float(), random.shape[1]
        self.gram, self.sums = torch.zeros(width, width), torch.zeros(width, classes)

    def learn(self, features: torch.Tensor, labels: torch.Tensor) -> float:
        targets = torch.nn.functional.one_hot(labels, self.sums.shape[1]).float()
        hidden = (features @ self.random).relu()
        self.gram += hidden.T @ hidden
        self.sums += hidden.T @ targets
        count, unit = int(0.8 * len(hidden)), torch.eye(len(self.gram))
        gram, sums = hidden[:count].T @ hidden[:count], hidden[:count].T @ targets[:count]
        errors = []
        for ridge in RIDGES:
            weight = torch.linalg.solve(gram + ridge * unit, sums)
            errors.append(float((hidden[count:] @ weight - targets[count:]).square().mean()))
        ridge = RIDGES[int(np.argmin(errors))]
        self.weight = torch.linalg.solve(self.gram + ridge * unit, self.sums)
        return ridge

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        return (features @ self.random).relu() @ self.weight


def stream(tasks: int, each: int) -> tuple[list[Block], Block]:
    """Return the training features of each task of ten classes, and test features of all."""
    file = features_file()
    if file is None:
        draw = torch.Generator().manual_seed(0)
        means = torch.randn(10 * tasks, 512, generator=draw)
        labels = torch.arange(10 * tasks).repeat_interleave(each)
        rows, tests = ((means[labels] + 3 * torch.randn(len(labels), 512, generator=draw)).relu() for _ in range(2))
        train, test = (rows, labels), (tests, labels)
    else:
        data = load(f"npz:{file}")
        train, test = ((part.take(torch.arange(len(part))), part.labels) for part in (data.train, data.test))
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(train[1])))
    blocks = []
    for task in range(tasks):
        own = order[train[1][order] // 10 == task][: 10 * each]
        blocks.append((train[0][own].float(), train[1][own]))
    seen = test[1] < 10 * tasks
    return blocks, (test[0][seen].float(), test[1][seen])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--tasks", type=int, default=3)
    chosen = arguments.parse_args()
    width, tasks, each = (600, 2, 40) if chosen.quick else (5000, chosen.tasks, 500)
    with kept("ranpac"), torch.no_grad():
        blocks, (tests, labels) = stream(tasks, each)
        entry = find("ranpac")
        ours: RanPAC = entry.kind(replace(entry.hyper, projections=width), Identity(512), torch.device("cpu"))  # type: ignore[assignment]
        ours.begin(Task(0, range(10)), torch.Generator().manual_seed(0))
        ours.expanded(blocks[0][0][:1])
        assert ours._random is not None
        plain, ratios = Plain(ours._random, 10 * tasks), []
        print(f"{'CIFAR-100, ResNet-18' if features_file() else 'synthetic'}, M = {width:,}: seconds and λ of each task")
        for index, (rows, known) in enumerate(blocks):
            ours.task = task = Task(index, range(10 * index, 10 * index + 10))
            # The last fifth in our order of the rows is held out; the plain version gets them in that order.
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(ours.seed + 1 + index))
            start = time.perf_counter()
            ours.end(task, [(rows, known)], torch.Generator())
            middle = time.perf_counter()
            ridge = plain.learn(rows[order], known[order])
            end = time.perf_counter()
            ratios.append((end - middle) / (middle - start))
            mine, theirs = f"{middle - start:6.2f} s  λ {ours.ridge:g}", f"{end - middle:6.2f} s  λ {ridge:g}"
            print(f"  task {index + 1}   ours {mine}   plain {theirs}   ratio {ratios[-1]:.2f}")
        right = [float((made.scores(tests).argmax(1) == labels).double().mean()) for made in (ours, plain)]
        print(f"  accuracy   ours {100 * right[0]:.2f}   plain {100 * right[1]:.2f}")
        print(f"  ratio   {statistics.median(ratios):.2f}   ({min(ratios):.2f} to {max(ratios):.2f}; goal: 3)")


if __name__ == "__main__":
    main()
