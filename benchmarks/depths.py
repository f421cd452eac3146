"""Which features of lite0 suit photographs: late stages, earlier ones, textures, and patches joined, on TRAINING photographs.

    python benchmarks/depths.py            # real photographs of ../shared (or $AMGC_SHARED); minutes
    python benchmarks/depths.py --quick    # drawn images, seconds

For each set, 5, 10, 20 and 50 photographs of each class are drawn for the classifier and the others of train/ are held out, six
times. The judges are LDA with the best of three shrinkages and, at 10 and 50, logistic regression on standardised features
(C = 0.01, fixed): both independent of amgc. "others" is the share of the other set that is farther from the nearest class, by
Mahalanobis distance, than 95 % of the held-out photographs, with 5 and 20 for the classifier. No test photograph is read.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _report import kept, shared_data
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from amgc.features import build
from amgc.model.extractors import adapt, create, encode, fit, look
from amgc.model.inputs import Frame, Input, images_from

DRAWS = 6
PHOTOS = (5, 10, 20, 50)
WIDTHS = {1: 16, 2: 24, 3: 40, 4: 80, 5: 112, 6: 192, 7: 320, 8: 1280}  # features of lite0's stages


def stages(given: list[Input]) -> dict[str, NDArray[np.float64]]:
    """Return means and deviations of every stage, by `m3` or `d3`."""
    every = {"stages": tuple(range(1, 9)), "textures": tuple(range(1, 8))}
    everything = build("lite0", image_shape=(3, 224, 224), unit=False, **every).eval()
    frame, rows = Frame(224, 224, 3), []
    for start in range(0, len(given), 32):
        pixels = np.stack([one for one in frame.each(given[start : start + 32]) if not isinstance(one, Exception)])
        rows.append(encode(everything, pixels).double().numpy())
    names = [name for stage in range(1, 8) for name in (f"m{stage}", f"d{stage}")] + ["m8"]
    ends = np.cumsum([WIDTHS[int(name[1:])] for name in names])
    return dict(zip(names, np.split(np.concatenate(rows), ends[:-1], axis=1), strict=True))


def patches(given: list[Input]) -> NDArray[np.float64]:
    """Return the features of patches as `amgc learn` makes them."""
    options, size = adapt({"filters": 400, "draw": "gaussian"}, None, look(given))
    extractor, frame = create("patches", options, size, seed=0), Frame(size, size, 3)
    fit(extractor, frame, given, seed=0)
    pixels = np.stack([one for one in frame.each(given) if not isinstance(one, Exception)])
    return encode(extractor, pixels).double().numpy()


def draws(labels: NDArray[np.int64], count: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the rows to fit on and those to hold out."""
    for seed in range(DRAWS):
        mixed = np.random.default_rng(seed).permutation(len(labels))
        number = np.zeros(len(labels), int)
        for label in np.unique(labels):
            own = mixed[labels[mixed] == label]
            number[own] = np.arange(len(own))
        yield np.flatnonzero(number < count), np.flatnonzero(number >= count)


class ShrunkLDA:
    """LDA with the covariance (1 - share) S + share tr(S)/d I, solved in the span of the rows: they are few."""

    def __init__(self, share: float) -> None:
        self.share = share

    def fit(self, features: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        mean = np.stack([features[labels == label].mean(0) for label in range(labels.max() + 1)])
        rows = (features - mean[labels]) * np.sqrt((1 - self.share) / (len(labels) - len(mean)))
        ridge = self.share * (rows**2).sum() / (1 - self.share) / rows.shape[1]
        inner = np.linalg.solve(rows @ rows.T + ridge * np.eye(len(rows)), rows @ mean.T)
        self.weight = (mean.T - rows.T @ inner) / ridge
        self.bias = -0.5 * (mean.T * self.weight).sum(0)
        self.rows, self.ridge, self.inverse = rows, ridge, np.linalg.inv(rows @ rows.T + ridge * np.eye(len(rows)))

    def score(self, features: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
        return float(((features @ self.weight + self.bias).argmax(1) == labels).mean())

    def distance(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return squared Mahalanobis distances to the nearest class mean."""
        across = features @ self.rows.T
        own = ((features**2).sum(1) - ((across @ self.inverse) * across).sum(1)) / self.ridge
        return own - 2 * (features @ self.weight + self.bias).max(1)


def score(judge: Callable[[], Any], features: NDArray[np.float64], labels: NDArray[np.int64], count: int) -> float:
    right = []
    for fitted, held in draws(labels, count):
        model = judge()
        model.fit(features[fitted], labels[fitted])
        right.append(model.score(features[held], labels[held]))
    return 100 * float(np.mean(right))


def rejected(features: NDArray[np.float64], labels: NDArray[np.int64], others: NDArray[np.float64], count: int) -> float:
    """Return the share of the others, in percent, that are farther away than 95 % of held-out photographs."""
    shares = []
    for fitted, held in draws(labels, count):
        model = ShrunkLDA(0.5)
        model.fit(features[fitted], labels[fitted])
        shares.append((model.distance(others) > np.quantile(model.distance(features[held]), 0.95)).mean())
    return 100 * float(np.mean(shares))


def unit(features: NDArray[np.float64], length: float) -> NDArray[np.float64]:
    return length * features / np.linalg.norm(features, axis=1, keepdims=True)


def logistic() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))


def report(name: str, files: dict[str, list[Path]], others: list[Path], photos: tuple[int, ...]) -> None:
    given = [one for paths in files.values() for path in paths for one in images_from(path)]
    labels = np.repeat(np.arange(len(files)), [len(paths) for paths in files.values()])
    both = stages([*given, *(one for path in others for one in images_from(path))])
    small = patches(given)

    def joined(*names: str, **lengths: float) -> NDArray[np.float64]:
        scaled = [unit(both[each], length) for each, length in lengths.items()]
        return np.concatenate([both[each] for each in names] + scaled, 1)

    textures = {"d3": 2.0, "d4": 2.0, "d5": 2.0}
    sets = {
        "stage 8 (ImageNet's own)": joined("m8"),
        "stage 7": joined("m7"),
        "stages 7 and 8": joined("m7", "m8"),
        "stages 3 to 7": joined("m3", "m4", "m5", "m6", "m7"),
        "stages 7, textures 3 to 7": joined("m7", "d3", "d4", "d5", "d6", "d7"),
        "stage 7, textures 3 to 5": joined("m7", "d3", "d4", "d5"),
        "of lengths 1 and 2": joined(m7=1.0, **textures),
        "and stage 5 of length 0.3": joined(m7=1.0, m5=0.3, **textures),
        "and stage 5 of length 0.5": joined(m7=1.0, m5=0.5, **textures),
        "and stage 5 of length 1": joined(m7=1.0, m5=1.0, **textures),
    }
    ours = joined(m7=1.0, m5=0.5, **textures)[: len(labels)]
    print(f"\n{name}: {len(given)} training photographs of {len(files)} classes; accuracy on held-out ones, %")
    columns = "".join(f"{count:7d}" for count in photos)
    print(f"  features                    number   LDA:{columns}   logistic:     10     50   others:      5     20")
    for label, features in {
        "patches": small,
        **sets,
        "patches and length 0.5": np.concatenate([ours, small * (ours.std() / small.std() / 4)], 1),
    }.items():
        known, unknown = features[: len(labels)], features[len(labels) :]
        best = [max(score(partial(ShrunkLDA, share), known, labels, count) for share in (0.05, 0.2, 0.5)) for count in photos]
        also = [score(logistic, known, labels, count) for count in photos if count in (10, 50)]
        far = [rejected(known, labels, unknown, count) for count in photos if count in (5, 20) and len(unknown)]
        shown = ["".join(f"{value:7.1f}" for value in values) for values in (best, also, far)]
        print(f"  {label:26s} {features.shape[1]:7,d}       {shown[0]}            {shown[1]}          {shown[2]}", flush=True)


def drawn(folder: Path) -> dict[str, list[Path]]:
    """Write images of two kinds of noise."""
    files = {}
    for kind, spread in (("calm", 20), ("wild", 90)):
        files[kind] = [folder / f"{kind}-{number}.png" for number in range(12)]
        for path in files[kind]:
            Image.effect_noise((80, 80), spread).convert("RGB").save(path)
    return files


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="drawn images, to see that it runs")
    quick = arguments.parse_args().quick
    torch.manual_seed(0)
    with kept("depths"):
        if quick:
            with tempfile.TemporaryDirectory() as folder:
                files = drawn(Path(folder))
                report("noise", files, files["calm"], (5,))
            return
        folder = shared_data()
        if folder is None or not (folder / "data/photos").is_dir():
            print("There are no photographs: set AMGC_SHARED to a folder with data/photos/SET/train/CLASS/*.jpg.")
            return
        train = {name: folder / "data/photos" / name / "train" for name in ("flowers", "leaves")}
        found = {name: {one.name: sorted(one.iterdir()) for one in sorted(path.iterdir())} for name, path in train.items()}
        for name, other in (("flowers", "leaves"), ("leaves", "flowers")):
            report(name, found[name], [path for paths in found[other].values() for path in paths], PHOTOS)


if __name__ == "__main__":
    main()
