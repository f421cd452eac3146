"""Measure one convex solve instead of 200 epochs: time, accuracy and storage.

    python benchmarks/solve.py              # everything, about half an hour
    python benchmarks/solve.py --only time  # or: table, storage
    python benchmarks/solve.py --quick      # synthetic statistics, seconds

Features: a ResNet-18 trained on CIFAR-100's first task, all 100 classes in ten tasks (development data; without it, synthetic
features of the same shape, whose accuracies say nothing about CIFAR-100).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from _report import features_file, kept
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

from amgc import AMGCClassifier, ClassStatistics, Head, distribution_loss, enlarge, solve_head
from amgc.core.solver import balanced

TASKS = 10
EPOCHS, STEPS, RATE, MOMENTUM = 200, 40, 5e-3, 0.9  # the paper's; momentum, which it does not mention, helps SGD


class Stream:
    """Features with labels 0..C-1 in order of arrival, C / TASKS classes per task."""

    def __init__(self, train_x, train_y, test_x, test_y) -> None:
        self.train_x, self.train_y, self.test_x, self.test_y = train_x, train_y, test_x, test_y
        self.size = (int(train_y.max()) + 1) // TASKS

    def train(self, task: int):
        now = self.train_y // self.size == task
        return self.train_x[now], self.train_y[now]

    def test(self, task: int):
        seen = self.test_y < (task + 1) * self.size
        return self.test_x[seen], self.test_y[seen]


def load(quick: bool) -> Stream:
    file = None if quick else features_file()
    if file:
        data = np.load(file)
        position = np.argsort(data["class_order"])
        train_x, test_x = (data[name].astype(np.float32) * data["scale"] for name in ("train_x", "test_x"))
        print(f"features: {file.name}, {train_x.shape[1]} dimensions, real")
        return Stream(train_x, position[data["train_y"]], test_x, position[data["test_y"]])
    classes, dim, each = (20, 12, 30) if quick else (100, 512, 500)
    print(f"features: synthetic, {classes} classes, {dim} dimensions")
    rng = np.random.default_rng(0)
    mean = rng.standard_normal((classes, dim)) * 0.35
    mix = rng.standard_normal((classes, dim, dim)) * 0.3 / dim**0.5 + np.eye(dim)
    draw = lambda count: (  # noqa: E731
        np.concatenate([mean[k] + rng.standard_normal((count, dim)) @ mix[k] for k in range(classes)]).astype(np.float32),
        np.repeat(np.arange(classes), count),
    )
    return Stream(*draw(each), *draw(100))


# ---- time ------------------------------------------------------------------------------------------------------------


def timing(stream: Stream, quick: bool) -> None:
    print("\n== time: solve_head(margin 0.4, every class equal) after each task, to a relative gap of 1e-6")
    print("  task  classes   from the closed form        warm, from the task before")
    statistics = ClassStatistics(stream.train_x.shape[1])
    before: Head | None = None
    for task in range(TASKS):
        statistics.update(*stream.train(task))
        new = list(range(task * stream.size, (task + 1) * stream.size))
        cold, cold_time = timed(lambda new=new: solve_head(statistics, new=new))
        warm, warm_time = timed(lambda new=new, start=before: solve_head(statistics, new=new, start=start))
        before = warm
        print(
            f"  {task + 1:4d} {len(statistics):8d}   {cold_time:6.2f} s {cold.iterations:4d} iterations"
            f"    {warm_time:6.2f} s {warm.iterations:4d} iterations   gap {warm.gap / warm.loss:.0e}",
        )
    tight = solve_head(statistics, new=new, start=before, tolerance=1e-9)
    print(
        f"  last task, true relative gap of the warm solve: {(warm.loss - tight.loss) / tight.loss:.1e}   (floor: 6 s at 1e-6)"
    )

    old = ClassStatistics(stream.train_x.shape[1])
    for task in range(TASKS - 1):
        old.update(*stream.train(task))
    start = solve_head(old, new=list(range((TASKS - 2) * stream.size, (TASKS - 1) * stream.size)))
    sgd(statistics, new, start, tight.loss, cold_time, 200 if quick else EPOCHS * STEPS)


def timed(job: Callable[[], Head]) -> tuple[Head, float]:
    start = time.perf_counter()
    return job(), time.perf_counter() - start


def sgd(statistics: ClassStatistics, new: list[int], start: Head, best: float, solved: float, steps: int) -> None:
    """Train the head of the last task as in the paper, with our loss, from the head of the previous task."""
    count, dim = statistics.mean.shape
    margin = torch.full((count,), 0.4)
    margin[new] = 0.0
    covariances = enlarge(statistics.covariances, margin)
    is_new = torch.zeros(count, dtype=torch.bool)
    is_new[new] = True
    share = balanced(is_new, "per_class").float()
    centre = start.weight @ statistics.mean.mean(0)
    mean = (statistics.mean - statistics.mean.mean(0)).float()
    torch.manual_seed(0)
    weight, bias = 0.01 * torch.randn(count, dim), torch.zeros(count)
    weight[: len(start.weight)], bias[: len(start.bias)] = start.weight.float(), (start.bias + centre).float()
    weight.requires_grad_(), bias.requires_grad_()
    optimiser = torch.optim.SGD([weight, bias], lr=RATE, momentum=MOMENTUM)
    print(f"\n  the paper's SGD on the last task: {EPOCHS} epochs of {STEPS} steps, lr {RATE}, momentum {MOMENTUM}")
    print(f"  (the solve takes {solved:.2f} s)")
    marks = {steps * share // 100 for share in (1, 5, 10, 25, 50, 75, 100)}
    gaps, begin = [], time.perf_counter()
    for step in range(1, steps + 1):
        optimiser.zero_grad()
        loss = distribution_loss(weight, bias, mean, covariances, class_weight=share)
        loss.backward()
        optimiser.step()
        if step in marks:
            gaps.append((step, (float(loss.detach()) - best) / best))
            seconds = time.perf_counter() - begin
            print(f"    step {step:6d}  {seconds:7.1f} s   relative gap {gaps[-1][1]:.1e}", flush=True)
            if gaps[-1][1] < 1e-6:
                print(f"    reached after {seconds:.1f} s: the solve is {seconds / solved:.0f} x faster")
                return
    (a, gap_a), (b, gap_b) = gaps[-3], gaps[-1]
    # A power law through the second half of the run: the gap of first-order methods falls like one over the steps.
    power = max(np.log(gap_a / gap_b) / np.log(b / a), 1e-3)
    needed = seconds * (gap_b / 1e-6) ** (1 / power)
    print(f"    not reached in {steps} steps, which take {seconds / solved:.0f} x the time of the solve;")
    print(f"    to reach 1e-6, extrapolated by the power law of the gap (exponent {power:.2f}): {needed:.2g} s,")
    print(f"    {needed / solved:.2g} x the time of the solve   (floor 100)")


# ---- accuracy --------------------------------------------------------------------------------------------------------


def incremental(stream: Stream, learn: Callable[[int], Callable[[np.ndarray], np.ndarray]]) -> tuple[float, float]:
    """Return LA and AIA in percent. `learn(task)` returns the predictor after that task."""
    accuracies = []
    for task in range(TASKS):
        predict = learn(task)
        x, y = stream.test(task)
        accuracies.append(100 * float((predict(x) == y).mean()))
    return accuracies[-1], float(np.mean(accuracies))


def ours(stream: Stream, **parameters) -> tuple[float, float]:
    classifier = AMGCClassifier(**parameters)
    return incremental(stream, lambda task: classifier.partial_fit(*stream.train(task)).predict)


def refitted(stream: Stream, make) -> tuple[float, float]:
    """Return LA and AIA of a scikit-learn classifier that is refitted to all data seen so far, at every task."""

    def learn(task: int):
        seen = stream.train_y < (task + 1) * stream.size
        return make().fit(stream.train_x[seen], stream.train_y[seen]).predict

    return incremental(stream, learn)


def table(stream: Stream, quick: bool) -> None:
    print("\n== accuracy in percent: LA (all seen classes, last task) and AIA (mean over the tasks)")
    print("  scikit-learn, refitted on all seen data")
    for name, make in {
        "NCM": NearestCentroid,
        "LDA": LinearDiscriminantAnalysis,
        "LDA, lsqr, automatic shrinkage": lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        "QDA, shrinkage 0.1": lambda: QuadraticDiscriminantAnalysis(solver="eigen", shrinkage=0.1),
    }.items():
        row(name, *refitted(stream, make))
    print("  AMGCClassifier, defaults (shrinkage chosen from the statistics)")
    for form in ("full", "lowrank", "shared", "diagonal"):
        row(f"{form}, margin 0", *ours(stream, covariance=form))
    for margin in (0.1, 0.4):
        row(f"full, margin {margin}", *ours(stream, margin=margin))
    print("  as in the paper: statistics as they are, no shrinkage")
    for form in ("full", "lowrank", "shared", "diagonal"):
        for balance in ("per_class",) if quick else ("per_class", "two_means"):
            for margin in (0.0, 0.1, 0.4, 1.0) if not quick else (0.4,):
                score = ours(stream, covariance=form, balance=balance, margin=margin, shrinkage=(0.0, 0.0))
                row(f"{form}, {balance}, margin {margin}", *score)


def row(name: str, la: float, aia: float) -> None:
    print(f"    {name:40s} LA {la:5.1f}   AIA {aia:5.1f}", flush=True)


# ---- storage ---------------------------------------------------------------------------------------------------------


def storage(stream: Stream, quick: bool) -> None:
    print("\n== storage: bytes kept per class, as saved, and LA with the default shrinkage")
    full = 0.0
    forms = [
        ("full", 1),
        *(("lowrank", rank) for rank in ((8,) if quick else (8, 16, 32, 56, 64, 128))),
        ("shared", 1),
        ("diagonal", 1),
    ]
    for form, rank in forms:
        classifier = AMGCClassifier(covariance=form, rank=min(rank, stream.train_x.shape[1])).fit(
            stream.train_x, stream.train_y
        )
        accuracy = 100 * classifier.score(stream.test_x, stream.test_y)
        full = full or accuracy
        size = classifier.statistics_.nbytes / len(classifier.classes_)
        name = f"{form}, rank {rank}" if form == "lowrank" else form
        print(f"  {name:20s} {size:10,.0f} bytes a class   LA {accuracy:5.2f}   {accuracy - full:+5.2f}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="synthetic statistics, seconds")
    arguments.add_argument("--only", choices=("time", "table", "storage"), help="one part only")
    options = arguments.parse_args()
    parts = {"time": timing, "table": table, "storage": storage}
    for name, part in parts.items():
        if options.only in (None, name):
            with kept(f"solve_{name}"):
                part(load(options.quick), options.quick)


if __name__ == "__main__":
    main()
