"""EfficientNet-Lite0: our network and the original (efficientnet_lite_pytorch, eager), side by side, from the same weights.

    python benchmarks/lite.py            # a few minutes
    python benchmarks/lite.py --quick    # one size, seconds

Both get the same batches of normalised images, in inference mode, with all cores and with one, and compute the same 1,280
features. "folded" is our network given whole batches, as the original is: what folding batch norm and channels_last bring;
"ours" also divides images among threads. Then files to features, as `amgc learn` computes them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from _report import kept, side_by_side
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from torch import Tensor, nn

from amgc.data.image_files import available_cores
from amgc.features import build
from amgc.features.lite import read_published
from amgc.model.extractors import encode_batches
from amgc.model.inputs import Frame, images_from

SIZES = (96, 128, 160, 224)
BATCH = 16


def original(size: int) -> nn.Module:
    with contextlib.redirect_stdout(io.StringIO()):
        network = EfficientNet.from_name("efficientnet-lite0", image_size=size)
    network.load_state_dict(read_published("lite0"))
    return network.eval().requires_grad_(False)


def inferring(function: Callable[[Tensor], Tensor], images: Tensor) -> Callable[[], Tensor]:
    def job() -> Tensor:
        with torch.inference_mode():
            return function(images)

    return job


def compare(size: int, threads: int, rounds: int, batch: int) -> None:
    """Print milliseconds an image of both networks."""
    torch.set_num_threads(threads)
    theirs, ours = (
        original(size),
        build("lite0", image_shape=(3, size, size), stages=(8,), textures=(), unit=False).eval().requires_grad_(False),
    )
    images = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    jobs = {
        "original": inferring(lambda given: theirs.extract_features(given).mean((2, 3)), images),
        "folded": inferring(ours.joined, images),
        "ours": inferring(ours, images),
    }
    expected, *found = (job() for job in jobs.values())
    assert all(torch.allclose(each, expected, rtol=0, atol=1e-4) for each in found), "the same features"
    times = side_by_side(jobs, rounds)
    for name, seconds in times.items():
        least, most = (1000 * each / batch for each in times.spread[name])
        shown = f"{1000 * seconds / batch:6.1f} ms ({least:.1f} to {most:.1f})"
        print(f"  {size} px, {threads} threads, {name:10s} {shown:26s} {times['original'] / seconds:5.2f} x the original")


def from_files(count: int, rounds: int, sizes: Sequence[tuple[int, int]]) -> None:
    """Print how many JPEG files a second become features."""
    torch.set_num_threads(available_cores())
    random = np.random.RandomState(0)
    ours = build("lite0", image_shape=(3, 224, 224)).eval().requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        for width, height in sizes:
            files = [Path(folder) / f"{width}-{number}.jpg" for number in range(count)]
            for path in files:  # smooth, as photographs are: noise would cost more to decode
                coarse = Image.fromarray(random.randint(0, 256, (height // 16, width // 16, 3), dtype=np.uint8))
                coarse.resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)
            given, frame = [one for path in files for one in images_from(path)], Frame(224, 224, 3)
            jobs = {
                "decoded": lambda frame=frame, given=given: list(frame.each(given)),
                "decoded and encoded": lambda frame=frame, given=given: list(encode_batches(ours, frame, given)),
            }
            times = side_by_side(jobs, rounds)
            print(f"\n{count} JPEG files of {width} × {height}, 224 px, {available_cores()} cores")
            for name, seconds in times.items():
                print(f"  {name:20s} {count / seconds:7.1f} images/s")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="one size and few files, to see that it runs")
    quick = arguments.parse_args().quick
    with kept("lite"):
        batch = 4 if quick else BATCH
        print(f"EfficientNet-Lite0, milliseconds an image, batches of {batch}")
        for threads in (available_cores(),) if quick else (available_cores(), 1):
            for size in SIZES[:1] if quick else SIZES:
                compare(size, threads, 1 if quick else 7, batch)
        from_files(4 if quick else 64, 1 if quick else 5, ((500, 375),) if quick else ((500, 375), (4000, 3000)))


if __name__ == "__main__":
    main()
