"""Images per second of the batched CIFAR augmentation, beside a Pillow pipeline of one image at a time (PyCIL's kind).

Both do pad 4, crop 32, flip, brightness 63/255, normalise, on one thread, in turns. Run: python benchmarks/augment.py
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from amgc.data.augment import Augment

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
BATCH, COUNT, ROUNDS = 128, 5120, 7


def one_by_one(images: list[Image.Image], random: np.random.RandomState) -> torch.Tensor:
    """What torchvision's transforms do to PIL images, written out."""
    mean, std = (torch.tensor(value)[:, None, None] for value in (MEAN, STD))
    batch = []
    for image in images:
        left, top = random.randint(0, 9, 2)
        image = ImageOps.expand(image, 4).crop((left, top, left + 32, top + 32))
        if random.rand() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(random.uniform(1 - 63 / 255, 1 + 63 / 255))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        batch.append(pixels.sub_(mean).div_(std))
    return torch.stack(batch)


def rate(function: Callable[[int], object]) -> float:
    start = time.perf_counter()
    for first in range(0, COUNT, BATCH):
        function(first)
    return COUNT / (time.perf_counter() - start)


def main() -> None:
    torch.set_num_threads(1)
    pixels = torch.from_numpy(np.random.RandomState(0).randint(0, 256, (COUNT, 3, 32, 32), dtype=np.uint8))
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
    augment = Augment(32, MEAN, STD, padding=4, flip=True, brightness=63 / 255)
    generator, random = torch.Generator().manual_seed(0), np.random.RandomState(0)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(rate(lambda first: augment(pixels[first : first + BATCH], generator)))
        theirs.append(rate(lambda first: one_by_one(pictures[first : first + BATCH], random)))
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    print(f"{platform.processor() or platform.machine()}, 1 thread, torch {torch.__version__}, batches of {BATCH}")
    print(f"batched      {statistics.median(ours):9,.0f} images/s")
    print(f"one by one   {statistics.median(theirs):9,.0f} images/s")
    print(f"ratio        {statistics.median(ratios):9.1f}  ({ratios[0]:.1f} to {ratios[-1]:.1f}, {ROUNDS} rounds)")


if __name__ == "__main__":
    main()
