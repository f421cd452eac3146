"""EfficientNet-Lite with numpy, for a few images: importing torch takes longer than computing their features.

The features are those of `amgc.features.lite.Lite`, up to rounding. Maps are (height, width, channels), so that a 1×1
convolution is a matrix product, and a depthwise convolution a sum of shifted maps.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amgc import files, tensor_files
from amgc.features.builtin import LiteOptions
from amgc.features.lite_layout import LATE_MEANS, TINY, VARIANTS, BlockShape, Layout, same
from amgc.features.registry import KIND, ImageShape, Options, find

Maps = NDArray[np.float32]


def can_compute(name: str, options: Options) -> bool:
    """Return whether the features of this extractor can be computed without torch."""
    return name in VARIANTS and isinstance(options, LiteOptions) and not options.resize


@dataclass(frozen=True)
class LiteArrays:
    """A network with arrays as weights. mean, std : of pixel values scaled to [0, 1], per channel."""

    layout: Layout
    unit: bool
    weights: dict[str, Maps]
    image_shape: ImageShape
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> LiteArrays | None:
        """Return the network in a file of `save_extractor`; None if it can only be computed with torch."""
        header, weights = tensor_files.read_arrays(path, KIND)
        try:
            name = header["extractor"]
            if name not in VARIANTS:
                return None
            options = find(name).with_options(header["options"])
            if not can_compute(name, options):
                return None
            assert isinstance(options, LiteOptions)
            channels, height, width = header["image_shape"]
            mean, std = (tuple(map(float, header[each])) for each in ("mean", "std"))
            layout = Layout.of(name, options)
            if channels not in (1, 3) or not len(mean) == len(std) == channels or min(std) <= 0:
                raise ValueError(f"images of {channels} channels do not fit mean {mean} and std {std}")
            for layer, shape in layout.shapes().items():
                weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
                if (weight.shape, bias.shape) != (shape, shape[:1]) or not weight.dtype == bias.dtype == np.float32:
                    raise ValueError(f"{layer} has weights {weight.dtype} {weight.shape} instead of {shape}")
        except files.MISFITS as error:
            raise files.misfit(path, error) from error
        return cls(layout, options.unit, weights, (channels, height, width), mean, std)

    def features(self, pixels: NDArray[np.uint8]) -> Maps:
        """Return the features (dim,) of pixels (c, h, w)."""
        std = np.array(self.std)
        image = (pixels.transpose(1, 2, 0) / (255 * std) - self.mean / std).astype(np.float32)
        maps, found = self._stem(np.broadcast_to(image, (*image.shape[:2], 3))), []
        for number, block in enumerate(self.layout.blocks):
            maps = self._block(maps, f"blocks.{number}", block)
            if number in self.layout.means:
                found.append(self._scaled(_mean(maps), self.layout.means[number]))
            if number in self.layout.deviations:
                variance = _mean(np.square(maps - _mean(maps)))
                found.append(self._scaled(np.sqrt(variance + TINY), self.layout.deviations[number]))
        if self.layout.top:
            found.append(self._scaled(_mean(self._pointwise(maps, "top")), LATE_MEANS))
        return np.concatenate(found)

    def _scaled(self, part: Maps, length: float) -> Maps:
        """Return features of one stage with this length, or as they are."""
        return (length * part / max(float(np.linalg.norm(part)), 1e-12)).astype(np.float32) if self.unit else part

    def _block(self, maps: Maps, name: str, block: BlockShape) -> Maps:
        wide = self._pointwise(maps, f"{name}.expand") if block.expansion > 1 else maps
        out = self._pointwise(self._depthwise(wide, f"{name}.depthwise", block), f"{name}.project", clamp=False)
        return out + maps if block.shortcut else out

    def _pointwise(self, maps: Maps, layer: str, clamp: bool = True) -> Maps:
        """Return a 1×1 convolution, clamped to [0, 6] (ReLU6)."""
        return self._linear(maps, self.weights[f"{layer}.weight"][:, :, 0, 0].T, layer, clamp)

    def _linear(self, maps: Maps, weight: Maps, layer: str, clamp: bool) -> Maps:
        """Return the product of every pixel with a weight (in, out), plus the bias of a layer."""
        out = maps.reshape(-1, len(weight)) @ weight  # one product, not one for each row of the image
        out += self.weights[f"{layer}.bias"]
        if clamp:
            np.clip(out, 0, 6, out=out)
        return out.reshape(*maps.shape[:2], -1)

    def _depthwise(self, maps: Maps, layer: str, block: BlockShape) -> Maps:
        """Return a convolution of each channel with its own kernel, clamped."""
        kernel = np.ascontiguousarray(self.weights[f"{layer}.weight"][:, 0].transpose(1, 2, 0))
        parts = _shifted(maps, block.kernel, block.stride)
        out = np.empty_like(parts[0])
        term = np.empty_like(out)
        out[:] = self.weights[f"{layer}.bias"]
        for part, weight in zip(parts, kernel.reshape(len(parts), -1), strict=True):
            np.multiply(part, weight, out=term)
            out += term
        np.clip(out, 0, 6, out=out)
        return out

    def _stem(self, image: Maps) -> Maps:
        """Return the first convolution, 3×3 with stride 2: one matrix product of the 27 values that each pixel depends on."""
        weight = self.weights["stem.weight"].transpose(2, 3, 1, 0).reshape(27, -1)
        return self._linear(np.concatenate(_shifted(image, 3, 2), axis=2), weight, "stem", clamp=True)


def _mean(maps: Maps) -> Maps:
    """Return the mean over pixels, (channels,)."""
    mean: NDArray[np.float64] = maps.mean((0, 1), dtype=np.float64)
    return mean.astype(np.float32)


def _shifted(maps: Maps, kernel: int, stride: int) -> list[Maps]:
    """Return the pixels that each place of a kernel sees, as views of padded maps, row by row."""
    (top, bottom), (left, right) = (same(size, kernel, stride) for size in maps.shape[:2])
    padded = np.pad(maps, ((top, bottom), (left, right), (0, 0)))
    height, width = (-(-size // stride) * stride for size in maps.shape[:2])
    places = [(row, column) for row in range(kernel) for column in range(kernel)]
    return [padded[row : row + height : stride, column : column + width : stride] for row, column in places]
