"""Measure each default of `patches`, one change at a time, on held-out training images of CIFAR-100.

    python benchmarks/choices.py --root DATA  # a quarter of an hour on two cores

Filters from the training images of the first ten classes (seed 1993), statistics from 250 images of each of the 100 classes,
the closed form, and the accuracy on 50 other training images of each class. No test image is used. 400 filters unless the row
says otherwise.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
from _report import kept

from amgc import ClassStatistics, solve_head
from amgc.data import Images, class_order, load
from amgc.features import build
from amgc.features.patches import Patches

VARIANTS: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "not mirrored": {"mirror": False},
    "200 filters": {"filters": 200},
    "800 filters": {"filters": 800},
    "patches of 3": {"sizes": (3,)},
    "patches of 4": {"sizes": (4,)},
    "patches of 6": {"sizes": (6,)},
    "patches of 8": {"sizes": (8,)},
    "patches of 4 and 6": {"sizes": (4, 6)},
    "every second place": {"stride": 2},
    "grid of 1": {"grid": 1},
    "grid of 3": {"grid": 3},
    "threshold 0.1": {"threshold": 0.1},
    "threshold 0.25": {"threshold": 0.25},
    "threshold 0.75": {"threshold": 0.75},
    "power 0.5": {"power": 0.5},
    "power 1": {"power": 1.0},
    "whitening 0.01": {"whitening": 0.01},
    "whitening 1": {"whitening": 1.0},
    "filters drawn from a Gaussian": {"draw": "gaussian"},
}


def split(train: Images, each: int, held: int) -> tuple[Images, Images]:
    """Return, for each class in order of arrival, `held` images for evaluation and `each` others for learning."""
    order = torch.tensor(class_order(100, 1993))
    label = torch.empty_like(order).scatter_(0, order, torch.arange(100))
    drawing = torch.Generator().manual_seed(0)
    rows = torch.stack([
        own[torch.randperm(len(own), generator=drawing)[: held + each]]
        for own in ((train.labels == old).nonzero().squeeze(1) for old in order.tolist())
    ])  # fmt: skip
    return tuple(train.subset(part.flatten(), label[train.labels[part.flatten()]]) for part in (rows[:, held:], rows[:, :held]))


def accuracy(options: dict[str, Any], learned: Images, judged: Images) -> tuple[float, int]:
    """Return the accuracy in percent and the number of features."""
    network = build("patches", image_shape=learned.shape, **({"filters": 400} | options))
    assert isinstance(network, Patches)
    first = learned.subset((learned.labels < 10).nonzero().squeeze(1))
    network.fit(first, generator=torch.Generator().manual_seed(1993))
    statistics = ClassStatistics(network.dim, "shared")
    for rows in torch.arange(len(learned)).split(1000):
        statistics.update(network(learned.take(rows).float()), learned.labels[rows])
    head = solve_head(statistics, margin=0.0, ridge="auto")
    order = [statistics.index(label) for label in range(100)]
    right = 0
    for rows in torch.arange(len(judged)).split(1000):
        scores = network(judged.take(rows).float()) @ head.weight[order].float().T + head.bias[order].float()
        right += int((scores.argmax(1) == judged.labels[rows]).sum())
    return 100 * right / len(judged), network.dim


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    chosen = arguments.parse_args()
    learned, judged = split(load("cifar100", root=chosen.root).train, each=250, held=50)
    with kept("choices"), torch.no_grad():
        print(f"accuracy on {len(judged):,} held-out images, %, of {len(learned):,} learned from (± 0.7)\n")
        for name, options in VARIANTS.items():
            start = time.perf_counter()
            found, dim = accuracy(options, learned, judged)
            print(f"{name:32} {found:5.1f}   {dim:6,} features   {time.perf_counter() - start:5.0f} s")


if __name__ == "__main__":
    main()
