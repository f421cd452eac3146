"""Measure how far the features of old classes have drifted from their stored statistics at the end of a run.

    python benchmarks/drift.py RUN…      # finished runs of AMGC or its ablations on CIFAR-100; $AMGC_DATA has its files

For each run, the mean over the old classes of two numbers: the variance of their test features in the final network, relative
to the stored variance (median over features; VE assumes 1 + λ = 1.4), and the distance of the mean from the stored mean, in
stored standard deviations (root mean square over features). Then the effect of enlarging variances under this drift: the last
accuracy of the head that minimises the loss for the stored statistics, for several λ. It depends on no steps or learning rates.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from _report import kept

from amgc.core.solver import solve_head
from amgc.data import load
from amgc.engine.config import read_config
from amgc.engine.session import Session
from amgc.engine.watch import Watch

MARGINS = (0.0, 0.1, 0.2, 0.4, 1.0)


def drift(folder: Path) -> str:
    """Return the variance ratio, the shift of the mean, and the last accuracy of exact heads."""
    config = read_config(folder, {})
    session = Session(config, folder, Watch(), load(config.data, **config.data_options))
    session.checkpoints.restore()
    last = len(session.stream) - 1
    images, new = session.stream.test(last), session.stream.classes(last)
    features, statistics = session.features.extract_all(images).double(), session.method.statistics
    ratios, shifts = [], []
    for label in range(new.start):
        row = statistics.index(label)
        variance = statistics.covariances.variances()[row].double()
        own = features[images.labels == label]
        alive = variance > 1e-8
        ratios.append(float((own.var(0)[alive] / variance[alive]).median()))
        shifts.append(float(((own.mean(0) - statistics.mean[row])[alive].square() / variance[alive]).mean().sqrt()))
    row_of = torch.tensor([statistics.index(label) for label in range(new.stop)])
    shown = f"{sum(ratios) / len(ratios):5.2f} {sum(shifts) / len(shifts):5.2f}  "
    for balance in ("per_class", "two_means"):
        for margin in MARGINS:
            head = solve_head(statistics, margin=margin, new=new, balance=balance, tolerance=1e-4)
            scores = features @ head.weight[row_of].T + head.bias[row_of]
            shown += f" {100 * float((scores.argmax(1) == images.labels).double().mean()):5.1f}"
        shown += "  "
    return shown


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("runs", nargs="+", type=Path)
    runs = arguments.parse_args().runs
    with kept("drift"), torch.no_grad():
        print("run: variance now / remembered; shift of the mean; LA of the exact head, every class equal, then two means,")
        print(f"     each for λ = {', '.join(f'{margin:g}' for margin in MARGINS)}")
        for folder in runs:
            print(f"  {folder.name:30} {drift(folder)}")


if __name__ == "__main__":
    main()
