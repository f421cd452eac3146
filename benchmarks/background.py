"""Compute the background of lite0: means and covariances of its default features on public images.

    python benchmarks/background.py --cifar DATA --pictures FOLDER    # four minutes on two cores; writes the package's file
    python benchmarks/background.py --only gain --cifar DATA          # what it gains on the classes that are left out
    python benchmarks/background.py --quick                          # generated images, and nothing is written

DATA has the official files of CIFAR-100, FOLDER the unpacked Debian packages plasma-workspace-wallpapers, ukui-wallpapers,
mate-backgrounds, lomiri-wallpapers-16.04 and lomiri-wallpapers-20.04 (apt-get download NAME; dpkg-deb -x FILE FOLDER).

The covariance within classes is the average of two: of 100 training images of each of 60 classes of CIFAR-100, and of 40 square
parts of each wallpaper, which are sharp as photographs are. The covariance between classes is that of the 60 class means. The
other 40 classes of CIFAR-100 are left out, so that the background can be tested on them. gain: four groups of ten of these,
learned from 1 to 20 training images a class and tested on 25 test images a class; `AMGCClassifier` with and without background.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from _photo_sets import Array, encoded
from _report import kept
from PIL import Image

from amgc import AMGCClassifier
from amgc.core.background import FOLDER, Background
from amgc.data import load
from amgc.features.weights import checksum
from amgc.model import extractors

CLASSES, IMAGES, PARTS = 60, 100, 40
SIDE = 256  # of the parts
DRAWS = 5
SMALLEST, DIFFERENT = 640, 6.0  # pixels of a wallpaper; mean difference of the pixels of two wallpapers, reduced to 8 × 8


def used_classes() -> list[int]:
    """Return the official labels of the classes of CIFAR-100 that are used."""
    return sorted(np.random.default_rng(5).permutation(100)[:CLASSES].tolist())


def classes(folder: str, random: np.random.Generator) -> tuple[list[Array], list[int]]:
    """Return training images of CIFAR-100 and their labels."""
    train = load("cifar100", root=folder).train
    labels = train.labels.numpy()
    rows = np.concatenate([random.permutation(np.flatnonzero(labels == label))[:IMAGES] for label in used_classes()])
    return list(train.take(rows).numpy().transpose(0, 2, 3, 1)), labels[rows].tolist()


def wallpapers(folder: Path) -> list[Image.Image]:
    """Return the pictures below a folder that differ from each other."""
    found: list[Image.Image] = []
    seen: list[Array] = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in (".jpg", ".png") or "screenshot" in path.name:
            continue
        with Image.open(path) as opened:
            if min(opened.size) < SMALLEST:
                continue
            opened.thumbnail((2000, 2000))
            picture = opened.convert("RGB")
        reduced = np.asarray(picture.resize((8, 8))).astype(float)
        if all(np.abs(reduced - other).mean() > DIFFERENT for other in seen):
            found.append(picture)
            seen.append(reduced)
    return found


def parts(picture: Image.Image, random: np.random.Generator) -> list[Array]:
    """Return random square parts of a picture."""
    result = []
    for _ in range(PARTS):
        side = int(min(picture.size) * random.uniform(0.2, 0.9))
        left, top = (int(random.integers(0, size - side + 1)) for size in picture.size)
        part = picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        result.append(np.asarray(part))
    return result


def moments(features: Array, labels: list[int]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return class means (K, d), the covariance within classes, and the number of samples of a class."""
    groups = [torch.from_numpy(features[np.equal(labels, label)]).double() for label in sorted(set(labels))]
    means = torch.stack([group.mean(0) for group in groups])
    centred = torch.cat([group - group.mean(0) for group in groups])
    return means, centred.T @ centred / (len(centred) - len(groups)), len(groups[0])


def compute(name: str, cifar: tuple[list[Array], list[int]], pictures: list[Image.Image], about: str) -> Background:
    """Return the background of an extractor."""
    network = extractors.create(name, {}, None, 0)
    random = np.random.default_rng(1)
    means, within, count = moments(encoded(network, cifar[0]), cifar[1])
    cut = [part for picture in pictures for part in parts(picture, random)]
    _, sharp, _ = moments(encoded(network, cut), np.repeat(np.arange(len(pictures)), PARTS).tolist())
    between = torch.cov(means.T) - within / count
    values, vectors = torch.linalg.eigh(between)
    return Background(
        means.mean(0),
        (within + sharp * (within.trace() / sharp.trace())) / 2,
        vectors * values.clamp_min(0) @ vectors.T,
        about,
        checksum(network),
    )


def gain(folder: str | None) -> None:
    """Print the accuracy on groups of classes that are not used, with and without background. Without a folder, on noise."""
    network, random = extractors.create("lite0", {}, None, 0), np.random.default_rng(2)
    left = [label for label in np.random.default_rng(5).permutation(100).tolist() if label not in used_classes()]
    found = {}
    for half, number in (("train", 50), ("test", 25)):
        if folder is None:
            left, labels = left[:20], np.repeat(left[:20], 6)
            images = random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
        else:
            data = getattr(load("cifar100", root=folder), half)
            own = data.labels.numpy()
            rows = np.concatenate([random.permutation(np.flatnonzero(own == label))[:number] for label in left])
            images, labels = data.take(rows).numpy().transpose(0, 2, 3, 1), own[rows]
        found[half] = encoded(network, list(images)), labels
    groups = [left[start : start + 10] for start in range(0, len(left), 10)]
    print(f"\ngain: {len(groups)} groups of ten classes, {DRAWS} draws each; accuracy, %: mean ± standard error of the gain")
    print("  images a class  without  with  gain")
    for count in (1, 2, 5, 10, 20) if folder else (1, 2):
        right = np.array([one for group in groups for seed in range(DRAWS) for one in [learned(found, group, count, seed)]])
        more = right[:, 1] - right[:, 0]
        means = "  ".join(f"{value:.1f}" for value in right.mean(0))
        print(f"  {count}  {means}  {more.mean():+.1f} ± {more.std(ddof=1) / len(more) ** 0.5:.1f}", flush=True)


def learned(found: dict[str, tuple[Array, Array]], group: list[int], count: int, seed: int) -> list[float]:
    """Return the accuracies without and with background on a group of classes, in percent."""
    (X, y), (Q, truth), random = found["train"], found["test"], np.random.default_rng(seed)
    rows = np.concatenate([random.permutation(np.flatnonzero(y == label))[:count] for label in group])
    asked = np.isin(truth, group)
    each = [AMGCClassifier(background=name).fit(X[rows], y[rows]).predict(Q[asked]) for name in (None, "lite0")]
    return [100 * float(np.mean(answers == truth[asked])) for answers in each]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--cifar", help="folder with the official files of CIFAR-100")
    arguments.add_argument("--pictures", type=Path, help="folder with the unpacked packages")
    arguments.add_argument("--name", default="lite0", choices=["lite0", "lite1", "lite2"])
    arguments.add_argument("--only", choices=["file", "gain"], nargs="+", default=["file", "gain"])
    arguments.add_argument("--quick", action="store_true", help="generated images, and nothing is written")
    given = arguments.parse_args()
    if not given.quick and not (given.cifar and (given.pictures or given.only == ["gain"])):
        print("skipped: name the folders of the images with --cifar and --pictures.")
        return
    with kept("background", [given.name if part == "file" else part for part in given.only]):
        if "file" in given.only:
            make(given)
        if "gain" in given.only:
            gain(None if given.quick else given.cifar)


def make(given: argparse.Namespace) -> None:
    """Compute a background, print what it is, and write the package's file."""
    random = np.random.default_rng(0)
    if given.quick:
        noise = [random.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(8)]
        cifar, pictures = (noise, [0, 0, 0, 0, 1, 1, 1, 1]), [Image.fromarray(one).resize((700, 700)) for one in noise[:1]]
    else:
        cifar, pictures = classes(given.cifar, random), wallpapers(given.pictures)
    about = f"{len(set(cifar[1]))} classes of CIFAR-100 ({len(cifar[0]):,} training images), {len(pictures)} wallpapers"
    found = compute(given.name, cifar, pictures, about)
    print(f"{given.name}: {about}")
    print(f"  classes of CIFAR-100: {' '.join(map(str, used_classes()))}")
    for name, matrix in (("within", found.within), ("between", found.between)):
        values = torch.linalg.eigvalsh(matrix).clamp_min(0)
        effective = float(values.sum().square() / values.square().sum())
        print(f"  {name}: total variance {float(values.sum()):.4f}, effective dimensions {effective:.1f}")
    if not given.quick:
        FOLDER.mkdir(exist_ok=True)
        found.save(FOLDER / f"{given.name}.safetensors")


if __name__ == "__main__":
    main()
