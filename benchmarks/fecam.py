"""Time the evaluation of FeCAM: our factors, computed once per class, compared with the official code and its ports.

    python benchmarks/fecam.py          # 5,000 rows, 100 classes, 512 features; three minutes
    python benchmarks/fecam.py --quick  # small, seconds

The official form (FeCAM models/base.py; PILOT and Avalanche do the same) computes at each evaluation, for each class, the
pseudo-inverse of its matrix in float64, and an N × N product of which only the diagonal is used. Both get the same matrices.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from _report import kept, side_by_side

from amgc.engine.session import Identity
from amgc.methods.contract import Task
from amgc.methods.fecam import FeCAM, FeCAMHyper

FLOOR = 10.0


def learned(classes: int, dim: int, each: int) -> FeCAM:
    """Return FeCAM after one task of skewed, correlated, non-negative features."""
    method = FeCAM(FeCAMHyper(), Identity(dim), torch.device("cpu"))
    method.task = Task(0, range(classes))
    drawing = torch.Generator().manual_seed(0)
    method.begin(method.task, drawing)
    mix = torch.eye(dim) + 0.5 * torch.randn(dim, dim, generator=drawing) / dim**0.5
    method.end(
        method.task,
        [
            (
                (torch.randn(each, dim, generator=drawing) @ mix + torch.rand(dim, generator=drawing)).relu(),
                torch.full((each,), label),
            )
            for label in range(classes)
        ],
        drawing,
    )
    return method


def peers(method: FeCAM, matrices: list[np.ndarray], rows: torch.Tensor) -> torch.Tensor:
    """Return the squared distances (N, K) as the official code computes them."""
    normalize = torch.nn.functional.normalize
    rows = normalize(method.transformed(rows))
    means = normalize(method.transformed(method.head.weight.detach()))
    distances = []
    for mean, matrix in zip(means, matrices, strict=True):
        away = rows - mean
        inverse = torch.from_numpy(np.linalg.pinv(matrix)).float()
        distances.append(torch.diag(away @ inverse @ away.T))
    return torch.stack(distances, 1)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="small, seconds")
    quick = arguments.parse_args().quick
    count, classes, dim, each, rounds = (1000, 5, 64, 60, 3) if quick else (5_000, 100, 512, 500, 1)
    with kept("fecam"):
        method = learned(classes, dim, each)
        rows = torch.rand(count, dim, generator=torch.Generator().manual_seed(1))
        matrices = [method.normalised(label).numpy() for label in range(classes)]
        print(f"evaluation of N = {count:,} rows, {classes} classes, d = {dim}; {each} training rows a class")

        def first() -> torch.Tensor:
            """Evaluate with all factors computed again. (After a task, a run computes only those of the new classes.)"""
            method._inverse.clear()
            return chunked()

        def chunked() -> torch.Tensor:
            return torch.cat([method.scores(part) for part in rows.split(4096)])  # the engine's chunks

        with torch.no_grad():
            difference = (-chunked() - peers(method, matrices, rows)).abs().max() / chunked().abs().max()
            jobs = {"peers": lambda: peers(method, matrices, rows), "ours, all factors anew": first, "ours": chunked}
            times = side_by_side(jobs, rounds)
        print(f"largest difference of the distances, relative to the largest distance: {difference:.1e}")
        for name, seconds in times.items():
            least, most = times.spread[name]
            ratio = "" if name == "peers" else f"   {times['peers'] / seconds:6.1f} x faster"
            print(f"  {name:24s} {seconds:8.3f} s  ({least:.3f} to {most:.3f}){ratio}", flush=True)
        if not quick:
            slowest = times["peers"] / times["ours, all factors anew"]
            print(f"floor {FLOOR:.0f} x, all factors anew: {'kept' if slowest >= FLOOR else 'MISSED'}")


if __name__ == "__main__":
    main()
