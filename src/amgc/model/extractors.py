"""The extractor of a model: made from what a user names, fitted on the first images, applied to batches of pixels."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc.core.statistics import Form
from amgc.data.augment import normalise
from amgc.data.images import Images
from amgc.data.sets.folders import MEAN, STD
from amgc.features import build, extractors
from amgc.features.extractor import Extractor
from amgc.features.pretrained import import_timm
from amgc.features.registry import find
from amgc.features.weights import load_extractor, read_weights
from amgc.files import FileFormatError
from amgc.model.folder import Folder
from amgc.model.pictures import Frame, Picture, PictureError
from amgc.registry import is_file

FILTERS = 400  # of patches: 3,200 features, whose shared covariance is a file of 20 MB
SIDE = 64  # of pictures for patches, at most: their own size if the first ones are smaller
FIT_PICTURES = 2500  # that patches are fitted on, at most; all in memory, 30 MB
LOOKED_AT = 64  # of the first pictures, to see how large they are and whether any has colour
PIXELS = 1 << 20  # in a batch
FULL, LOWRANK = 256, 4096  # dimensions up to which each class keeps its whole covariance, or the leading part of it
ENCODING = threading.Lock()  # an extractor uses all cores, and patches set torch's number of threads


def wanted(features: str | os.PathLike[str], options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and options of the extractor that a user means by a name or a file."""
    name = os.fspath(features)
    if name.partition(":")[0] in extractors():
        base, _, model = name.partition(":")
        usual = {"filters": FILTERS, "draw": "gaussian"} if base == "patches" else {}
        chosen = usual | options | ({"model": model} if model else {})
        find(name).with_options(chosen)  # says what is wrong before anything is written
        if base == "patches" and chosen.get("weights") is not None:
            raise ValueError(
                "patches have no weights: they are fitted on the first pictures. Leave the weights out, or name a network."
            )
        return base, chosen
    if is_file(name):
        raise ValueError(
            f"a model cannot use the extractor in {name!r}: whoever opens the model would have to run that file. Name an "
            "extractor of amgc, or import your file in Python before you create or open the model."
        )
    if Folder(name).exists:
        return str(_extractor_of(Folder(name))), options
    if not Path(name).is_file():
        raise ValueError(
            f"there is no extractor and no file {name!r}; extractors are {', '.join(extractors())} (as timm:NAME), files and "
            "models."
        )
    return name, options


def _extractor_of(folder: Folder) -> Path:
    """The file of another model's extractor."""
    entry = folder.manifest().files.get("extractor")
    if entry is None:
        raise ValueError(f"the model in {str(folder.path)!r} has no extractor yet: its first pictures make it.")
    return folder.checked(entry)


def scale_of(features: str | os.PathLike[str]) -> int | None:
    """The side that another model, named as `features`, scales pictures to before they are cut; None: to that of the cut."""
    folder = Folder(features)
    return folder.manifest().image["scale"] if folder.exists else None


def make(name: str, options: dict[str, Any], size: int | None, seed: int) -> Extractor:
    """The extractor, its weights drawn or loaded."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        made = _build(name, options, size) if name in extractors() else _from_file(name, options, size)
    if made.mean is None:
        made.mean, made.std = (MEAN, STD) if made.image_shape[0] == 3 else ((0.5,), (0.25,))
    return made.eval().requires_grad_(False)


def _build(name: str, options: dict[str, Any], size: int | None) -> Extractor:
    if size is None and name == "timm":
        config = import_timm().get_pretrained_cfg(options["model"])
        size = config.input_size[-1] if config else 224
    side = size or (224 if options.get("stem") == "imagenet" else SIDE if name == "patches" else 32)
    return build(name, image_shape=(3, side, side), **options)


def _from_file(path: str, options: dict[str, Any], size: int | None) -> Extractor:
    """An extractor that amgc saved, or the weights of a ResNet-18."""
    try:
        made = load_extractor(path)
    except FileFormatError:
        first = read_weights(path).get("conv1.weight")
        if first is None:
            raise
        stem = "imagenet" if first.shape[-1] == 7 else "cifar"
        return _build("resnet18", {"stem": stem, "width": len(first) / 64, "weights": path} | options, size)
    if options or size not in (None, made.image_shape[1]):
        raise ValueError(f"{path!r} says how its extractor is made: {made.options}, images of {made.image_shape[1]} pixels.")
    return made


def form_for(extractor: Extractor) -> Form:
    """What is kept of classes' spread."""
    if extractor.name == "patches" or extractor.dim > LOWRANK:
        return "shared"
    return "full" if extractor.dim <= FULL else "lowrank"


def suited(options: dict[str, Any], size: int | None, first: Sequence[Picture]) -> tuple[dict[str, Any], int]:
    """Patches for these pictures: no larger than they are, and not mirrored if all are grey, as they may be writing."""
    seen = [image for picture in first[:: max(1, len(first) // LOOKED_AT)] if (image := _or_none(picture)) is not None]
    side = size or max(8, min(SIDE, int(np.median([min(image.shape[:2]) for image in seen])) if seen else SIDE))
    grey = bool(seen) and all((image[..., :1] == image).all() for image in seen)
    return ({"mirror": not grey} | options if options.get("mirror") is None else options), side


def _or_none(picture: Picture) -> NDArray[np.uint8] | None:
    try:
        return np.asarray(picture.read(2 * SIDE))
    except PictureError:
        return None


def fit(extractor: Extractor, frame: Frame, first: Sequence[Picture], seed: int) -> None:
    """Let an extractor that needs it learn from the first pictures, without labels."""
    drawing = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(first), generator=drawing)[:FIT_PICTURES].sort().values.tolist()
    usable = [one for one in frame.each([first[row] for row in chosen]) if not isinstance(one, PictureError)]
    if not usable:
        raise next(one for one in frame.each([first[row] for row in chosen[:1]]) if isinstance(one, PictureError))
    images = Images.of(np.stack(usable), [0] * len(usable))
    with ENCODING:
        extractor.fit(images, preprocess=lambda batch: prepared(extractor, batch), generator=drawing)


def prepared(extractor: Extractor, pixels: Tensor) -> Tensor:
    """Pixels (n, c, h, w), uint8, as the extractor wants them."""
    assert extractor.mean is not None and extractor.std is not None
    return normalise(pixels, extractor.mean, extractor.std)


def encode(extractor: Extractor, pixels: NDArray[np.uint8]) -> Tensor:
    """Features (n, d), float32, of pixels (n, c, h, w)."""
    with ENCODING, torch.inference_mode():
        features: Tensor = extractor(prepared(extractor, torch.from_numpy(pixels))).float()
    return features.clone()  # an ordinary tensor


def batches(
    frame: Frame, given: Sequence[Picture]
) -> Iterator[tuple[list[int], NDArray[np.uint8], list[tuple[int, PictureError]]]]:
    """The rows of usable pictures with their pixels (n, c, h, w), a batch at a time, and rows that are not, with the reason."""
    size = max(16, min(256, PIXELS // (frame.channels * frame.side**2)))
    rows: list[int] = []
    pixels: list[NDArray[np.uint8]] = []
    wrong: list[tuple[int, PictureError]] = []
    for row, one in enumerate(frame.each(given)):
        if isinstance(one, PictureError):
            wrong.append((row, one))
        else:
            rows.append(row)
            pixels.append(one)
        if len(rows) + len(wrong) >= size or row == len(given) - 1:
            empty = np.empty((0, frame.channels, frame.side, frame.side), np.uint8)
            yield rows, np.stack(pixels) if pixels else empty, wrong
            rows, pixels, wrong = [], [], []
