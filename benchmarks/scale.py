"""Measure cost as it grows: workers, classes and samples.

    python benchmarks/scale.py                 # everything, about an hour
    python benchmarks/scale.py --only workers  # or: classes, rows
    python benchmarks/scale.py --quick         # whether it runs, a minute

workers : the same photographs (development data; else drawn ones) through one and two worker processes, alternately. Images/s
    from the moment when all workers have returned a shard. classes : statistics and solve of synthetic classes in every form of
    covariance, each in a process of its own, with its peak memory. rows : synthetic vectors through `learn_shards`.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _report import kept, shared_data
from PIL import Image

from amgc import ClassStatistics
from amgc.core.incremental import IncrementalClassifier
from amgc.data.shards import Sample, Shard, file_shards
from amgc.distributed import LocalProcesses, here, learn_shards
from amgc.model import Model
from amgc.text import byte_size, duration

EACH = 100  # samples of a class
FULL_BYTES = 2_500_000_000  # of full covariances; more are not tried
FORMS = ("shared", "lowrank", "diagonal", "full")


# ---- workers ---------------------------------------------------------------------------------------------------------


def photos(folder: Path, quick: bool) -> list[str]:
    shared = None if quick else shared_data()
    found = sorted(map(str, shared.glob("data/photos/*/*/*/*.jpg")))[::3] if shared else []
    if not found:
        rng = np.random.default_rng(0)
        for number in range(12):
            path = folder / f"{number}.jpg"
            Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((320, 240)).save(path)
            found.append(str(path))
    return found


def workers(quick: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        given = photos(Path(place), quick)
        shards = file_shards({"all": given}, 3 if quick else 25)
        print(f"== workers: {len(given)} photographs in {len(shards)} shards, lite0, one thread a worker")
        rates: dict[int, list[float]] = {1: [], 2: []}
        walls: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(1 if quick else 3):
            for jobs in rates:
                model = Model.create(Path(place) / f"model-{jobs}-{turn}", features="lite0")
                marks: list[float] = []
                begin = time.perf_counter()

                def timed(job, waiting, jobs=jobs, marks=marks):
                    for one in LocalProcesses(jobs)(job, waiting):
                        marks.append(time.perf_counter())
                        yield one

                learn_shards(model, shards, timed)
                walls[jobs].append(time.perf_counter() - begin)
                steady = len(marks) - jobs
                rates[jobs].append(steady * len(given) / len(shards) / (marks[-1] - marks[jobs - 1]))
        for jobs, found in rates.items():
            low, high = min(found), max(found)
            wall = statistics.median(walls[jobs])
            print(f"  {jobs} workers   {statistics.median(found):.1f} images/s ({low:.1f} to {high:.1f})   {wall:.1f} s in all")
        ratios = [two / one / 2 for one, two in zip(rates[1], rates[2], strict=True)]
        print(f"  efficiency   {statistics.median(ratios):.3f} of ideal ({min(ratios):.3f} to {max(ratios):.3f})\n")


# ---- classes ---------------------------------------------------------------------------------------------------------


def one(form: str, dim: int, classes: int) -> dict[str, float]:
    """Return seconds, peak memory and bytes on disk for synthetic classes."""
    rng = np.random.default_rng(0)
    mean = rng.standard_normal((classes, dim), dtype=np.float32)
    mix = (np.eye(dim) + rng.standard_normal((dim, dim)) * 0.5 / dim**0.5).astype(np.float32)
    made = ClassStatistics(dim, form)
    spent = 0.0
    total = ClassStatistics(dim, form, dtype=torch.float64)  # as the driver of many workers has it
    merge = 0.0
    for start in range(0, classes, 100):
        labels = np.repeat(np.arange(start, min(start + 100, classes)), EACH)
        rows = mean[labels] + rng.standard_normal((len(labels), dim), dtype=np.float32) @ mix
        begin = time.perf_counter()
        made.update(rows, labels)
        spent += time.perf_counter() - begin
        if start == 0:
            part = ClassStatistics(dim, form).update(rows, labels)
            total.merge(part)
            begin = time.perf_counter()
            total.merge(part)
            merge = (time.perf_counter() - begin) / len(part)
            del total, part
    classifier = IncrementalClassifier(covariance=form)
    classifier.n_features_in_ = dim
    classifier._restart()
    classifier.statistics_ = made
    classifier._learned(made.classes)
    begin = time.perf_counter()
    head = classifier.head_
    solve = time.perf_counter() - begin
    nbytes = made.nbytes + head.weight.nbytes + head.bias.nbytes
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"update": spent, "solve": solve, "merge": merge, "peak": peak, "disk": nbytes, "iterations": head.iterations}


def classes(quick: bool, forms: Sequence[str] = FORMS, dims: Sequence[int] = (512, 1280)) -> None:
    print(f"== classes: {EACH} synthetic samples a class; update: sums of all samples; solve: regularise, solve, calibrate")
    print(f"   {torch.get_num_threads()} threads; above 1,024 classes, every form but diagonal has the closed form")
    for dim in (16,) if quick else dims:
        for form in forms[:1] if quick else forms:
            points: list[tuple[int, dict[str, float]]] = []
            for count in (20,) if quick else (100, 300, 1000, 3000, 10000):
                if form == "full" and 4 * count * dim**2 > FULL_BYTES:
                    continue
                call = [sys.executable, __file__, "--one", form, str(dim), str(count)]
                done = subprocess.run(call, capture_output=True, text=True)
                if done.returncode:
                    print(f"  {form} d={dim} K={count}   failed: {done.stderr.strip().splitlines()[-1]}")
                    continue
                found = json.loads(done.stdout.splitlines()[-1])
                points.append((count, found))
                times = f"update {found['update']:.2f} s   solve {found['solve']:.2f} s   {found['iterations']:.0f} iterations"
                rest = f"peak {byte_size(found['peak'])}   disk {byte_size(found['disk'])}"
                print(f"  {form} d={dim} K={count}   {times}   merge {1000 * found['merge']:.2f} ms/class   {rest}")
            if len(points) > 2:
                print(f"  {form} d={dim} exponents   update {slope(points, 'update'):.2f}   solve {slope(points, 'solve'):.2f}")
    print()


def slope(points: list[tuple[int, dict[str, float]]], name: str) -> float:
    """Return the exponent of K that fits the times of the three largest K best."""
    x = [math.log(count) for count, _ in points[-3:]]
    y = [math.log(max(found[name], 1e-6)) for _, found in points[-3:]]
    return float(np.polyfit(x, y, 1)[0])


# ---- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A shard of synthetic vectors."""

    number: int
    rows: int
    dim: int
    classes: int

    @property
    def name(self) -> str:
        return f"shard {self.number}"

    @property
    def size(self) -> int:
        return self.rows

    @property
    def unit(self) -> str:
        return "images"

    def stamp(self) -> str:
        return repr(self)

    def samples(self) -> Iterator[Sample]:
        rng = np.random.default_rng([1, self.number])
        mean = np.random.default_rng(0).standard_normal((self.classes, self.dim), dtype=np.float32)
        for start in range(0, self.rows, 4096):
            labels = rng.integers(0, self.classes, min(4096, self.rows - start))
            drawn = mean[labels] + rng.standard_normal((len(labels), self.dim), dtype=np.float32)
            for label, row in zip(labels.tolist(), drawn, strict=True):
                yield Sample("", f"class {label}", row)


def rows(quick: bool) -> None:
    total, each, dim, count = (20_000, 5_000, 16, 20) if quick else (10_000_000, 100_000, 512, 1000)
    shards: list[Shard] = [Drawn(number, each, dim, count) for number in range(total // each)]
    print(
        f"== rows: {total:,} vectors of {dim} numbers, {count:,} classes, {len(shards)} shards, two workers, shared covariance"
    )
    with tempfile.TemporaryDirectory() as place:
        model = Model.create(Path(place) / "model", features="vectors", covariance="shared")
        begin = time.perf_counter()
        learned = learn_shards(model, shards, here if quick else LocalProcesses(2))
        spent = time.perf_counter() - begin
        assert learned.images == total
        rng = np.random.default_rng(5)
        labels = rng.integers(0, count, 1000)
        mean = np.random.default_rng(0).standard_normal((count, dim), dtype=np.float32)
        asked = mean[labels] + rng.standard_normal((1000, dim), dtype=np.float32)
        right = sum(found.label == f"class {label}" for found, label in zip(model.predict(asked), labels, strict=True))
        peaks = [1024 * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        folder = sum(path.stat().st_size for path in model.path.iterdir() if path.is_file())
        print(f"  time   {spent:.1f} s ({duration(spent)}), {total / spent:,.0f} rows/s")
        print(f"  peak   driver {byte_size(peaks[0])}, largest worker {byte_size(peaks[1])}; folder {byte_size(folder)}")
        print(f"  right   {right / 10:.1f} % of 1,000 new vectors\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["workers", "classes", "rows"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="of classes")
    parser.add_argument("--dims", nargs="+", type=int, default=(512, 1280), help="of classes")
    parser.add_argument("--one", nargs=3, metavar=("FORM", "D", "K"), help="one point of classes, as JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one[0], int(given.one[1]), int(given.one[2]))))
        return
    for part in (workers, classes, rows):
        if given.only in (None, part.__name__):
            with kept(f"scale_{part.__name__}"):
                part(given.quick, given.forms, given.dims) if part is classes else part(given.quick)


if __name__ == "__main__":
    main()
