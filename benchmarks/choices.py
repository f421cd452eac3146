"""Measure each default of `patches`, one change at a time, on held-out training images of CIFAR-100.

    python benchmarks/choices.py --root DATA  # half an hour on two cores
    python benchmarks/choices.py --quick      # digits, seconds; nothing is kept

Filters from the training images of the first ten classes (seed 1993), statistics from 250 images of each of the 100 classes,
the closed form, and the accuracy on 50 other training images of each class. No test image is used. 400 filters unless the row
says otherwise.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any
from unittest import mock

import torch
from _report import kept

from amgc import ClassStatistics, solve_head
from amgc.data import Images, class_order, load
from amgc.features import build
from amgc.features.extractor import Extractor

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
    "grid of 4, 4 components": {"grid": 4, "components": 4},
    "grid of 4, 8 components": {"grid": 4, "components": 8},
    "800 filters, grid of 4, 4 components": {"filters": 800, "sizes": (4, 6), "grid": 4, "components": 4},
    "1600 filters, grid of 4, 2 components": {"filters": 1600, "sizes": (4, 6), "grid": 4, "components": 2},
    "1600 filters, grid of 4, 4 components": {"filters": 1600, "sizes": (4, 6), "grid": 4, "components": 4},
}
TOLERANCES = (0.0, 0.003, 0.01, 0.03)  # of leave-one-out: the smallest ridge whose quality is within this share of the best


def split(train: Images, each: int, held: int, classes: int = 100) -> tuple[Images, Images]:
    """Return, for each class in order of arrival, `held` images for evaluation and `each` others for learning."""
    order = torch.tensor(class_order(classes, 1993))
    label = torch.empty_like(order).scatter_(0, order, torch.arange(classes))
    drawing = torch.Generator().manual_seed(0)
    rows = torch.stack([
        own[torch.randperm(len(own), generator=drawing)[: held + each]]
        for own in ((train.labels == old).nonzero().squeeze(1) for old in order.tolist())
    ])  # fmt: skip
    return tuple(train.subset(part.flatten(), label[train.labels[part.flatten()]]) for part in (rows[:, held:], rows[:, :held]))


def fitted(
    options: dict[str, Any], learned: Images, kind: str = "patches", known: int = 10
) -> tuple[Extractor, ClassStatistics]:
    """Return an extractor fitted on the first classes, and the statistics of all."""
    network = build(kind, image_shape=learned.shape, **({"filters": 400} | options))
    first = learned.subset((learned.labels < known).nonzero().squeeze(1))
    network.fit(first, generator=torch.Generator().manual_seed(1993))
    statistics = ClassStatistics(network.dim, "shared")
    for rows in torch.arange(len(learned)).split(1000):
        statistics.update(network(learned.take(rows).float()), learned.labels[rows])
    return network, statistics


def accuracy(network: Extractor, statistics: ClassStatistics, judged: Images, ridge: str | torch.Tensor = "auto") -> float:
    """Return the accuracy in percent."""
    head = solve_head(statistics, margin=0.0, ridge=ridge)  # type: ignore[arg-type]
    order = [statistics.index(label) for label in range(len(statistics))]
    right = 0
    for rows in torch.arange(len(judged)).split(1000):
        scores = network(judged.take(rows).float()) @ head.weight[order].float().T + head.bias[order].float()
        right += int((scores.argmax(1) == judged.labels[rows]).sum())
    return 100 * right / len(judged)


def ridges(options: dict[str, Any], learned: Images, judged: Images) -> None:
    """Print the accuracy with other ridges than the default, on the features of the first variant."""
    network, statistics = fitted(options, learned)
    for tolerance in TOLERANCES:
        with mock.patch("amgc.core.diagonal_loading.WITHIN", tolerance):
            print(f"{f'leave-one-out within {tolerance:.1%}':40} {accuracy(network, statistics, judged):5.1f}")
    with mock.patch("amgc.core.shrinkage.separating_level", lambda statistics: statistics.shared().variances):
        print(f"{'a ridge in proportion to the variances':40} {accuracy(network, statistics, judged):5.1f}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    arguments.add_argument("--quick", action="store_true", help="digits with 20 filters, and nothing is kept")
    chosen = arguments.parse_args()
    if chosen.quick:
        learned, judged = split(load("digits").train, each=60, held=40, classes=10)
        variants = {"the defaults": {"filters": 20}, "2 components": {"filters": 20, "components": 2}}
    else:
        learned, judged = split(load("cifar100", root=chosen.root).train, each=250, held=50)
        variants = VARIANTS
    with kept("choices"), torch.no_grad():
        print(f"accuracy on {len(judged):,} held-out images, %, of {len(learned):,} learned from (± 0.7)\n")
        for name, options in variants.items():
            start = time.perf_counter()
            network, statistics = fitted(options, learned)
            found = accuracy(network, statistics, judged)
            print(f"{name:40} {found:5.1f}   {network.dim:6,} features   {time.perf_counter() - start:5.0f} s")
        ridges(next(iter(variants.values())), learned, judged)


if __name__ == "__main__":
    main()
