"""ResNet-18 and ResNet-32 (He et al. 2016), with torchvision's parameter names, so that published weights can be loaded.

They are not taken from torchvision because its default package cannot be imported with a CPU build of torch, and because
neither torchvision nor timm has all three stems of the class-incremental literature.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from amgc.features.builtin import Shortcut, Stem
from amgc.features.extractor import Extractor, initialise


class ResNet(Extractor):
    """A stem, one stage of basic blocks per width (each after the first at half the resolution), the mean over pixels.

    Images may have any size. The stem `imagenet` reduces them 32-fold before the mean, so it does not suit small images.
    """

    def __init__(self, channels: int, stem: Stem, widths: Sequence[int], blocks: int, shortcut: Shortcut) -> None:
        super().__init__()
        width = widths[0]
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, stride=2, padding=1)
        self.layers: list[str] = []
        for number, wider in enumerate(widths, start=1):
            first = BasicBlock(width, wider, 1 if number == 1 else 2, shortcut)
            rest = (BasicBlock(wider, wider, 1, shortcut) for _ in range(blocks - 1))
            self.add_module(f"layer{number}", nn.Sequential(first, *rest))
            self.layers.append(f"layer{number}")
            width = wider
        self.dim = width
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, dim), not negative, of float images (n, c, h, w)."""
        maps: Tensor = relu(self.maxpool(self.bn1(self.conv1(images))), inplace=True)  # the same, on a quarter of the pixels
        for layer in self.layers:
            maps = self.get_submodule(layer)(maps)
        return maps.mean((2, 3))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, and a shortcut around them."""

    def __init__(self, channels: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module
        if stride == 1 and channels == width:
            self.downsample = nn.Identity()
        elif shortcut == "A":
            self.downsample = ZeroPadded(width - channels, stride)
        else:
            projection = nn.Conv2d(channels, width, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(width))

    def forward(self, maps: Tensor) -> Tensor:
        out = relu(self.bn1(self.conv1(maps)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.downsample(maps)
        return relu(out, inplace=True)


class ZeroPadded(nn.Module):
    """Shortcut A, which has no parameters: every second pixel, and zeros in the additional channels.

    The zeros come last, as in PyCIL. Some published CIFAR networks put half of them first. Their weights can be loaded here,
    but give different features.
    """

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, maps: Tensor) -> Tensor:
        return pad(maps[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
