"""Time the patch features: the extractor, its matrix products alone, and the same features by convolution.

    python benchmarks/patches.py            # under a minute; keep the machine otherwise idle
    python benchmarks/patches.py --quick    # few images, seconds

Images of 32 × 32 pixels in colour, 1,600 filters of 6 × 6 (and fewer), all threads of torch. "products" is only the matrix
product of each image, (729, 108) by (108, filters), without patches, threshold and averages. It is computed in parts of 160
filters, whose result stays in the cache, for single images and for 32 at once; the others are compared with the fastest.
"convolution" is the straightforward code: patches normalised by unfold, a 1×1 convolution with the filters, relu twice, average
pooling, 32 images at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from _report import kept, side_by_side
from torch.nn.functional import adaptive_avg_pool2d, conv2d, relu, unfold

from amgc.data import Images
from amgc.features import build
from amgc.features.patches import Patches

SIZE, SIDE, BATCH = 32, 6, 32


def fitted(filters: int, images: torch.Tensor) -> Patches:
    network = build("patches", image_shape=tuple(images.shape[1:]), filters=filters, sizes=(SIDE,), mirror=False, power=0.5)
    assert isinstance(network, Patches)
    network.fit(Images.of(images, torch.zeros(len(images))), generator=torch.Generator().manual_seed(0))
    return network


def products(weight: torch.Tensor, count: int, together: int, columns: int) -> Callable[[], object]:
    places = (SIZE - SIDE + 1) ** 2 * together
    patches, out = torch.randn(places, len(weight)), torch.empty(places * columns)
    parts = [(part.contiguous(), out[: places * part.shape[1]].view(places, -1)) for part in weight.split(columns, dim=1)]

    def job() -> None:
        for _ in range(count // together):
            for part, room in parts:
                torch.mm(patches, part, out=room)

    return job


def convolution(network: Patches, images: torch.Tensor) -> torch.Tensor:
    """Return the features before standardisation, in the order of the extractor."""
    weight, threshold, found = network.get_buffer("weight0"), network.settled.threshold, []
    places = SIZE - SIDE + 1
    for some in images.split(BATCH):
        patches = unfold(some, SIDE)
        patches = patches - patches.mean(1, keepdim=True)
        patches = patches / (patches.std(1, keepdim=True, correction=0) + network.settled.contrast)
        maps = conv2d(patches.view(len(some), -1, places, places), weight[:-1].T[:, :, None, None], weight[-1])
        halves = relu(maps - threshold), relu(-maps - threshold)
        pooled = [overlapping_free(half, network.settled.grid) for half in halves]
        found.append(torch.stack(pooled, 1).flatten(1).sqrt())
    return torch.cat(found)


def overlapping_free(maps: torch.Tensor, grid: int) -> torch.Tensor:
    """Average over cells that do not overlap, unlike those of adaptive_avg_pool2d: (n, cells, filters)."""
    rows = torch.arange(maps.shape[2]) * grid // maps.shape[2]
    edges = [int((rows < cell).sum()) for cell in range(grid + 1)]
    cells = [
        adaptive_avg_pool2d(maps[:, :, edges[y] : edges[y + 1], edges[x] : edges[x + 1]], 1).flatten(1)
        for y in range(grid)
        for x in range(grid)
    ]
    return torch.stack(cells, 1)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="few images, to see that it runs")
    quick = arguments.parse_args().quick
    count = 2 * BATCH if quick else 8 * BATCH
    images = torch.randint(256, (count, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pixels = images.float()
    with kept("patches"), torch.no_grad():
        for filters in (100,) if quick else (400, 1600):
            network = fitted(filters, images)
            ours = network(pixels[:BATCH]) * network.deviation + network.centre
            difference = (convolution(network, pixels[:BATCH]) - ours).abs().max()
            weight = network.get_buffer("weight0")[:-1].contiguous()
            jobs = {
                "products, 160 filters": products(weight, count, 1, 160),
                "products, one image": products(weight, count, 1, filters),
                "products, 32 images": products(weight, count, BATCH, filters),
                "patches": lambda network=network: network(pixels),
                "convolution": lambda network=network: convolution(network, pixels),
            }
            times = side_by_side(jobs, rounds=1 if quick else 21)
            bare = min(seconds for name, seconds in times.items() if name.startswith("products"))
            print(f"{filters} filters, {network.dim} features: ms per image, and times the bare products")
            for name, seconds in times.items():
                low, high = (1000 * value / count for value in times.spread[name])
                print(f"  {name:22} {1000 * seconds / count:7.3f} ({low:.3f} to {high:.3f})   {seconds / bare:5.2f}")
            print(f"  largest difference of the two ways: {float(difference):.1e}\n")


if __name__ == "__main__":
    main()
