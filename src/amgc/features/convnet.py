"""A small convolutional network for images the size of digits, 8×8 to 32×32; trains in seconds."""

from __future__ import annotations

from torch import Tensor, nn

from amgc.features.extractor import Extractor, initialise
from amgc.features.registry import ImageShape


class ConvNet(Extractor):
    """Three 3×3 convolutions with batch norm, a max-pool after each of the first two, the mean over pixels.

    So small a network could be trained without batch norm. It has batch norm so that runs on digits show the effect of what a
    method does with it after task 1, as with a ResNet.
    """

    def __init__(self, image_shape: ImageShape, dim: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        if min(height, width) < 4:
            raise ValueError(f"convnet halves images twice and needs at least 4 × 4 pixels, not {height} × {width}.")
        self.dim = dim
        self.layers = nn.Sequential(
            *_layer(channels, self.dim // 4),
            nn.MaxPool2d(2),
            *_layer(self.dim // 4, self.dim // 2),
            nn.MaxPool2d(2),
            *_layer(self.dim // 2, self.dim),
        )
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, dim), not negative, of float images (n, c, h, w)."""
        maps: Tensor = self.layers(images)
        return maps.mean((2, 3))


def _layer(channels: int, width: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
