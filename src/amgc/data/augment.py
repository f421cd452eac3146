"""Augmentation of whole batches on tensors, with an explicit generator: the same state gives the same batch.

A batch comes as uint8 (n, c, h, w) and leaves as normalised float32; no image is touched on its own
(benchmarks/augment.py prints how much faster that is than a pipeline of one image at a time). Random numbers come from a
`Chance`, on the generator's device, in an order that depends on the size of the whole batch alone: not on how many
processes share it.
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
class Chance:
    """The random numbers of one batch, the same for an image however many processes the batch is spread over.

    Every process draws for the whole batch and keeps its own part; generators in the same state then stay in step, and
    two processes with the halves of a batch augment each image exactly as one with all of it. The numbers that others
    keep cost next to nothing: some twenty per image at most.

    generator : in the same state on every process; its device draws.
    start, total : this process holds the images from `start` on of a batch of `total`. None: all of the batch is here.

    >>> def draw(start: int, total: int, count: int) -> list[int]:
    ...     return Chance(torch.Generator().manual_seed(0), start, total).integers((count,), 100).tolist()
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
    def of(cls, chance: Chance | Generator) -> Chance:
        """A bare generator draws for a batch that is all here."""
        return chance if isinstance(chance, Chance) else cls(chance)

    def uniform(self, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0, *, dim: int = 0) -> Tensor:
        """Float32 numbers from low to high; `dim` of `shape` is the one that counts this process's images."""
        whole = torch.rand(self._whole(shape, dim), generator=self.generator, device=self.generator.device)
        return whole.narrow(dim, self.start, shape[dim]) * (high - low) + low

    def integers(self, shape: tuple[int, ...], stop: int, *, dim: int = 0) -> Tensor:
        """Int64 numbers from 0 to stop - 1, in the same way."""
        whole = torch.randint(stop, self._whole(shape, dim), generator=self.generator, device=self.generator.device)
        return whole.narrow(dim, self.start, shape[dim])

    def _whole(self, shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
        total = shape[dim] if self.total is None else self.total
        if self.start + shape[dim] > total:
            raise ValueError(f"images {self.start} to {self.start + shape[dim] - 1} lie outside of a batch of {total}.")
        return tuple(total if place == dim % len(shape) else size for place, size in enumerate(shape))


def pad_crop(images: Tensor, padding: int, chance: Chance) -> Tensor:
    """RandomCrop(size, padding): zeros all around, then a window of the old size anywhere in it."""
    count, _, height, width = images.shape
    top, left = chance.integers((2, count), 2 * padding + 1, dim=1).to(images.device)
    padded = functional.pad(images, (padding, padding, padding, padding))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view (n, c, 2p + 1, 2p + 1, h, w)
    return windows[torch.arange(count, device=images.device), :, top, left]


def flip(images: Tensor, chance: Chance) -> Tensor:
    """RandomHorizontalFlip: each image mirrored or not, with even chances."""
    mirrored = chance.uniform((len(images),)) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def brightness(images: Tensor, strength: float, chance: Chance) -> Tensor:
    """ColorJitter(brightness): each image times a number in 1 ± strength, cut at white. Float32, still 0 to 255.

    The per-image pipeline also cuts to whole grey values; that difference, below 1/255, is not copied.
    """
    factor = chance.uniform((len(images),), max(0.0, 1 - strength), 1 + strength).to(images.device)
    return (images * factor[:, None, None, None]).clamp_(max=255)


def resized_crop(
    images: Tensor,
    size: int,
    chance: Chance,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """RandomResizedCrop: a window of random area and shape, scaled to `size` bilinearly. Float32, still 0 to 255.

    Windows are drawn as in torchvision (ten tries, then the centre).
    """
    _, _, height, width = images.shape
    box = crop_boxes(len(images), height, width, chance, scale, ratio).to(images.device, torch.float32)
    top, left, tall, wide = box.T[:, :, None]
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    # Pixel coordinates, kept within the window: what lies outside of it must not bleed in at its edge.
    y = (top + steps * tall - 0.5).clamp(min=top, max=top + tall - 1)
    x = (left + steps * wide - 0.5).clamp(min=left, max=left + wide - 1)
    y, x = (2 * y + 1) / height - 1, (2 * x + 1) / width - 1
    grid = torch.stack([x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=-1)
    return functional.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


def crop_boxes(
    count: int, height: int, width: int, chance: Chance, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Windows (count, 4) int64: top, left, height, width."""
    tries = 10
    area = chance.uniform((count, tries), *scale) * (height * width)
    shape = chance.uniform((count, tries), math.log(ratio[0]), math.log(ratio[1])).exp()
    wide, tall = (area * shape).sqrt().round().long(), (area / shape).sqrt().round().long()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.int().argmax(1, keepdim=True)
    wide, tall = wide.gather(1, first).squeeze(1), tall.gather(1, first).squeeze(1)
    spot = chance.uniform((2, count), dim=1)
    # No try fitted: the largest window of an allowed shape, from the centre.
    fallback_wide, fallback_tall = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    none = ~fits.any(1)
    wide, tall = wide.masked_fill(none, fallback_wide), tall.masked_fill(none, fallback_tall)
    spot = spot.masked_fill(none, 0.5)
    top, left = (spot[0] * (height - tall + 1)).long(), (spot[1] * (width - wide + 1)).long()
    return torch.stack([top.minimum(height - tall), left.minimum(width - wide), tall, wide], dim=1)


def rotations(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The label augmentation of PASS: every image turned by 0, 90, 180, 270°, each turn a class of its own, 4·label +
    turn.

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
    """(image / 255 - mean) / std per channel, float32: pixel values 0 to 255 to about ±2.

    Images of one channel are repeated to as many as there are means.
    """
    centre, spread = torch.tensor([mean, std], dtype=torch.float32, device=images.device)[:, :, None, None]
    scaled: Tensor = images * (1 / (255 * spread))
    return scaled.sub_(centre / spread)


def centre_crop(images: Tensor, size: int) -> Tensor:
    top, left = round((images.shape[2] - size) / 2.0), round((images.shape[3] - size) / 2.0)
    return images[:, :, top : top + size, left : left + size]


@dataclass(frozen=True)
class Augment:
    """What happens to a batch of uint8 images before it enters a network.

    `augment(images, chance)` is for training, with a `Chance` or a bare generator; `augment.plain(images)` for everything
    else: tests, statistics, features.

    resized : RandomResizedCrop to `size`, and for plain images the centre of that size; else images keep their size and
        get `padding` zeros around and a crop (0: none).
    flip, brightness : chances even; factor 1 ± brightness.
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
        """What the data set's source says (`Dataset.augmentation`); where it says nothing, an eighth of padding, as for
        CIFAR, and mirror images in colour only: grey images may be writing, which has none.
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
        """The same with the mean and std that a network was trained with (`Extractor.mean`, `.std`), unless they are None.

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

    def __call__(self, images: Tensor, chance: Chance | Generator) -> Tensor:
        """A training batch: uint8 (n, c, h, w) to float32, (n, c, size, size) if resized."""
        if not self.mean:
            return images
        chance = Chance.of(chance)
        if self.resized:
            images = resized_crop(images, self.size, chance)
        elif self.padding:
            images = pad_crop(images, self.padding, chance)
        if self.flip:
            images = flip(images, chance)
        if self.brightness:
            images = brightness(images, self.brightness, chance)
        return normalise(images, self.mean, self.std)

    def plain(self, images: Tensor) -> Tensor:
        """The same without chance."""
        if not self.mean:
            return images
        if self.resized:
            images = centre_crop(images, self.size)
        return normalise(images, self.mean, self.std)
