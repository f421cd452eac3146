"""Which features of lite0 suit photographs: late stages, earlier ones, textures, and patches joined, on TRAINING photographs.

    python benchmarks/depths.py            # real photographs of ../shared (or $AMGC_SHARED); minutes
    python benchmarks/depths.py --quick    # drawn images, seconds

For each set, 5, 10, 20 and 50 photographs of each class are drawn for the classifier and the others of train/ are held out, six
times. The judges are LDA with the best of three shrinkages and, at 10 and 50, logistic regression on standardised features
(C = 0.01, fixed): both independent of amgc. No test photograph is read.
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
from amgc.model.choice import look
from amgc.model.extractors import adapt, create, encode, fit
from amgc.model.pictures import Frame, Picture, pictures

DRAWS = 6
PHOTOS = (5, 10, 20, 50)
WIDTHS = {1: 16, 2: 24, 3: 40, 4: 80, 5: 112, 6: 192, 7: 320, 8: 1280}  # features of lite0's stages


def stages(given: list[Picture]) -> dict[str, NDArray[np.float64]]:
    """Return means and deviations of every stage, by `m3` or `d3`."""
    everything = build("lite0", image_shape=(3, 224, 224), stages=tuple(range(1, 9)), textures=tuple(range(1, 8))).eval()
    frame, rows = Frame(224, 224, 3), []
    for start in range(0, len(given), 32):
        pixels = np.stack([one for one in frame.each(given[start : start + 32]) if not isinstance(one, Exception)])
        rows.append(encode(everything, pixels).double().numpy())
    names = [name for stage in range(1, 8) for name in (f"m{stage}", f"d{stage}")] + ["m8"]
    ends = np.cumsum([WIDTHS[int(name[1:])] for name in names])
    return dict(zip(names, np.split(np.concatenate(rows), ends[:-1], axis=1), strict=True))


def patches(given: list[Picture]) -> NDArray[np.float64]:
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

    def score(self, features: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
        return float(((features @ self.weight + self.bias).argmax(1) == labels).mean())


def score(judge: Callable[[], Any], features: NDArray[np.float64], labels: NDArray[np.int64], count: int) -> float:
    right = []
    for fitted, held in draws(labels, count):
        model = judge()
        model.fit(features[fitted], labels[fitted])
        right.append(model.score(features[held], labels[held]))
    return 100 * float(np.mean(right))


def logistic() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))


def report(name: str, files: dict[str, list[Path]], photos: tuple[int, ...]) -> None:
    given = [one for paths in files.values() for path in paths for one in pictures(path)]
    labels = np.repeat(np.arange(len(files)), [len(paths) for paths in files.values()])
    parts, small = stages(given), patches(given)

    def joined(*names: str) -> NDArray[np.float64]:
        return np.concatenate([parts[each] for each in names], 1)

    ours = joined("m7", "d3", "d4", "d5")
    sets = {
        "patches": small,
        "stage 8 (ImageNet's own)": joined("m8"),
        "stage 7": joined("m7"),
        "stages 7 and 8": joined("m7", "m8"),
        "stages 3 to 7": joined("m3", "m4", "m5", "m6", "m7"),
        "stages 7, textures 3 to 7": joined("m7", "d3", "d4", "d5", "d6", "d7"),
        "stage 7, textures 3 to 5": ours,
        "the last and patches": np.concatenate([ours, small * (ours.std() / small.std() / 4)], 1),
    }
    print(f"\n{name}: {len(given)} training photographs of {len(files)} classes; accuracy on held-out ones, %")
    print(
        "  features                    number   LDA:"
        + "".join(f"{count:7d}" for count in photos)
        + "   logistic:     10     50"
    )
    for label, features in sets.items():
        best = [
            max(score(partial(ShrunkLDA, share), features, labels, count) for share in (0.05, 0.2, 0.5)) for count in photos
        ]
        others = [score(logistic, features, labels, count) for count in photos if count in (10, 50)]
        shown = "".join(f"{value:7.1f}" for value in best), "".join(f"{value:7.1f}" for value in others)
        print(f"  {label:26s} {features.shape[1]:7,d}       {shown[0]}            {shown[1]}")


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
                report("noise", drawn(Path(folder)), (5,))
            return
        folder = shared_data()
        if folder is None or not (folder / "data/photos").is_dir():
            print("There are no photographs: set AMGC_SHARED to a folder with data/photos/SET/train/CLASS/*.jpg.")
            return
        for name in ("flowers", "leaves"):
            classes = sorted((folder / "data/photos" / name / "train").iterdir())
            report(name, {path.name: sorted(path.iterdir()) for path in classes}, PHOTOS)


if __name__ == "__main__":
    main()
