"""How far old classes' features have moved by the end of a run from the statistics that are remembered of them.

    python benchmarks/drift.py RUN…      # finished runs of AMGC or its ablations on CIFAR-100; $AMGC_DATA has its files

Per run, the mean over the old classes of: the variance of their test images' features by the final network over the remembered
one (median over features; VE assumes 1 + λ = 1.4), and the distance of the mean
from the remembered one in remembered standard deviations (root mean square over features).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from _report import kept

from amgc.data import load
from amgc.engine.run import read_config
from amgc.engine.session import Session
from amgc.engine.watch import Watch


def drift(folder: Path) -> tuple[float, float]:
    """Variance ratio and shift of the mean."""
    config = read_config(folder, {})
    session = Session(config, folder, Watch(), load(config.data, **config.data_options))
    session.resume()
    last = len(session.stream) - 1
    images = session.stream.test(last)
    features, statistics = session.frozen_features(images).double(), session.method.statistics
    ratios, shifts = [], []
    for label in range(session.stream.classes(last).start):
        row = statistics.index(label)
        variance = statistics.covariances.variances()[row].double()
        own = features[images.labels == label]
        alive = variance > 1e-8
        ratios.append(float((own.var(0)[alive] / variance[alive]).median()))
        shifts.append(float(((own.mean(0) - statistics.mean[row])[alive].square() / variance[alive]).mean().sqrt()))
    return sum(ratios) / len(ratios), sum(shifts) / len(shifts)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("runs", nargs="+", type=Path)
    runs = arguments.parse_args().runs
    with kept("drift"), torch.no_grad():
        print("run: variance of old classes' test features now / remembered; shift of the mean, in deviations")
        for folder in runs:
            ratio, shift = drift(folder)
            print(f"  {folder.name:34} {ratio:6.2f} {shift:6.2f}")


if __name__ == "__main__":
    main()
