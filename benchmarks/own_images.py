"""Measure `amgc.Model` on CIFAR-100 as folders of PNG files: learn 90 classes, then 10 more, and predict.

    python benchmarks/own_images.py --root DATA            # about seven minutes on two cores
    python benchmarks/own_images.py --root DATA --only draw
    python benchmarks/own_images.py --quick                # generated images, to check that it runs

learn: time to learn 90 classes and 10 more, and to predict; accuracy; share of held-out images of known and of unseen classes
that `reject` rejects, before and after the 10 classes are learned. strangers: rejected share of images of other kinds
(scikit-learn's handwritten digits, drawn shapes, noise), by a model of all classes. few: rejected share of held-out images of
classes with few images. merge: two sites with 50 classes each, merged, compared with one model of all classes. draw: filters
drawn at random (the default, which stores no fragment of an image) or cut from images. The PNG files are written to a temporary
folder from the official files. Times are wall-clock; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from _report import kept
from PIL import Image, ImageDraw

from amgc.model import Evaluation, Model

PARTS = ("learn", "strangers", "few", "merge", "draw")
REJECT = 0.01

Classes = dict[str, list[str]]


def write_cifar(folder: Path, root: str, per_class: int) -> dict[str, Classes]:
    """Write CIFAR-100 as PNG files in class folders."""
    from amgc.data import load

    data = load("cifar100", root=root)
    return {split: _write(folder / split, images, data.class_names, per_class) for split, images in _splits(data).items()}


def _splits(data: object) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        name: (split.take(np.arange(len(split))).numpy().transpose(0, 2, 3, 1), split.labels.numpy())
        for name, split in (("train", data.train), ("test", data.test))  # type: ignore[attr-defined]
    }


def draw_pictures(folder: Path) -> dict[str, Classes]:
    """Write generated images in class folders."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 24)
    patterns = rng.uniform(60, 190, (6, 16, 16, 3))
    pixels = np.clip(patterns[labels] + rng.normal(0, 50, (len(labels), 16, 16, 3)), 0, 255).astype(np.uint8)
    names = tuple(f"kind {number}" for number in range(6))
    test = np.tile(np.arange(24) >= 16, 6)
    halves = {"train": ~test, "test": test}
    return {split: _write(folder / split, (pixels[rows], labels[rows]), names, 999) for split, rows in halves.items()}


def _write(folder: Path, images: tuple[np.ndarray, np.ndarray], names: tuple[str, ...], per_class: int) -> Classes:
    pixels, labels = images
    found: Classes = {}
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        found[name] = []
        for number, row in enumerate(np.flatnonzero(labels == label)[:per_class]):
            path = folder / name / f"{number:04d}.png"
            Image.fromarray(pixels[row]).save(path, compress_level=1)
            found[name].append(str(path))
    return found


def timed(what: str, model: Model, classes: Classes) -> None:
    """Learn, and print the time."""
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    learned = model.learn_all(classes)
    seconds, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    busy = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    rate = f"{learned.images / seconds:,.0f} pictures/s"
    print(f"  {what}: {learned.images:,} pictures, {seconds:.1f} s ({busy:.1f} s of one core), {rate}", flush=True)


def judged(what: str, model: Model, test: Classes) -> Evaluation:
    """Evaluate, and print the result."""
    files, labels = [file for own in test.values() for file in own], [name for name, own in test.items() for _ in own]
    start = time.perf_counter()
    found = model.evaluate(files, labels, reject=REJECT)
    seconds = time.perf_counter() - start
    known, unseen = found.rejected()
    beside = "" if not found.unseen else f", {100 * unseen:.1f} % of unseen classes'"
    print(
        f"  {what}: accuracy {100 * found.accuracy:.1f} %, calibration error {100 * found.calibration_error:.1f} %; "
        f"rejected at fit {REJECT}: {100 * known:.2f} % of known classes' pictures{beside}, {len(files) / seconds:,.0f}/s",
        flush=True,
    )
    return found


def first(classes: Classes, count: int) -> Classes:
    return dict(list(classes.items())[:count])


def last(classes: Classes, count: int) -> Classes:
    return dict(list(classes.items())[-count:])


def size_on_disk(model: Model) -> str:
    return f"{sum(model.info().bytes.values()) / 1e6:.1f} MB in the folder"


def learn(folder: Path, data: dict[str, Classes], filters: int, few: int) -> None:
    count = len(data["train"])
    many = count - few
    print(f"learn ({filters} filters)")
    model = Model.create(folder / "learn", filters=filters)
    timed(f"{many} classes", model, first(data["train"], many))
    judged(f"{many} known, {few} unseen", model, data["test"])
    timed(f"{few} more classes", model, last(data["train"], few))
    judged(f"all {count} known", model, data["test"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"  {size_on_disk(model)}; {peak:.2f} GB of memory at most, Python and torch included\n", flush=True)


def strangers(folder: Path, data: dict[str, Classes], filters: int, few: int) -> None:
    print(f"strangers ({filters} filters), a model of {len(data['train'])} classes")
    model = Model.create(folder / "strangers", filters=filters)
    model.learn_all(data["train"])
    known = [file for own in data["test"].values() for file in own]
    for what, pictures in {"known classes, held out": known, **others()}.items():
        found = model.predict(pictures, reject=REJECT)
        rejected = sum(one.rejected for one in found) / len(found)
        print(f"  {what}: {len(found):,} pictures, rejected at fit {REJECT}: {100 * rejected:.1f} %", flush=True)
    print()


def few_pictures(folder: Path, data: dict[str, Classes], filters: int, few: int) -> None:
    chosen = list(data["train"])[:: max(1, len(data["train"]) // 20)]
    print(f"few ({filters} filters), {len(chosen)} classes: rejected of their held-out pictures at fit 0.01 and 0.05, %")
    files = [file for name in chosen for file in data["test"][name]]
    for count in (6, 8, 12, 25, 100, 500):
        if count > min(len(data["train"][name]) for name in chosen):
            break
        lessons = {"at once": [count], "in two calls": [count - count // 2, count // 2]}
        for how, sizes in lessons.items():
            model, start = Model.create(folder / f"few {count} {how}", filters=filters), 0
            for size in sizes:
                model.learn_all({name: data["train"][name][start : start + size] for name in chosen})
                start += size
            fits = np.array([one.fit for one in model.predict(files)])
            shares = [100 * float((fits < below).mean()) for below in (0.01, 0.05)]
            print(f"  {count} pictures, {how}: {shares[0]:.1f} {shares[1]:.1f}", flush=True)
    print()


def others() -> dict[str, np.ndarray]:
    """Return images of other kinds, 32 × 32 in colour."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    digits = (load_digits().images * 15.9).astype(np.uint8)
    shapes = np.stack([_shape(rng) for _ in range(1000)])
    return {
        "written digits": np.stack([np.asarray(Image.fromarray(one).resize((32, 32)).convert("RGB")) for one in digits]),
        "drawn shapes": shapes,
        "noise": rng.integers(256, size=(1000, 32, 32, 3), dtype=np.uint8),
        "one colour": np.broadcast_to(rng.integers(256, size=(1000, 1, 1, 3), dtype=np.uint8), (1000, 32, 32, 3)),
    }


def _shape(rng: np.random.Generator) -> np.ndarray:
    """Draw a rectangle, ellipse or triangle of one colour on another."""
    back, front = (tuple(int(value) for value in rng.integers(256, size=3)) for _ in range(2))
    image = Image.new("RGB", (32, 32), back)
    left, top, right, bottom = (int(value) for value in (*rng.integers(1, 14, size=2), *rng.integers(18, 31, size=2)))
    pen = ImageDraw.Draw(image)
    kind = rng.integers(3)
    if kind == 0:
        pen.rectangle((left, top, right, bottom), fill=front)
    elif kind == 1:
        pen.ellipse((left, top, right, bottom), fill=front)
    else:
        pen.polygon([(left, bottom), (right, bottom), (int(rng.integers(left, right)), top)], fill=front)
    return np.asarray(image)


def merge(folder: Path, data: dict[str, Classes], filters: int, few: int) -> None:
    half = len(data["train"]) // 2
    print(f"merge ({filters} filters): two sites with {half} classes each")
    start = Model.create(folder / "start", filters=filters)
    start.learn_all(first(data["train"], 1))  # any pictures: for the extractor that both sites start from
    extractor = next(start.path.glob("extractor-*"))
    one, two, whole = (Model.create(folder / name, extractor) for name in ("one", "two", "whole"))
    timed("site 1", one, first(data["train"], half))
    timed("site 2", two, last(data["train"], len(data["train"]) - half))
    timed("one model with everything", whole, data["train"])
    began = time.perf_counter()
    merged = Model.merged([one, two], folder / "merged")
    print(f"  merged in {time.perf_counter() - began:.1f} s")
    files = [file for own in data["test"].values() for file in own]
    pairs = list(zip(merged.predict(files), whole.predict(files), strict=True))
    same = sum(a.label == b.label for a, b in pairs)
    apart = max(abs(a.probabilities[0] - b.probabilities[0]) for a, b in pairs)
    print(
        f"  same answer for {same:,} of {len(pairs):,} test pictures; probabilities differ by at most {apart:.1e}\n", flush=True
    )


def draw(folder: Path, data: dict[str, Classes], filters: int, few: int) -> None:
    print(f"draw ({filters} filters)")
    for kind in ("gaussian", "patches"):
        model = Model.create(folder / f"draw {kind}", filters=filters, draw=kind)
        timed(kind, model, data["train"])
        judged(kind, model, data["test"])
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.environ.get("AMGC_DATA"), help="folder with the official files of CIFAR-100")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--filters", type=int, default=400)
    parser.add_argument("--per-class", type=int, default=500, help="training pictures per class")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.root is None and not given.quick:
        parser.error("where are the official files of CIFAR-100? Name their folder with --root, or try --quick.")
    with kept("own_images"), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = draw_pictures(folder) if given.quick else write_cifar(folder, given.root, given.per_class)
        jobs = {"learn": learn, "strangers": strangers, "few": few_pictures, "merge": merge, "draw": draw}
        for part in given.only:
            jobs[part](folder, data, 8 if given.quick else given.filters, 2 if given.quick else 10)


if __name__ == "__main__":
    main()
