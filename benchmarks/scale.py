"""Measure cost as it grows: workers, classes, samples and features.

    python benchmarks/scale.py                 # everything, about an hour
    python benchmarks/scale.py --only workers  # or: classes, rows, memory
    python benchmarks/scale.py --quick         # whether it runs, a minute

workers : the same photographs (development data; else drawn ones) through one and two worker processes, alternately. Images/s
    from the moment when all workers have returned a shard. Needs an idle machine.
classes : statistics and solve of synthetic classes in every form of covariance, each in a process of its own, with its peak
    memory. Times are CPU seconds, which depend little on the load; run it with OMP_NUM_THREADS=1. Points that are in the kept
    file are not measured again, unless with --again.
rows : synthetic vectors through `learn_shards`. With --folder it continues what an earlier call has begun.
memory : the peak memory of a worker, beside what `amgc learn` states beforehand.

--minutes M stops `classes` and `rows` after about M minutes, before the next point or shard; the same command continues.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _report import Points, kept, shared_data
from PIL import Image

from amgc import ClassStatistics
from amgc.core.incremental import IncrementalClassifier
from amgc.data.shards import Sample, Shard, file_shards
from amgc.distributed import LocalProcesses, here, learn_shards
from amgc.distributed.learn import driver_memory, worker_memory
from amgc.distributed.worker import Job, Worker
from amgc.model import Model
from amgc.model.manifest import MANIFEST
from amgc.text import byte_size, duration

EACH = 100  # samples of a class
APART = 8.0  # distance of two class means
LATENT = 32  # directions in which synthetic samples vary more
FULL_BYTES = 5_000_000_000  # of full covariances; more are not tried
FORMS = ("shared", "lowrank", "diagonal", "full")
COUNTS = (100, 300, 1000, 3000, 10000)  # of classes
TURNS = 3


@dataclass(frozen=True)
class Flags:
    quick: bool
    again: bool
    forms: tuple[str, ...]
    dims: tuple[int, ...]
    counts: tuple[int, ...]
    minutes: float
    rows: int
    jobs: int
    folder: str | None


def class_means(classes: int, dim: int) -> np.ndarray:
    """Return means of which two are about `APART` standard deviations apart, so that many classes overlap."""
    return np.random.default_rng(0).standard_normal((classes, dim), dtype=np.float32) * np.float32(APART / (2 * dim) ** 0.5)


# ---- workers ---------------------------------------------------------------------------------------------------------


def photos(folder: Path, quick: bool) -> list[str]:
    shared = None if quick else shared_data()
    found = sorted(map(str, shared.glob("data/photos/*/*/*/*.jpg")))[::2] if shared else []
    if not found:
        rng = np.random.default_rng(0)
        for number in range(12):
            path = folder / f"{number}.jpg"
            Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((320, 240)).save(path)
            found.append(str(path))
    return found


def workers(flags: Flags) -> None:
    with kept("scale_workers"), tempfile.TemporaryDirectory() as place:
        given = photos(Path(place), flags.quick) * (1 if flags.quick else 4)  # copies count again in another shard
        shards = file_shards({"all": given}, 3 if flags.quick else 100)
        rates: dict[int, list[float]] = {1: [], 2: []}
        walls: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(1 if flags.quick else TURNS):
            for jobs in rates:
                model = Model.create(Path(place) / f"model-{jobs}-{turn}", features="lite0", covariance="shared")
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
        assert model.state.extractor is not None
        dim = model.state.extractor.dim
        print(f"== workers: {len(given):,} photographs in {len(shards)} shards, lite0, one thread a worker, {TURNS} turns")
        print(f"  features   {dim}")
        for jobs, found in rates.items():
            low, high = min(found), max(found)
            wall = statistics.median(walls[jobs])
            print(f"  {jobs} workers   {statistics.median(found):.1f} images/s ({low:.1f} to {high:.1f})   {wall:.1f} s in all")
        ratios = [two / one / 2 for one, two in zip(rates[1], rates[2], strict=True)]
        print(f"  efficiency   {statistics.median(ratios):.3f} of ideal ({min(ratios):.3f} to {max(ratios):.3f})\n")


# ---- classes ---------------------------------------------------------------------------------------------------------


def one(form: str, dim: int, classes: int) -> dict[str, float]:
    """Return CPU seconds, peak memory and bytes on disk for synthetic classes."""
    rng, mean = np.random.default_rng(1), class_means(classes, dim)
    mix = rng.standard_normal((LATENT, dim), dtype=np.float32) * np.float32(0.3)
    made = ClassStatistics(dim, form)
    spent = 0.0
    total = ClassStatistics(dim, form, dtype=torch.float64)  # as the driver of many workers has it
    merge = 0.0
    for start in range(0, classes, 100):
        labels = np.repeat(np.arange(start, min(start + 100, classes)), EACH)
        rows = mean[labels] + rng.standard_normal((len(labels), dim), dtype=np.float32)
        rows += rng.standard_normal((len(labels), LATENT), dtype=np.float32) @ mix
        begin = time.process_time()
        made.update(rows, labels)
        spent += time.process_time() - begin
        if start == 0:
            part = ClassStatistics(dim, form).update(rows, labels)
            total.merge(part)
            begin = time.process_time()
            total.merge(part)
            merge = (time.process_time() - begin) / len(part)
            del total, part
    classifier = IncrementalClassifier(covariance=form)
    classifier.n_features_in_ = dim
    classifier._restart()
    classifier.statistics_ = made
    classifier._learned(made.classes)
    begin = time.process_time()
    head = classifier.head_
    solve = time.process_time() - begin
    nbytes = made.nbytes + head.weight.nbytes + head.bias.nbytes
    return {"update": spent, "solve": solve, "merge": merge, "peak": peak(), "disk": nbytes, "iterations": head.iterations}


def peak() -> int:
    """Return the largest memory of this process so far, in bytes. rusage would count that of the process that started it."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def point(form: str, dim: int, count: int) -> str:
    """Measure a point in a process of its own, and return its row."""
    done = subprocess.run([sys.executable, __file__, "--one", form, str(dim), str(count)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{form} d={dim} K={count} failed: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    parts = [f"update {found['update']:.3g} s", f"solve {found['solve']:.3g} s", f"{found['iterations']:.0f} iterations"]
    parts += [f"merge {1000 * found['merge']:.3g} ms/class"]
    return "   ".join([*parts, f"peak {byte_size(found['peak'])}", f"disk {byte_size(found['disk'])}"])


def classes(flags: Flags) -> None:
    heading = (
        f"== classes: {EACH} samples a class; CPU seconds; update: sums of all samples; solve: regularise, solve, calibrate"
    )
    points = Points("scale_classes", heading, flags.again)
    end = time.monotonic() + 60 * flags.minutes
    for dim in (16,) if flags.quick else flags.dims:
        for form in flags.forms:
            for count in (20,) if flags.quick else flags.counts:
                name = f"{form} d={dim} K={count}"
                if name in points or (form == "full" and 4 * count * dim**2 > FULL_BYTES):
                    continue
                if time.monotonic() > end:
                    print(f"stopped before {name}; the same command continues")
                    return
                points.measure(name, lambda form=form, dim=dim, count=count: point(form, dim, count))


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
        mean = class_means(self.classes, self.dim)
        for start in range(0, self.rows, 4096):
            labels = rng.integers(0, self.classes, min(4096, self.rows - start))
            drawn = mean[labels] + rng.standard_normal((len(labels), self.dim), dtype=np.float32)
            for label, row in zip(labels.tolist(), drawn, strict=True):
                yield Sample("", f"class {label}", row)


def rows(flags: Flags) -> None:
    total, each, dim, count = (20_000, 5_000, 16, 20) if flags.quick else (flags.rows, 100_000, 512, 1000)
    shards: list[Shard] = [Drawn(number, each, dim, count) for number in range(total // each)]
    name = "1 worker" if flags.jobs == 1 else f"{flags.jobs} workers"
    points = Points("scale_rows", f"== rows: synthetic vectors of {dim} numbers, {count:,} classes, shared covariance", True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(flags.folder or place) / "rows"
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / "spent.json"  # of earlier calls
        spent = json.loads(note.read_text()) if note.exists() else {"seconds": 0.0, "driver": 0, "worker": 0, "calls": 0}
        path = folder / "model"
        known = (path / MANIFEST).is_file()
        model = Model.open(path) if known else Model.create(path, features="vectors", covariance="shared")
        begin, end = time.perf_counter(), time.monotonic() + 60 * flags.minutes

        def stopping(job: Job, waiting: object) -> Iterator:
            for found in (here if flags.quick or flags.jobs == 1 else LocalProcesses(flags.jobs))(job, waiting):
                yield found
                if time.monotonic() > end:
                    raise KeyboardInterrupt

        def noted() -> float:
            now = {"driver": peak(), "worker": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}
            found = {part: max(spent[part], size) for part, size in now.items()}
            found |= {"seconds": spent["seconds"] + time.perf_counter() - begin, "calls": spent["calls"] + 1}
            note.write_text(json.dumps(found))
            spent.update(found)
            return found["seconds"]

        try:
            learned = learn_shards(model, shards, stopping)
        except KeyboardInterrupt:
            print(f"stopped after {duration(noted())}; the same command continues")
            return
        seconds = noted()
        assert learned.images == total
        rng = np.random.default_rng(5)
        labels = rng.integers(0, count, 1000)
        mean = class_means(count, dim)
        asked = mean[labels] + rng.standard_normal((1000, dim), dtype=np.float32)
        right = sum(found.label == f"class {label}" for found, label in zip(model.predict(asked), labels, strict=True))
        size = sum(path.stat().st_size for path in model.path.iterdir() if path.is_file())
        memory = f"driver {byte_size(spent['driver'])}"
        if flags.jobs > 1 and not flags.quick:
            memory += f", largest worker {byte_size(spent['worker'])}"
        text = f"{seconds:.1f} s ({duration(seconds)}), {total / seconds:,.0f} rows/s"
        text += f"   {memory}   folder {byte_size(size)}   {right / 10:.1f} % of 1,000 new vectors right"
        calls = "" if spent["calls"] == 1 else f", in {spent['calls']} calls"
        points.measure(f"{total:,} rows, {name}{calls}", lambda: text)


# ---- memory ----------------------------------------------------------------------------------------------------------


def drive(path: str, form: str, dim: int, classes: int) -> dict[str, object]:
    """Learn a shard in a worker process. Return the peak of this process, and what is stated of both."""
    model = Model.create(path, features="vectors", covariance=form)
    learn_shards(model, [Drawn(0, 4 * classes, dim, classes)], LocalProcesses(1))
    stated = {"worker": worker_memory(model.state, classes), "driver": driver_memory(model.state, classes)}
    return {"peak": peak(), "checksum": model.state.checksum, **stated}


def work(path: str, checksum: str, dim: int, classes: int) -> dict[str, object]:
    """Compute a shard. Return the peak of this process."""
    found = Worker(Job(path, checksum))(Drawn(1, 4 * classes, dim, classes))
    assert isinstance(found, bytes), found
    return {"peak": peak()}


def memory(flags: Flags) -> None:
    heading = "== memory: of a worker and of the driver for a shard of vectors, four of each class; stated before, and the peak"
    points = Points("scale_memory", heading, flags.again)

    def called(*given: object) -> dict[str, int]:
        done = subprocess.run([sys.executable, __file__, *map(str, given)], capture_output=True, text=True)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def measured(form: str, dim: int, count: int) -> str:
        with tempfile.TemporaryDirectory() as place:
            driver = called("--drive", f"{place}/model", form, dim, count)
            worker = called("--work", f"{place}/model", driver["checksum"], dim, count)
        return "   ".join(
            f"{name}: {byte_size(driver[name])} stated, {byte_size(found['peak'])}"
            for name, found in (("worker", worker), ("driver", driver))
        )

    for form, dim, count in [("shared", 16, 20)] if flags.quick else MEMORY:
        if (name := f"{form} d={dim} K={count}") not in points:
            points.measure(name, lambda form=form, dim=dim, count=count: measured(form, dim, count))


MEMORY = [("shared", 512, 1000), ("lowrank", 512, 1000), ("full", 512, 1000), ("shared", 1280, 1000), ("shared", 12800, 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["workers", "classes", "rows", "memory"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--again", action="store_true", help="measure points of the kept file again")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="of classes")
    parser.add_argument("--dims", nargs="+", type=int, default=(512, 1280), help="of classes")
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS, help="of classes")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop classes and rows after that")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=2, help="workers of rows")
    parser.add_argument("--folder", help="where rows keeps its model")
    parser.add_argument("--one", nargs=3, metavar=("FORM", "D", "K"), help="one point of classes, as JSON")
    parser.add_argument("--drive", nargs=4, metavar=("MODEL", "FORM", "D", "K"), help="one driver of memory, as JSON")
    parser.add_argument("--work", nargs=4, metavar=("MODEL", "CHECKSUM", "D", "K"), help="one worker of memory, as JSON")
    given = vars(parser.parse_args())
    single, driver, worker, only = (given.pop(name) for name in ("one", "drive", "work", "only"))
    if single:
        print(json.dumps(one(single[0], int(single[1]), int(single[2]))))
    elif driver:
        print(json.dumps(drive(driver[0], driver[1], int(driver[2]), int(driver[3]))))
    elif worker:
        print(json.dumps(work(worker[0], worker[1], int(worker[2]), int(worker[3]))))
    else:
        flags = Flags(**given)
        parts: list[Callable[[Flags], None]] = [workers, classes, rows, memory]
        for part in parts:
            if only in (None, part.__name__):
                part(flags)


if __name__ == "__main__":
    main()
