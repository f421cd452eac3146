"""Handwritten digits, two classes at a time, without keeping the old images.

    make run                      # or: python examples/digits.py
    python examples/digits.py --plot docs/digits.png

After each task three classifiers are tested on all digits seen so far: AMGC, which keeps a mean and a covariance per class;
logistic regression refitted on the new digits only, which forgets; and logistic regression on all the data of all tasks, which
no class-incremental learner may see.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from amgc import AMGCClassifier

TASKS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
LEARNERS = ("AMGC", "new only", "all data")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--plot", metavar="FILE", help="also draw the accuracies to this file (needs matplotlib)")
    plot = arguments.parse_args().plot

    start = time.perf_counter()
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    amgc = AMGCClassifier()
    curves: dict[str, list[float]] = {name: [] for name in LEARNERS}
    print("Learning handwritten digits two at a time. Accuracy on all digits seen so far, in percent:\n")
    print(f"  task  new digits  {'AMGC':>8s}  {'new only':>8s}  {'all data':>8s}")
    for number, task in enumerate(TASKS, 1):
        new, seen = np.isin(y, task), y <= task[-1]
        amgc.partial_fit(X[new], y[new])  # all that AMGC ever sees of this task's images
        learners = amgc, ordinary().fit(X[new], y[new]), ordinary().fit(X[seen], y[seen])
        tested = y_test <= task[-1]
        scores = [100 * learner.score(X_test[tested], y_test[tested]) for learner in learners]
        for name, score in zip(LEARNERS, scores, strict=True):
            curves[name].append(score)
        print(f"  {number:4d}  {task[0]:6d}, {task[1]}  " + "  ".join(f"{score:8.1f}" for score in scores))
    print("\n  LA   " + 11 * " " + "  ".join(f"{curve[-1]:8.1f}" for curve in curves.values()) + "   after the last task")
    print("  AIA  " + 11 * " " + "  ".join(f"{np.mean(curve):8.1f}" for curve in curves.values()) + "   mean over the tasks")
    kept, seconds = amgc.statistics_.nbytes / 1000, time.perf_counter() - start
    print(f"\nAMGC kept {kept:.0f} KB of means and covariances and none of the {len(X)} images. This took {seconds:.1f} s.")
    if plot:
        draw(curves, plot)


def ordinary() -> Pipeline:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))


def draw(curves: dict[str, list[float]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    styles = {"AMGC": ("#0b6e4f", "o-"), "new only": ("#c8553d", "s-"), "all data": ("#888888", "--")}
    labels = {
        "AMGC": "AMGC: keeps means and covariances",
        "new only": "refitted on the new digits: forgets",
        "all data": "sees all data of all tasks",
    }
    for name, curve in curves.items():
        colour, line = styles[name]
        axes.plot([2 * (i + 1) for i in range(len(curve))], curve, line, color=colour, label=labels[name], linewidth=2)
    axes.set(xlabel="digits learned, two at a time", ylabel="accuracy on all seen, %", ylim=(0, 103), xticks=range(2, 11, 2))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=150)
    print(f"The plot is in {path}.")


if __name__ == "__main__":
    main()
