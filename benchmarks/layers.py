"""Measure how the networks of `layers` are trained and averaged, one change at a time, on held-out images of CIFAR-100.

    python benchmarks/layers.py --root DATA    # an hour on two cores
    python benchmarks/layers.py --quick        # digits, seconds; nothing is kept

As `choices.py`: a network learns the training images of the first classes (seed 1993), and the closed form learns 250 images of
each of the 100 classes, with the features of the network and of 1,600 filters. No test image is used. Steps are as many as take
about the same time.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from _report import kept
from choices import accuracy, fitted, split

from amgc.data import load

OPTIONS = {"filters": 1600, "sizes": (4, 6), "grid": 4, "components": 4, "networks": 1, "steps": 1000}
# Options, and constants of `amgc.features.layers`.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the defaults": ({}, {}),
    "whole images": ({"steps": 540}, {"CROP": 1.0}),
    "crops of half of the side": ({"steps": 2000}, {"CROP": 0.5}),
    "no rotations": ({}, {"TURNS": 1}),
    "labels not smoothed": ({}, {"SMOOTHING": 0.0}),
    "other colours": ({}, {"JITTER": 0.4}),
    "all layers over the whole image": ({}, {"GRID": 1}),
    "a grid of 3": ({}, {"GRID": 3}),
    "features to the power of 1": ({}, {"POWER": 1.0}),
    "two networks": ({"networks": 2, "steps": 500}, {}),
    "four networks": ({"networks": 4, "steps": 250}, {}),
    "one network for twice as long": ({"steps": 2000}, {}),
    "a wider network": ({"widths": (96, 192, 384), "steps": 500}, {}),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    arguments.add_argument("--known", type=int, default=10, help="classes of task 1")
    arguments.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    arguments.add_argument("--quick", action="store_true", help="digits, a small network, and nothing is kept")
    chosen = arguments.parse_args()
    if chosen.quick:
        learned, judged = split(load("digits").train, each=60, held=40, classes=10)
        options: dict[str, Any] = {"filters": 10, "networks": 1, "steps": 5, "widths": (4, 8)}
        variants, known = {"the defaults": VARIANTS["the defaults"], "a grid of 3": VARIANTS["a grid of 3"]}, 5
    else:
        learned, judged = split(load("cifar100", root=chosen.root).train, each=250, held=50)
        options, variants, known = OPTIONS, {name: VARIANTS[name] for name in chosen.only}, chosen.known
    with kept("layers_choices"), torch.no_grad():
        print(
            f"accuracy on {len(judged):,} held-out images, %, of {len(learned):,} learned from (± 0.7); {known} classes known\n"
        )
        for name, (changed, constants) in variants.items():
            start = time.perf_counter()
            with ExitStack() as stack:
                for constant, value in constants.items():
                    stack.enter_context(mock.patch(f"amgc.features.layers.{constant}", value))
                network, statistics = fitted(options | changed, learned, "layers", known)
                found = accuracy(network, statistics, judged)
            print(f"{name:40} {found:5.1f}   {network.dim:6,} features   {time.perf_counter() - start:5.0f} s", flush=True)


if __name__ == "__main__":
    main()
