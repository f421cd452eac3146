"""Code of benchmarks/photos.py: photographs and other images as features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from amgc.data import load
from amgc.features.extractor import Extractor
from amgc.model import extractors
from amgc.model.extractors import look
from amgc.model.inputs import Frame, images_from

SETS = ("flowers", "leaves")
HALVES = ("train", "test")
DEFAULT, TOP, PATCHES = "664 features", "1,280 features", "patches"
OTHERS = 200  # images of each other kind

Array = np.ndarray


@dataclass(frozen=True)
class Half:
    """The photos of train/ or test/: features (n, d) by kind, and classes (n,) from 0."""

    features: dict[str, Array]
    labels: Array


@dataclass(frozen=True)
class Photos:
    """A set of photographs."""

    name: str
    train: Half
    test: Half
    far: range | None  # the default features that find images of other kinds

    @property
    def classes(self) -> int:
        return int(self.train.labels.max()) + 1


class Encoder:
    """Makes features of images. The network is run once for both of its kinds of features."""

    def __init__(self) -> None:
        self.lite = extractors.create("lite0", {"stages": (5, 7, 8), "textures": (3, 4, 5)}, None, 0)
        self.dim = extractors.create("lite0", {}, None, 0).dim

    def both(self, images: Any) -> dict[str, Array]:
        """Return the default features of lite0, and the 1,280 that ImageNet's classifier uses."""
        found = encoded(self.lite, images)
        return {DEFAULT: found[:, : self.dim], TOP: found[:, self.dim :]}

    def read(self, folder: Path, patches: bool = True) -> Photos:
        """Return a set of photos. Patches are fitted on all photos of train/, as `amgc learn` does with the first ones."""
        names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
        halves = {
            half: [(row, one) for row, name in enumerate(names) for one in files(folder / half / name)] for half in HALVES
        }
        fitted = fitted_patches([path for _, path in halves["train"]]) if patches else None
        made = {}
        for half, given in halves.items():
            paths = [path for _, path in given]
            features = self.both(paths) | ({} if fitted is None else {PATCHES: encoded(fitted, paths)})
            made[half] = Half(features, np.array([row for row, _ in given]))
        return Photos(folder.name, made["train"], made["test"], self.lite.far)


def fitted_patches(paths: list[Path]) -> Extractor:
    """Return patches that are fitted on these images."""
    first = images_from(paths)
    options, side = extractors.adapt(extractors.defaults("patches"), None, look(first))
    patches = extractors.create("patches", options, side, 0)
    extractors.fit(patches, frame(patches), first, 0)
    return patches


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def frame(extractor: Extractor) -> Frame:
    channels, side, _ = extractor.image_shape
    return Frame(side, side, channels)


def encoded(extractor: Extractor, images: Any) -> Array:
    """Return the features (n, d) of images."""
    batches = extractors.encode_batches(extractor, frame(extractor), images_from(images))
    return torch.cat([features for _, features, _ in batches]).numpy()


def draw_sets(folder: Path) -> Path:
    """Write generated images as sets of photos, to try the benchmark without photos."""
    random = np.random.default_rng(0)
    for name in SETS:
        for label in range(3):
            coarse = random.uniform(40, 215, (6, 6, 3))
            for half, count in (("train", 9), ("test", 3)):
                (folder / name / half / f"kind {label}").mkdir(parents=True)
                for number in range(count):
                    pixels = np.clip(coarse + random.normal(0, 30, coarse.shape), 0, 255).astype(np.uint8)
                    image = Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC)
                    image.save(folder / name / half / f"kind {label}" / f"{number}.png")
    return folder


def others(cifar: str | None, count: int = OTHERS) -> dict[str, Any]:
    """Return images of other kinds: digits, plain walls, and CIFAR-100 if its folder is given."""
    random = np.random.default_rng(0)
    digits = load_digits().images
    chosen = random.permutation(len(digits))[:count]
    found: dict[str, Any] = {
        "digits": [(digits[row] * 15.9).astype(np.uint8) for row in chosen],
        "walls": [wall(random) for _ in range(count)],
    }
    if cifar is not None:
        test = load("cifar100", root=cifar).test
        rows = random.permutation(len(test))[:count]
        found["CIFAR-100"] = test.take(rows).numpy().transpose(0, 2, 3, 1)
    return found


def wall(random: np.random.Generator, side: int = 224) -> Array:
    """Draw a plain wall: two similar colours that fade into each other, and noise as of a camera."""
    angle, colour = random.uniform(0, 2 * np.pi), random.uniform(30, 225, 3)
    across = np.linspace(-1, 1, side)
    fade = np.cos(angle) * across[:, None] + np.sin(angle) * across
    pixels = colour + fade[..., None] * random.normal(0, 15, 3) + random.normal(0, random.uniform(1, 6), (side, side, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)
