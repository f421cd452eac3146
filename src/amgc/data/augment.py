"""Augmentation of whole batches on tensors, with an explicit generator: the same state gives the same batch.

A batch is uint8 (n, c, h, w) before and normalised float32 after. All images are processed together
(benchmarks/augment.py measures how much faster that is than one image at a time). Random numbers come from a
`BatchRandom`, on the generator's device. They depend on the size of the whole batch only, not on how many processes share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn import functional

from amgc.data.images import Augmentation, Dataset


@dataclass(frozen=True)
class BatchRandom:
    """Draw the random numbers of one batch. An image gets the same numbers however many processes share the batch.

    Every process draws for the whole batch and keeps its own part. Generators in the same state then stay in step, and two
    processes with half a batch each augment every image exactly as one process with the whole batch. The unused numbers
    cost little: about twenty per image at most.

    generator : in the same state on every process; its device draws.
    start, total : this process holds the images from `start` on of a batch of `total`. None: the whole batch.

    >>> def draw(start: int, total: int, count: int) -> list[int]:
    ...     return BatchRandom(torch.Generator().manual_seed(0), start, total).integers((count,), 100).tolist()
    >>> draw(0, 5, 2) + draw(2, 5, 3) == draw(0, 5, 5)
    True
    """

    generator: Generator
    start: int = 0
    total: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.total is None and self.start):
            raise ValueError(f"start={self.start} of total={self.total} images: a part has a start from 0 on and a total.")

    @classmethod
    def of(cls, random: BatchRandom | Generator) -> BatchRandom:
        """Return random numbers for a whole batch from a plain generator."""
        return random if isinstance(random, BatchRandom) else cls(random)

    def uniform(self, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0, *, dim: int = 0) -> Tensor:
        """Return float32 numbers from low to high; `dim` is the dimension of `shape` that counts this process's images."""
        whole = torch.rand(self._whole(shape, dim), generator=self.generator, device=self.generator.device)
        return whole.narrow(dim, self.start, shape[dim]) * (high - low) + low

    def integers(self, shape: tuple[int, ...], stop: int, *, dim: int = 0) -> Tensor:
        """Return int64 numbers from 0 to stop - 1, in the same way."""
        whole = torch.randint(stop, self._whole(shape, dim), generator=self.generator, device=self.generator.device)
        return whole.narrow(dim, self.start, shape[dim])

    def _whole(self, shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
        total = shape[dim] if self.total is None else self.total
        if self.start + shape[dim] > total:
            raise ValueError(f"images {self.start} to {self.start + shape[dim] - 1} lie outside of a batch of {total}.")
        return tuple(total if place == dim % len(shape) else size for place, size in enumerate(shape))


def pad_crop(images: Tensor, padding: int, random: BatchRandom) -> Tensor:
    """Apply RandomCrop(size, padding): pad with zeros, then crop a window of the original size at random."""
    count, _, height, width = images.shape
    top, left = random.integers((2, count), 2 * padding + 1, dim=1).to(images.device)
    padded = functional.pad(images, (padding, padding, padding, padding))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view (n, c, 2p + 1, 2p + 1, h, w)
    return windows[torch.arange(count, device=images.device), :, top, left]


def flip(images: Tensor, random: BatchRandom) -> Tensor:
    """Apply RandomHorizontalFlip: mirror each image with probability 1/2."""
    mirrored = random.uniform((len(images),)) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def brightness(images: Tensor, strength: float, random: BatchRandom) -> Tensor:
    """Apply ColorJitter(brightness): multiply each image by a number in 1 ± strength, clipped at 255. Returns float32.

    The per-image pipeline also rounds to integers; that difference, below 1/255, is ignored.
    """
    factor = random.uniform((len(images),), max(0.0, 1 - strength), 1 + strength).to(images.device)
    return (images * factor[:, None, None, None]).clamp_(max=255)


def resized_crop(
    images: Tensor,
    size: int,
    random: BatchRandom,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Apply RandomResizedCrop: crop a window of random area and shape and scale it to `size`. Returns float32, 0 to 255.

    Windows are drawn as in torchvision (ten tries, then the centre).
    """
    _, _, height, width = images.shape
    box = crop_boxes(len(images), height, width, random, scale, ratio).to(images.device, torch.float32)
    top, left, tall, wide = box.T[:, :, None]
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    # Pixel coordinates within the window: pixels outside of it must not contribute at its edge.
    y = (top + steps * tall - 0.5).clamp(min=top, max=top + tall - 1)
    x = (left + steps * wide - 0.5).clamp(min=left, max=left + wide - 1)
    y, x = (2 * y + 1) / height - 1, (2 * x + 1) / width - 1
    grid = torch.stack([x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=-1)
    return functional.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


def crop_boxes(
    count: int, height: int, width: int, random: BatchRandom, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Return random windows (count, 4) int64: top, left, height, width."""
    tries = 10
    area = random.uniform((count, tries), *scale) * (height * width)
    shape = random.uniform((count, tries), math.log(ratio[0]), math.log(ratio[1])).exp()
    wide, tall = (area * shape).sqrt().round().long(), (area / shape).sqrt().round().long()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.int().argmax(1, keepdim=True)
    wide, tall = wide.gather(1, first).squeeze(1), tall.gather(1, first).squeeze(1)
    spot = random.uniform((2, count), dim=1)
    # No try fitted: the largest window of an allowed shape, from the centre.
    fallback_wide, fallback_tall = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    none = ~fits.any(1)
    wide, tall = wide.masked_fill(none, fallback_wide), tall.masked_fill(none, fallback_tall)
    spot = spot.masked_fill(none, 0.5)
    top, left = (spot[0] * (height - tall + 1)).long(), (spot[1] * (width - wide + 1)).long()
    return torch.stack([top.minimum(height - tall), left.minimum(width - wide), tall, wide], dim=1)


def rotations(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the label augmentation of PASS: each image turned by 0, 90, 180 and 270°, with the label 4·label + turn.

    images (n, c, s, s) → (4n, c, s, s), the four turns of an image next to each other.

    >>> rotations(torch.zeros(2, 1, 3, 3), torch.tensor([0, 5]))[1].tolist()
    [0, 1, 2, 3, 20, 21, 22, 23]
    """
    if images.shape[-1] != images.shape[-2]:
        raise ValueError(f"only square images can be turned by 90°, not {images.shape[-2]} × {images.shape[-1]}.")
    turned = torch.stack([torch.rot90(images, turn, (2, 3)) for turn in range(4)], dim=1)
    turns = torch.arange(4, device=labels.device)
    return turned.flatten(0, 1), (labels[:, None] * 4 + turns).flatten()


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (image / 255 - mean) / std per channel, float32.

    Images of one channel are repeated to as many as there are means.
    """
    centre, spread = torch.tensor([mean, std], dtype=torch.float32, device=images.device)[:, :, None, None]
    scaled = images.expand(-1, len(mean), -1, -1).to(torch.float32, copy=True)
    return scaled.mul_(1 / (255 * spread)).sub_(centre / spread)  # in place: new memory would take most of the time


def centre_crop(images: Tensor, size: int) -> Tensor:
    top, left = round((images.shape[2] - size) / 2.0), round((images.shape[3] - size) / 2.0)
    return images[:, :, top : top + size, left : left + size]


@dataclass(frozen=True)
class Augment:
    """Augment and normalise batches of uint8 images for a network.

    `augment(images, random)` is for training, with a `BatchRandom` or a plain generator. `augment.plain(images)` is for
    testing, statistics and features.

    resized : RandomResizedCrop to `size`, and for plain images the centre of that size; else images keep their size and
        get `padding` zeros around and a crop (0: none).
    flip, brightness : mirror with probability 1/2; factor 1 ± brightness.
    mean, std : per channel; empty for features, which pass as they are.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 0
    flip: bool = False
    brightness: float = 0.0
    resized: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> Augment:
        """Return the augmentation of a data set, `Dataset.augmentation`. The default is a padding of one eighth, as for CIFAR,
        and flips of colour images only, because grey images may show writing.
        """
        if dataset.is_features:
            return cls(0, (), ())
        channels, size, _ = dataset.train.shape
        if not len(dataset.mean) == len(dataset.std) == channels:
            raise ValueError(
                f"{dataset.name}: images of {channels} channels need as many numbers as mean and std to be normalised with; "
                f"it has mean={dataset.mean}, std={dataset.std}."
            )
        general: Augmentation = {"padding": max(1, size // 8), "flip": channels == 3}
        said = general if dataset.augmentation is None else dataset.augmentation
        return replace(cls(size, dataset.mean, dataset.std), **said)

    def normalised(self, mean: Sequence[float] | None, std: Sequence[float] | None) -> Augment:
        """Return the same with the mean and std that a network was trained with (`Extractor.mean`, `.std`), unless None.

        Grey images for a network of three channels are repeated, each channel normalised with its own numbers.
        """
        if mean is None or std is None or not self.mean:
            return self
        if len(mean) != len(std) or len(self.mean) not in (1, len(mean)):
            raise ValueError(
                f"images of {len(self.mean)} channels cannot be normalised with {len(mean)} means and {len(std)} standard "
                "deviations: the network was made for other images."
            )
        return replace(self, mean=tuple(mean), std=tuple(std))

    def __call__(self, images: Tensor, random: BatchRandom | Generator) -> Tensor:
        """Return a training batch as float32 (n, c, h, w), (n, c, size, size) if resized."""
        if not self.mean:
            return images
        random = BatchRandom.of(random)
        if self.resized:
            images = resized_crop(images, self.size, random)
        elif self.padding:
            images = pad_crop(images, self.padding, random)
        if self.flip:
            images = flip(images, random)
        if self.brightness:
            images = brightness(images, self.brightness, random)
        return normalise(images, self.mean, self.std)

    def plain(self, images: Tensor) -> Tensor:
        """Return a batch without random changes."""
        if not self.mean:
            return images
        if self.resized:
            images = centre_crop(images, self.size)
        return normalise(images, self.mean, self.std)
