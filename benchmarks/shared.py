"""Measure a shared covariance in tens of thousands of dimensions: time, memory and shrinkage.

    python benchmarks/shared.py                # everything, about half an hour on two cores; 4 GB
    python benchmarks/shared.py --only gram    # or: solve, memory, shrinkage
    python benchmarks/shared.py --quick        # 100 dimensions and digits, seconds

gram: `ClassStatistics.update`, compared with the matrix products of the same triangle alone. solve: `solve_head`, compared with
the Cholesky factorisation alone. memory: the peak of a process that learns, solves, saves and loads. shrinkage: held-out
accuracy with the automatic choice, compared with the best of a grid that uses the test data.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from _report import Times, features_file, kept, side_by_side
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from amgc import AMGCClassifier, ClassStatistics, solve_head
from amgc.core import symmetric
from amgc.core.scatter import ROWS

DIM, CLASSES = 12_800, 100


def rows_of(count: int, dim: int) -> tuple[torch.Tensor, np.ndarray]:
    """Return correlated features of several classes, and their labels."""
    drawing = torch.Generator().manual_seed(0)
    labels = np.arange(count) % CLASSES
    features = torch.randn(count, dim, generator=drawing)
    features += torch.randn(count, 32, generator=drawing) @ torch.randn(32, dim, generator=drawing)
    features += 3 / dim**0.5 * torch.randn(CLASSES, dim, generator=drawing)[torch.from_numpy(labels)]
    return features, labels


def shown(times: Times, name: str) -> str:
    """Format the ratio to the bare job, by medians and by the fastest rounds. If they differ, the machine was not idle."""
    low, high = times.spread[name]
    ratios = f"{times[name] / times['bare']:.2f} x (fastest: {low / times.spread['bare'][0]:.2f} x)"
    return f"[{low:.2f}, {high:.2f}]   {ratios}"


def gram(dim: int, quick: bool) -> None:
    count = 2 * ROWS
    features, labels = rows_of(count, dim)
    matrix = torch.zeros(dim, dim)

    def bare() -> None:
        for rows in features.split(ROWS):
            for start in range(0, dim, symmetric.BLOCK):
                block = slice(start, start + symmetric.BLOCK)
                matrix[block, start:].addmm_(rows[:, block].T, rows[:, start:])

    def whole() -> None:
        for rows in features.split(ROWS):
            matrix.addmm_(rows.T, rows)

    def updated(size: int):
        statistics = ClassStatistics(dim, "shared")

        def job() -> None:
            for start in range(0, count, size):
                statistics.update(features[start : start + size], labels[start : start + size])
            _ = statistics.shared()  # nothing is left waiting

        return job

    jobs = {"bare": bare, "whole matrix": whole, "one call": updated(count), "calls of 500 rows": updated(500)}
    jobs["calls of 50 rows"] = updated(50)
    times = side_by_side(jobs, 1 if quick else 5)
    print(f"\n== accumulation: {count:,} rows, {CLASSES} classes in every call, {dim:,} dimensions, float32")
    speed = count * dim * (dim + 1) / times["bare"] / 1e9
    print(f"  bare products of the triangle      {times['bare']:7.2f} s   {shown(times, 'bare')}   {speed:.0f} GFLOP/s")
    for name in list(jobs)[1:]:
        print(f"  {name:34s} {times[name]:7.2f} s   {shown(times, name)}   asked for: at most 1.2 x, by calls of many rows")


def solving(dim: int, quick: bool) -> None:
    features, labels = rows_of(2 * ROWS, dim)
    statistics = ClassStatistics(dim, "shared").update(features, labels)
    covariance = statistics.shared()
    matrix = torch.zeros(dim, dim)

    def bare() -> None:
        symmetric.scaled_into(matrix, covariance.upper, covariance.variances.rsqrt() * covariance.keep**0.5)
        matrix.diagonal().fill_(1.5)
        assert symmetric.factorise(matrix)

    jobs = {
        "bare": bare,
        "solve_head, ridge='auto'": lambda: solve_head(statistics, margin=0.0, ridge="auto"),
        "the estimator's, with temperature": lambda: regularised(statistics),
    }
    times = side_by_side(jobs, 1 if quick else 5)
    print(f"\n== solve: {CLASSES} classes, {dim:,} dimensions, float32")
    speed = dim**3 / 3 / times["bare"] / 1e9
    print(f"  bare factorisation                 {times['bare']:7.2f} s   {shown(times, 'bare')}   {speed:.0f} GFLOP/s")
    for name in list(jobs)[1:]:
        print(f"  {name:34s} {times[name]:7.2f} s   {shown(times, name)}")
    head = solve_head(statistics, margin=0.0, ridge="auto")
    print(f"  gradient left: {head.gradient_norm:.1e} (loss {head.loss:.3g}), converged: {head.converged}")


def regularised(statistics: ClassStatistics) -> object:
    from amgc.core.regularised import solve_regularised

    every = torch.ones(len(statistics), dtype=torch.bool)
    return solve_regularised(statistics, is_new=every, margin=0.0, balance="per_class", shrinkage=None, standardize=True)


def peak() -> float:
    """Return the peak memory of this process in bytes. getrusage would include that of the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(float(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def learn(dim: int) -> None:
    """Learn, solve, save and load; `memory` runs this in a process of its own."""
    matrix, begin = 4 * dim * dim, peak()
    classifier = AMGCClassifier(covariance="shared")

    def say(what: str, start: float) -> None:
        print(f"  {what:34s} {time.perf_counter() - start:7.1f} s   peak {(peak() - begin) / matrix:.2f} matrices", flush=True)

    start = time.perf_counter()
    features, labels = rows_of(1000, dim)
    for _ in range(3):
        classifier.partial_fit(features.numpy(), labels)
    say("partial_fit, three times 1,000 rows", start)
    start = time.perf_counter()
    classifier.predict(features[:100].numpy())
    say("solve", start)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        classifier.save(Path(folder) / "model")
        say("save", start)
        before = classifier.predict(features[:100].numpy())
        del classifier
        start = time.perf_counter()
        classifier = AMGCClassifier.load(Path(folder) / "model")
        say(f"load ({(Path(folder) / 'model').stat().st_size / 1e6:,.0f} MB)", start)
    assert (classifier.predict(features[:100].numpy()) == before).all()


def memory(dim: int, quick: bool) -> None:
    print(
        f"\n== memory beyond the start, in matrices of {4 * dim * dim / 1e6:,.0f} MB: {dim:,} dimensions, float32", flush=True
    )
    ran = subprocess.run([sys.executable, __file__, "--learn", str(dim)], capture_output=True, text=True, check=True)
    print(ran.stdout, end="")


def feature_sets(quick: bool):
    """Yield names with features and labels for learning and for testing."""

    def lifted(dim: int, *parts: np.ndarray) -> list[np.ndarray]:
        rng = np.random.default_rng(1)
        centre, deviation = parts[0].mean(0), parts[0].std(0) + 1e-6
        weight = rng.standard_normal((parts[0].shape[1], dim)) / parts[0].shape[1] ** 0.5
        shift = rng.uniform(-1, 1, dim)
        return [np.maximum((part - centre) / deviation @ weight + shift, 0).astype(np.float32) for part in parts]

    def few(X, y, each: int):
        rng = np.random.default_rng(0)
        chosen = np.concatenate([rng.permutation(np.flatnonzero(y == label))[:each] for label in np.unique(y)])
        return X[chosen], y[chosen]

    x, test, y, test_y = train_test_split(*load_digits(return_X_y=True), test_size=0.5, random_state=0)
    yield "digits", x, y, test, test_y
    yield "digits, 20 a class", *few(x, y, 20), test, test_y
    for dim in (128,) if quick else (512, 4000):
        a, b = lifted(dim, x, test)
        yield f"digits, {dim} random ReLU", a, y, b, test_y
    if quick or not (file := features_file()):
        return
    data = np.load(file)
    x, test = (data[name].astype(np.float32) * data["scale"] for name in ("train_x", "test_x"))
    y, test_y = data["train_y"], data["test_y"]
    for each in (500, 100, 20):
        yield f"CIFAR-100, ResNet-18, {each} a class", *few(x, y, each), test, test_y
    a, b = lifted(4000, x, test)
    for each in (500, 100, 20):
        yield f"the same, 4000 random ReLU, {each}", *few(a, y, each), b, test_y


def shrinkage(dim: int, quick: bool) -> None:
    print("\n== shrinkage: held-out accuracy in percent, automatic beside the best of a grid that looks at the test data")
    for name, x, y, test, test_y in feature_sets(quick):
        classifier = AMGCClassifier(covariance="shared").fit(x, y)
        auto = 100 * classifier.score(test, test_y)
        scores = {}
        for share in (0.01, 0.1) if quick else (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.6):
            scores[share] = 100 * classifier.set_params(shrinkage=(0.0, share)).score(test, test_y)
        best = max(scores, key=lambda share: scores[share])
        shown = "  ".join(f"{share:g}: {score:.1f}" for share, score in scores.items())
        print(f"  {name:40s} auto {auto:.1f}   best {scores[best]:.1f}   {shown}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="100 dimensions and digits, to see that it runs")
    arguments.add_argument("--only", choices=("gram", "solve", "memory", "shrinkage"), help="one part only")
    arguments.add_argument("--dim", type=int, default=None, help=f"dimensions, default {DIM}")
    arguments.add_argument("--learn", type=int, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.learn:
        learn(options.learn)
        return
    dim = options.dim or (100 if options.quick else DIM)
    for name, part in {"gram": gram, "solve": solving, "memory": memory, "shrinkage": shrinkage}.items():
        if options.only in (None, name):
            with kept(f"shared_{name}"):
                part(dim, options.quick)


if __name__ == "__main__":
    main()
