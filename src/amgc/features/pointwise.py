"""1×1 convolutions with a stride, computed in a way that is safe on every CPU."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d

WIDEST = 16  # float32 numbers in the widest vector register, AVX-512's


def every_second(maps: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return the pixels that a 1×1 convolution with this stride reads: `maps[..., ::stride, ::stride]`.

    This uses average pooling over single pixels. Unlike slicing, it keeps channels_last and has a fast backward pass
    (benchmarks/kernels.py compares the two).
    """
    return avg_pool2d(maps, 1, list(stride))


class StridedPointwise(nn.Conv2d):
    """A 1×1 convolution with a stride, with the same results as `nn.Conv2d`: select pixels first, then convolve.

    The kernel of oneDNN for such layers (brgconv_strided, in torch 2.13) writes out of bounds in the backward pass if the input
    is channels_last and has fewer channels than a vector register holds (8 with AVX2, 16 with AVX-512). The process crashes.
    """

    def forward(self, maps: Tensor) -> Tensor:
        return conv2d(every_second(maps, self.stride), self.weight, self.bias, groups=self.groups)


def make_safe(network: nn.Module) -> None:
    """Turn every 1×1 convolution with a stride into a `StridedPointwise`. Parameters and their names do not change."""
    for name, layer in network.named_modules():
        if not isinstance(layer, nn.Conv2d) or set(layer.kernel_size) != {1} or set(layer.stride) == {1}:
            continue
        if type(layer) is nn.Conv2d and layer.padding in ((0, 0), "valid"):
            layer.__class__ = StridedPointwise
        elif not isinstance(layer, StridedPointwise) and layer.in_channels < WIDEST:
            raise ValueError(
                f"layer {name!r} is a {type(layer).__name__} of 1 × 1 pixel with a stride and {layer.in_channels} input "
                f"channels. Training it may crash torch on a CPU if there are fewer than {WIDEST}. Choose another network."
            )
