"""Photographs, 1 to all a class: classifiers on the same features, features, calibration, novelty, speed.

    python benchmarks/photos.py                    # minutes on two cores; the photos are development data
    python benchmarks/photos.py --cifar DATA       # with images of CIFAR-100
    python benchmarks/photos.py --photos FOLDER    # FOLDER/flowers/train/CLASS/*.jpg, FOLDER/flowers/test, FOLDER/leaves, …
    python benchmarks/photos.py --only constants
    python benchmarks/photos.py --quick            # generated images, to check that it runs

Photos are drawn from train/; figures are of test/, as mean ± standard deviation over five draws ("all" is one draw).
heads: our classifier as in a model (with lite0's background for its default features), logistic regression (C, and raw or
standardised features, by cross-validation), scikit-learn's LDA with automatic shrinkage, and the nearest class mean by cosine,
on the default features of lite0 and on the 1,280 that ImageNet's classifier uses. features: patches, and lite0 joined with
patches. calibration: also with shuffled labels and on noise. novelty: each class left out in turn, and images of other kinds
(CIFAR-100 if --cifar or $AMGC_DATA names its folder). bounds: what chance leaves of the calibration error, and what would be
rejected with a covariance of more photos. speed: files to a model. constants: what those of `amgc.core.calibration` and
`amgc.core.typicality` stand for, on photos of train/ and other training data, without background.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _photo_scores import NEIGHBOURS, REJECT, Figures, bounds, constants, drawn, far, features, heads, near, noise, wrong_labels
from _photo_sets import DEFAULT, HALVES, SETS, TOP, Array, Encoder, Half, Photos, draw_sets, files, others
from _report import features_file, kept, shared_data
from joblib import Parallel, delayed
from sklearn.datasets import load_digits

from amgc.core import calibration, typicality
from amgc.data.image_files import available_cores
from amgc.model import Model

PARTS = ("heads", "features", "calibration", "novelty", "bounds", "speed", "constants")
COUNTS: tuple[int | None, ...] = (1, 2, 5, 10, 20, 50, None)  # photos a class; None: all
DRAWS = 5
CALIBRATION = {"accuracy, %": ("accuracy", 1), "mean stated probability, %": ("stated", 1), "ECE": ("ECE", 3)}


def together(job: Callable[..., Figures], calls: Sequence[tuple[Any, ...]]) -> list[Figures]:
    """Run many calls in as many processes as there are cores, few in this one. Each has one thread: the matrices are small."""
    return list(Parallel(n_jobs=available_cores() if len(calls) > 8 else 1)(delayed(job)(*call) for call in calls))


def by_draw(counts: Sequence[int | None], draws: int) -> list[tuple[int | None, int]]:
    return [(count, seed) for count in counts for seed in range(1 if count is None else draws)]


def heading(title: str, counts: Sequence[int | None], beside: str = "photos a class") -> None:
    print(f"\n{title}")
    print(f"  {beside:42s}" + "".join(f"{shown(count):>18s}" for count in counts), flush=True)


def shown(count: int | None) -> str:
    return "all" if count is None else str(count)


def row(name: str, columns: Sequence[Sequence[float]], digits: int = 1) -> None:
    """Print mean ± standard deviation of each column, "-" if it is empty."""
    cells = []
    for values in columns:
        text = "-" if not len(values) else f"{np.mean(values):.{digits}f}"
        cells.append(text + (f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""))
    print(f"  {name:42s}" + "".join(f"{cell:>18s}" for cell in cells), flush=True)


def paired(name: str, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> None:
    """Print mean and standard error of the differences, in points."""
    cells = []
    for one, other in zip(ours, theirs, strict=True):
        apart = np.subtract(one, other) if other else np.empty(0)
        error = f" ± {apart.std(ddof=1) / len(apart) ** 0.5:.1f}" if len(apart) > 1 else ""
        cells.append(f"{apart.mean():+.1f}{error}" if len(apart) else "-")
    print(f"  {name:42s}" + "".join(f"{cell:>18s}" for cell in cells), flush=True)


class Table:
    """Figures by number of photos, and rows of them."""

    def __init__(self, calls: Sequence[tuple[int | None, int]], found: Sequence[Figures], counts: Sequence[int | None]) -> None:
        self.calls, self.found, self.counts = calls, found, counts

    def of(self, name: str, counts: Sequence[int | None] = ()) -> list[list[float]]:
        """Return the figures of a name for each number of photos, averaged over calls of the same draw."""
        columns = []
        for count in counts or self.counts:
            draws: dict[int, list[float]] = {}
            for (own, seed, *_), figures in zip(self.calls, self.found, strict=True):
                if own == count and name in figures:
                    draws.setdefault(seed, []).append(figures[name])
            columns.append([float(np.mean(values)) for values in draws.values()])
        return columns


def show_heads(sets: Sequence[Photos], counts: Sequence[int | None], draws: int) -> None:
    calls = by_draw(counts, draws)
    differences = []
    for photos in sets:
        for kind in (DEFAULT, TOP):
            found = together(heads, [(photos, kind, *call) for call in calls])
            table = Table(calls, found, counts)
            heading(f"heads, {photos.name}, {kind} of lite0: accuracy, %", counts)
            rivals = ("logistic regression", "shrunk LDA", "cosine to the class means")
            for name in ("ours", *(["ours, no background"] if kind == DEFAULT else []), *rivals):
                row(name, table.of(name))
            heading(
                f"differences, {photos.name}, {kind} of lite0: ours less the other, same draws; mean ± standard error", counts
            )
            for name in rivals:
                paired(name, table.of("ours"), table.of(name))
            heading(f"calibration, {photos.name}, {kind} of lite0", counts)
            for label, (name, digits) in CALIBRATION.items():
                row(label, table.of("ours" if name == "accuracy" else name), digits)
            differences.append(max(figures["difference"] for figures in found))
    print("\ncalibration, taught at once and class by class")
    print(f"  largest difference of a probability: {max(differences):.1e}", flush=True)


def show_features(sets: Sequence[Photos], counts: Sequence[int | None], draws: int) -> None:
    calls = by_draw(counts, draws)
    for photos in sets:
        table = Table(calls, together(features, [(photos, *call) for call in calls]), counts)
        heading(f"features, {photos.name}: accuracy of ours, %", counts)
        for name in ("patches", "lite0 and patches"):
            row(name, table.of(name))


def show_wrong_labels(sets: Sequence[Photos], counts: Sequence[int | None], draws: int) -> None:
    calls = by_draw([count for count in counts if count != 1], draws)
    for photos in sets:
        table = Table(calls, together(wrong_labels, [(photos, DEFAULT, *call) for call in calls]), counts)
        heading(f"calibration, {photos.name}, shuffled labels, {DEFAULT} of lite0; {photos.classes} classes", counts)
        for label, (name, digits) in CALIBRATION.items():
            row(label, table.of(name), digits)
    found = together(noise, [(seed,) for seed in range(draws)])
    print("\ncalibration, two classes of the same noise, 20 each, 1,280 features")
    for label, (name, digits) in CALIBRATION.items():
        row(label, [[figures[name] for figures in found]], digits)


def show_novelty(sets: Sequence[Photos], strangers: dict[str, Array], counts: Sequence[int | None], draws: int) -> None:
    counts = [count for count in counts if count is None or count >= 5]
    calls = by_draw(counts, draws)
    for photos in sets:
        each = [(*call, label) for call in calls for label in range(photos.classes)]
        table = Table(each, together(near, [(photos, *call) for call in each]), counts)
        heading(f"novelty, {photos.name}, each class left out in turn: area under the ROC curve", counts)
        for name in table.found[0]:
            if name != "rejected":
                row(name, table.of(name), digits=3)
        heading(f"novelty, {photos.name}, each class left out in turn: rejected at {REJECT}, %", counts)
        row("photos of the class that was left out", table.of("rejected"))
    for photos in sets:
        shown_to = strangers | {other.name: other.test.features[DEFAULT] for other in sets if other.name != photos.name}
        table = Table(calls, together(far, [(photos, shown_to, *call) for call in calls]), counts)
        for at, what in (
            ("nominal", f"at {REJECT}"),
            ("threshold", "at the threshold below"),
            ("neighbours", f"by {NEIGHBOURS} nearest neighbours, which keep samples, at such a threshold"),
        ):
            heading(f"novelty, {photos.name}, other images, rejected {what}, %", counts)
            row("test photos of known classes", table.of(f"known, {at}"))
            for name in shown_to:
                row(name, table.of(f"{name}, {at}"))
            if at == "threshold":
                row("threshold: rejects 5 % of held-out train", table.of("threshold"), digits=4)


def show_bounds(sets: Sequence[Photos], counts: Sequence[int | None], draws: int) -> None:
    counts = [count for count in counts if count is not None and count >= (5 if draws > 1 else 1)]
    calls = by_draw(counts, draws)
    for photos, other in zip(sets, reversed(sets), strict=True):
        strangers = other.test.features[DEFAULT]
        table = Table(calls, together(bounds, [(photos, strangers, *call) for call in calls]), counts)
        heading(f"bounds, {photos.name}: calibration error", counts)
        row("ECE", table.of("ECE"), digits=3)
        row("if every stated probability were true", table.of("true"), digits=3)
        row("at the best temperature for these photos", table.of("best"), digits=3)
        heading(f"bounds, {photos.name}: {other.name} rejected by the distance in stage 5 that rejects 5 %, %", counts)
        row("covariance of the drawn photos", table.of("few"))
        row("covariance of all photos of train", table.of("all"))


def show_speed(folder: Path, load: float) -> None:
    """Print photos a second from files, in this process with torch's threads."""
    busy = f"; busy machine, load {load:.1f}" if load > 1 else ""
    print(f"\nspeed, photos a second of a model with lite0, {torch.get_num_threads()} threads, decoding included{busy}")
    for name in SETS:
        halves = {half: {one.name: files(one) for one in sorted((folder / name / half).iterdir())} for half in HALVES}
        with tempfile.TemporaryDirectory() as place:
            model = Model.create(Path(place) / "model", "lite0")
            start = time.perf_counter()
            learned = model.learn_all(halves["train"])
            middle = time.perf_counter()
            count = len(model.predict([path for own in halves["test"].values() for path in own]))
            end = time.perf_counter()
        print(f"  {name}: learn {learned.images / (middle - start):.1f}, predict {count / (end - middle):.1f}", flush=True)


def show_constants(sets: Sequence[Photos], draws: int) -> None:
    """Print them for training data of several kinds."""
    data = {photos.name: photos.train for photos in sets}
    digits, labels = load_digits(return_X_y=True)
    data["digits, pixels"] = Half({DEFAULT: digits}, labels)
    if (file := features_file()) and draws > 1:
        stored = np.load(file)
        chosen = np.flatnonzero(np.isin(stored["train_y"], stored["class_order"][10:30]))  # not those of its training
        chosen = chosen[drawn(stored["train_y"][chosen], 120, 0)]
        data["CIFAR-100, ResNet-18"] = Half(
            {DEFAULT: stored["train_x"][chosen].astype(np.float32) * stored["scale"]}, stored["train_y"][chosen]
        )
    counts = (1, 2, 5, 10, 20, 50) if draws > 1 else (1, 5)
    calls = [(count, seed) for count in counts for seed in range(draws)]
    tables = {}
    for name, half in data.items():
        fitting = [call for call in calls if call[0] < np.bincount(half.labels)[np.unique(half.labels)].min()]
        found = together(constants, [(half.features[DEFAULT], half.labels, *call) for call in fitting])
        tables[name] = Table(fitting, found, counts)
    named = {
        "temperature": (f"best temperature on held-out samples over that of draws (REAL, {calibration.REAL})", True),
        "lead": (
            f"lead of class means in best temperatures (UNKNOWN_LEAD, {calibration.UNKNOWN_LEAD}; LEAD, {calibration.LEAD})",
            True,
        ),
        "noise": (f"noise of the lead, in units of one sample (NOISE, {calibration.NOISE})", True),
        "spread": (f"sd of log squared distances beyond a Gaussian (REAL, {typicality.REAL})", False),
        "offset": ("mean of log squared distances less the expected one", False),
    }
    for key, (title, ratio) in named.items():
        own = [count for count in counts if count > {"lead": 0, "noise": 1}.get(key, 2)]
        heading(f"constants: {title}", own, "samples a class")
        for name, table in tables.items():
            row(name, table.of(key, own), digits=2)
        measured = [column for table in tables.values() for column in table.of(key, own) if column]
        means = [float(np.mean(np.log(column) if ratio else column)) for column in measured]
        average = math.exp(np.mean(means)) if ratio else float(np.mean(means))
        print(f"  average: {average:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = shared_data()
    parser.add_argument("--photos", type=Path, default=shared and shared / "data/photos", help="folder with flowers and leaves")
    parser.add_argument("--cifar", default=os.environ.get("AMGC_DATA"), help="folder with the official files of CIFAR-100")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--quick", action="store_true", help="generated images and one draw, to see that it runs")
    given = parser.parse_args()
    if not given.quick and not (given.photos and all((given.photos / name / "train").is_dir() for name in SETS)):
        print(f"skipped: there are no photos in {given.photos or '../shared/data/photos'}; name their folder with --photos.")
        return
    load = os.getloadavg()[0]
    counts, draws = ((1, None), 1) if given.quick else (COUNTS, DRAWS)
    # Paragraphs of calibration are printed by two parts, and replaced by their headings.
    rerun = ["set", *(part for part in given.only if part != "calibration")]
    with kept("photos", rerun), tempfile.TemporaryDirectory() as place:
        folder = draw_sets(Path(place)) if given.quick else given.photos
        if "speed" in given.only:  # first, as the other parts keep the machine busy
            show_speed(folder, load)
        encoder = Encoder()
        sets = [encoder.read(folder / name, patches="features" in given.only) for name in SETS]
        for photos in sets:
            sizes = f"{len(photos.train.labels)} photos in train, {len(photos.test.labels)} in test"
            dims = ", ".join(f"{kind}: {found.shape[1]:,}" for kind, found in photos.train.features.items())
            print(f"\nset {photos.name}: {photos.classes} classes, {sizes}; features: {dims}", flush=True)
        if "heads" in given.only:
            show_heads(sets, counts, draws)
        if "features" in given.only:
            show_features(sets, counts, draws)
        if "calibration" in given.only:
            show_wrong_labels(sets, counts, draws)
        if "novelty" in given.only:
            images = others(None if given.quick else given.cifar, 2 if given.quick else 200)
            strangers = {name: encoder.both(own)[DEFAULT] for name, own in images.items()}
            show_novelty(sets, strangers, counts, draws)
        if "bounds" in given.only:
            show_bounds(sets, counts, draws)
        if "constants" in given.only:
            show_constants(sets, draws)


if __name__ == "__main__":
    main()
