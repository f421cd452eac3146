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


def one_by_one(images: list[Image.Image], generator: torch.Generator) -> torch.Tensor:
    """What torchvision's transforms do to PIL images, written out; it draws the same numbers as the batched form."""
    tops, lefts = torch.randint(9, (2, len(images)), generator=generator).tolist()
    mirrored = (torch.rand(len(images), generator=generator) < 0.5).tolist()
    factors = ((torch.rand(len(images), generator=generator) * 2 - 1) * (63 / 255) + 1).tolist()
    mean, std = (torch.tensor(value)[:, None, None] for value in (MEAN, STD))
    batch = []
    for image, left, top, mirror, factor in zip(images, lefts, tops, mirrored, factors, strict=True):
        image = ImageOps.expand(image, 4).crop((left, top, left + 32, top + 32))
        if mirror:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(factor)
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
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    batched = augment(pixels[:BATCH], generator)
    generator.set_state(state)
    apart = float((batched - one_by_one(pictures[:BATCH], generator)).abs().max()) * min(STD) * 255
    assert apart < 1.1, "Pillow cuts to whole grey values, the batched form does not; they differ by less than one"
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(rate(lambda first: augment(pixels[first : first + BATCH], generator)))
        theirs.append(rate(lambda first: one_by_one(pictures[first : first + BATCH], generator)))
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    print(f"{platform.processor() or platform.machine()}, 1 thread, torch {torch.__version__}, batches of {BATCH}")
    print(f"batched      {statistics.median(ours):9,.0f} images/s")
    print(f"one by one   {statistics.median(theirs):9,.0f} images/s")
    print(f"ratio        {statistics.median(ratios):9.1f}  ({ratios[0]:.1f} to {ratios[-1]:.1f}, {ROUNDS} rounds)")


if __name__ == "__main__":
    main()
