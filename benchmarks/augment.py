"""Images per second of the batched CIFAR augmentation, compared with a Pillow pipeline for single images, as in PyCIL.

    python benchmarks/augment.py            # half a minute
    python benchmarks/augment.py --quick    # few images, seconds

Both do pad 4, crop 32, flip, brightness 63/255, normalise, on one thread, in turns. "half" is the work of one of two processes:
half of each batch, with random numbers drawn for the whole batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from _report import kept, side_by_side
from PIL import Image, ImageEnhance, ImageOps

from amgc.data.augment import Augment, BatchRandom

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
BATCH = 128


def one_by_one(images: list[Image.Image], generator: torch.Generator) -> torch.Tensor:
    """Apply torchvision's transforms to PIL images, written out, with the same random numbers as the batched form."""
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


def in_batches(function: Callable[[int], object], count: int) -> Callable[[], None]:
    def run() -> None:
        for first in range(0, count, BATCH):
            function(first)

    return run


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="few images, to see that it runs")
    quick = arguments.parse_args().quick
    count, rounds = (256, 1) if quick else (5120, 7)
    torch.set_num_threads(1)
    with kept("augment"):
        pixels = torch.from_numpy(np.random.RandomState(0).randint(0, 256, (count, 3, 32, 32), dtype=np.uint8))
        pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
        augment = Augment(32, MEAN, STD, padding=4, flip=True, brightness=63 / 255)
        generator = torch.Generator().manual_seed(0)
        state = generator.get_state()
        batched = augment(pixels[:BATCH], generator)
        generator.set_state(state)
        apart = float((batched - one_by_one(pictures[:BATCH], generator)).abs().max()) * min(STD) * 255
        assert apart < 1.1, "Pillow cuts to whole grey values, the batched form does not; they differ by less than one"
        times = side_by_side(
            {
                "batched": in_batches(lambda first: augment(pixels[first : first + BATCH], generator), count),
                "half, of two processes": in_batches(
                    lambda first: augment(pixels[first : first + BATCH // 2], BatchRandom(generator, 0, BATCH)), count
                ),
                "one by one": in_batches(lambda first: one_by_one(pictures[first : first + BATCH], generator), count),
            },
            rounds=rounds,
        )
        print(f"CIFAR augmentation of {count} images in batches of {BATCH}, one thread")
        for name, seconds in times.items():
            done = count // 2 if name.startswith("half") else count
            slow, fast = (done / end for end in reversed(times.spread[name]))
            print(f"  {name:24s} {done / seconds:9,.0f} images/s ({slow:,.0f} to {fast:,.0f})")
        print(f"  batched faster than one by one: {times['one by one'] / times['batched']:.1f} x")


if __name__ == "__main__":
    main()
