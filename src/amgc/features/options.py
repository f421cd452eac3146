"""What can be chosen about each extractor. The fields are the command line's flags and the presets' keys.

Free of torch, so that `amgc --help` and `amgc list features` can read it without waiting for torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, get_args

Stem: TypeAlias = Literal["cifar", "imagenet", "imagenet3"]
Shortcut: TypeAlias = Literal["A", "B"]
Draw: TypeAlias = Literal["patches", "gaussian"]


def about(help: str, source: str = "") -> dict[str, str]:
    """The metadata of an option: its help text, and the place that its default comes from."""
    return {"help": help, "source": source}


@dataclass(frozen=True)
class Options:
    """What every extractor can be told."""

    weights: str | None = field(
        default=None, metadata=about("file with the weights to start from (.safetensors, .pth); default: random")
    )


@dataclass(frozen=True)
class ConvNetOptions(Options):
    """A small convolutional network for digits."""

    dim: int = field(default=64, metadata=about("number of features", "ours: as many as ResNet-32"))

    def __post_init__(self) -> None:
        if self.dim < 4 or self.dim % 4:
            raise ValueError(f"dim must be a positive multiple of 4 (the first layer has dim/4), not {self.dim!r}.")


@dataclass(frozen=True)
class ResNet18Options(Options):
    """ResNet-18; 512 features at width 1."""

    stem: Stem = field(
        default="cifar",
        metadata=about(
            "first layers: cifar (3×3, stride 1), imagenet (7×7, stride 2, pool) or imagenet3 (3×3, stride 1, pool)",
            "PyCIL for CIFAR; for ImageNet it takes imagenet if all tasks have one size, and else imagenet3",
        ),
    )
    width: float = field(default=1.0, metadata=about("factor on all channel counts; 0.25 gives 128 features", "He et al. 2016"))

    def __post_init__(self) -> None:
        _one_of("stem", self.stem, get_args(Stem))
        if not self.width * 64 >= 1:
            raise ValueError(f"width must be at least 1/64 (one channel in the stem), not {self.width!r}.")


@dataclass(frozen=True)
class ResNet32Options(Options):
    """ResNet-32 for CIFAR; 64 features."""

    shortcut: Shortcut = field(
        default="A",
        metadata=about(
            "where the shape changes: A (every second pixel, new channels zero) or B (1×1 convolution and batch norm)",
            "PyCIL's convs/cifar_resnet.py; He et al. 2016, section 4.2",
        ),
    )

    def __post_init__(self) -> None:
        _one_of("shortcut", self.shortcut, get_args(Shortcut))


@dataclass(frozen=True)
class PatchesOptions(Options):
    """Patches: trains nothing; filters fitted on task 1's images; 2 × grid² × filters features."""

    filters: int = field(
        default=0,
        metadata=about("number of filters, divided among the patch sizes; 0: 24 for each number in a patch, at most 1,600"),
    )
    sizes: tuple[int, ...] = field(
        default=(), metadata=about("sides of the patches in pixels; empty: 5, on images below 14 pixels three eighths of them")
    )
    side: int = field(default=64, metadata=about("larger images are reduced to this many pixels on their longer side"))
    stride: int = field(default=0, metadata=about("pixels from a patch to the next; 0: 1, on images of more than 48 pixels 2"))
    grid: int = field(
        default=2, metadata=about("responses are averaged over grid × grid cells of the image", "Coates & Ng 2011")
    )
    threshold: float = field(default=0.4, metadata=about("what a response must exceed, either way, to count", "ours, measured"))
    mirror: bool | None = field(
        default=None,
        metadata=about(
            "average the features of an image and of its mirror image, in twice the time; none: of images in colour only, as "
            "grey ones may be writing",
            "ours, measured",
        ),
    )
    power: float = field(
        default=0.7, metadata=about("of the averaged responses; 0.5 is the square root, 1 none", "ours, measured")
    )
    contrast: float = field(
        default=10.0,
        metadata=about("added to a patch's deviation (of pixels 0 to 255) that it is divided by", "Coates & Ng 2012"),
    )
    whitening: float = field(
        default=0.1, metadata=about("added to the patches' variances before whitening", "Coates & Ng 2012")
    )
    draw: Draw = field(
        default="patches",
        metadata=about(
            "filters are whitened patches of task 1's images, or drawn from the Gaussian with their covariance: then no piece "
            "of an image is kept"
        ),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))  # JSON and TOML know no tuples
        for name, value, least in (
            ("filters", self.filters, self.filters and len(self.sizes)),
            ("side", self.side, 1),
            ("stride", self.stride, 0),
            ("grid", self.grid, 1),
            *(("sizes", size, 1) for size in self.sizes),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value!r}.")
        for name in ("threshold", "contrast"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, not {getattr(self, name)!r}.")
        for name in ("power", "whitening"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and above 0, not {getattr(self, name)!r}.")
        _one_of("draw", self.draw, get_args(Draw))

    def settled(self, channels: int, height: int, width: int) -> PatchesOptions:
        """What is left to the image (after any reduction to `side`) decided: this is the one place that does."""
        shorter = min(height, width)
        sizes = self.sizes or (min(5, max(1, 3 * shorter // 8)),)
        filters = self.filters or min(1600, sum(24 * channels * size**2 for size in sizes))
        mirror = channels == 3 if self.mirror is None else self.mirror
        return replace(self, sizes=sizes, filters=filters, stride=self.stride or (2 if shorter > 48 else 1), mirror=mirror)


@dataclass(frozen=True)
class TimmOptions(Options):
    """Any model of timm, as `timm:NAME`; needs the extra `timm`."""

    model: str = field(default="", metadata=about("timm's name of the model; timm:NAME sets it"))
    pretrained: bool = field(
        default=True,
        metadata=about(
            "start from timm's published weights (a download, or the file `weights`); grey images are repeated to their "
            "channels"
        ),
    )
    resize: int = field(
        default=0, metadata=about("resize images to this side before the network, bilinear; 0: leave them as they are")
    )

    def __post_init__(self) -> None:
        if self.resize < 0:
            raise ValueError(f"resize must be a side in pixels, or 0 for none; not {self.resize!r}.")


OPTIONS: dict[str, type[Options]] = {
    "convnet": ConvNetOptions,
    "patches": PatchesOptions,
    "resnet18": ResNet18Options,
    "resnet32": ResNet32Options,
    "timm": TimmOptions,
}


def make_options(name: str, chosen: dict[str, Any]) -> Options:
    """The options of extractor `name` with the `chosen` ones set; a name that it does not know is an error."""
    known = [f.name for f in fields(OPTIONS[name])]
    if wrong := sorted(set(chosen) - set(known)):
        raise TypeError(f"{name} has no option {', '.join(map(repr, wrong))}; its options are {', '.join(known)}.")
    return OPTIONS[name](**chosen)


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; not {value!r}.")
