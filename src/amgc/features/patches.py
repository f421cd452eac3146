"""Features without training: the responses of an image to filters that are whitened patches of the images of task 1.

Coates and Ng ("Learning feature representations with k-means", 2012) with random patches instead of k-means (Thiry et al.,
2021): a patch p of raw pixels is normalised, n = (p - mean) / (deviation + contrast), and whitened; a filter is a whitened
patch of length 1, so that the response is linear in n, a = n W + b. Both max(a - t, 0) and max(-a - t, 0) are averaged over
the cells of a grid, raised to a power, and standardised with the moments of task 1. With `components`, the averages of each
filter are first reduced to their principal components over the images of task 1.

**Privacy.** With `draw="patches"` a filter is a fragment of one of task 1's images, a few pixels wide. Anyone with the file
can undo the whitening and see the fragment up to brightness and contrast, but neither its position nor the rest of the image.
`draw="gaussian"` keeps no fragment, only the mean and covariance of the fragments.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate, softshrink

from amgc.features.builtin import PatchesOptions
from amgc.features.extractor import Extractor, ImageSource, Preprocess, fill_in_threads
from amgc.features.registry import ImageShape

PATCHES, SAMPLED = 200_000, 10_000  # maximum numbers of patches for the whitening, and of images that they come from
MEASURED = 2_500  # images for the moments: standard deviations are then accurate to one or two per cent
PRIOR = 10  # each variance is shrunk to the average variance with the weight of this many images
BATCH, WHOLE = 256, 4  # images at a time; cells that one product averages over
# Numbers in memory at a time, (patches, responses). On a CPU the responses stay in the L2 cache (128 filters at the 729 places
# of a CIFAR image, each twice: 0.7 MB); a GPU needs large batches.
CPU_ROOM, GPU_ROOM = (1 << 21, 3 << 16), (1 << 26, 1 << 26)


class Patches(Extractor):
    """2 × grid² features, or `components`, for each filter. There are no parameters, so nothing is trained.

    Call `fit` before the first image.
    """

    fit_images = MEASURED
    fitted: Tensor
    centre: Tensor
    deviation: Tensor

    def __init__(self, image_shape: ImageShape, options: PatchesOptions) -> None:
        super().__init__()
        channels, height, width = self.image_shape = image_shape
        shrink = min(1.0, options.side / max(height, width))
        self.size = max(1, round(height * shrink)), max(1, round(width * shrink))
        self.settled = settled = options.settled(channels, *self.size)
        self.mean, self.std = (0.0,) * channels, (1 / 255,) * channels  # pixels from 0 to 255
        self.banks: list[tuple[int, int]] = []  # side of the patches, number of filters
        for place, side in enumerate(settled.sizes):
            count = len(range(place, settled.filters, len(settled.sizes)))
            self._check(side)
            self.banks.append((side, count))
            # The last row is the offset b: patches get a one at their end, which is cheaper than adding b.
            self.register_buffer(f"weight{place}", torch.zeros(channels * side**2 + 1, count))
        self.averages = 2 * settled.grid**2  # of a filter
        self.dim = (settled.components or self.averages) * settled.filters
        for place, (_, count) in enumerate(self.banks if settled.components else ()):
            self.register_buffer(f"mixing{place}", torch.zeros(count, self.averages, settled.components))
        self.register_buffer("centre", torch.zeros(self.dim))
        self.register_buffer("deviation", torch.ones(self.dim))
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def needs_fit(self) -> bool:
        return not bool(self.fitted)

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, dim) of float images (n, c, h, w) with pixel values from 0 to 255."""
        if self.needs_fit:
            raise RuntimeError("patches are not fitted yet: call fit with the images of task 1, or load a file.")
        return self.encode(images)

    # ---- fitting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(self, images: ImageSource, *, preprocess: Preprocess = Tensor.float, generator: Generator) -> None:
        """Draw the filters from `images`, at most `SAMPLED` of them, and measure the features of at most `MEASURED`."""
        count = len(images.labels)
        if not count:
            raise ValueError("patches need at least one image to be fitted.")
        self.centre.zero_()
        self.deviation.fill_(1)
        for place, found in enumerate(self._sample(images, preprocess, generator)):
            weight = self._filters(found, self.banks[place][1], generator)
            self.get_buffer(f"weight{place}").copy_(weight)
        rows = torch.randperm(count, generator=generator)[:MEASURED].sort().values
        if self.settled.components:
            self._fit_components(self._batches(images, preprocess, rows), len(rows))
        else:
            self._fit_moments(self._batches(images, preprocess, rows), len(rows))
        self.fitted.fill_(True)

    def _fit_moments(self, batches: Iterator[Tensor], count: int) -> None:
        """Measure the mean and the standard deviation of each feature."""
        total = torch.zeros(2, self.dim, dtype=torch.float64, device=self.device)
        for batch in batches:
            features = self.encode(batch).double()
            total[0] += features.sum(0)
            total[1] += features.square_().sum(0)
        mean = total[0] / count
        self._standardise(mean, total[1] / count - mean.square(), count)

    def _fit_components(self, batches: Iterator[Tensor], count: int) -> None:
        """Compute the principal components of each filter's averages, and their moments."""
        kept, size, means, values = self.settled.components, self.averages, [], []
        sums = [torch.zeros(k, size, dtype=torch.float64, device=self.device) for _, k in self.banks]
        products = [torch.zeros(k, size, size, dtype=torch.float64, device=self.device) for _, k in self.banks]
        for batch in batches:
            for place, _, averaged in self._averaged(self._reduced(batch)):
                by_filter = averaged.flatten(1, 2).permute(2, 0, 1).double()  # (K, n, averages)
                sums[place] += by_filter.sum(1)
                products[place] += by_filter.mT @ by_filter
        for place, (total, product) in enumerate(zip(sums, products, strict=True)):
            mean = total / count
            spread, axes = torch.linalg.eigh(product / count - mean[:, :, None] * mean[:, None])
            mixing = axes[:, :, -kept:]
            self.get_buffer(f"mixing{place}").copy_(mixing)
            means.append((mean[:, None] @ mixing).squeeze(1).T.flatten())
            values.append(spread[:, -kept:].T.flatten())
        self._standardise(torch.cat(means), torch.cat(values), count)

    def _standardise(self, mean: Tensor, variance: Tensor, count: int) -> None:
        if count > 1:  # the mean of a single image would be that image's features
            variance = variance.clamp_min(0)
            variance = (count * variance + PRIOR * variance.mean()) / (count + PRIOR)
            self.centre.copy_(mean)
            self.deviation.copy_(variance.sqrt() if bool(variance.all()) else torch.ones_like(variance))

    def _sample(self, images: ImageSource, preprocess: Preprocess, generator: Generator) -> list[Tensor]:
        """Return normalised patches (n, c side²) for each bank, from random positions in random images, in one pass."""
        rows = torch.randperm(len(images.labels), generator=generator)[:SAMPLED].sort().values
        drawn, found = [], []
        for side, _ in self.banks:
            high, wide = self.size[0] - side + 1, self.size[1] - side + 1
            count = min(PATCHES, len(rows) * high * wide)
            image = torch.randint(len(rows), (count,), generator=generator).sort().values
            y, x = (torch.randint(stop, (count,), generator=generator) for stop in (high, wide))
            drawn.append((image, y, x))
            found.append(torch.empty(count, self.image_shape[0] * side**2))
        first = 0
        for batch in self._batches(images, preprocess, rows):
            pixels = self._reduced(batch)
            for (side, _), (image, y, x), patches in zip(self.banks, drawn, found, strict=True):
                start, stop = torch.searchsorted(image, torch.tensor([first, first + len(batch)])).tolist()
                windows = pixels.unfold(2, side, 1).unfold(3, side, 1)
                chosen = windows[image[start:stop] - first, :, y[start:stop], x[start:stop]].flatten(1)
                chosen = chosen - chosen.mean(1, keepdim=True)
                chosen /= chosen.std(1, keepdim=True, correction=0) + self.settled.contrast
                patches[start:stop] = chosen.cpu()
            first += len(batch)
        return found

    def _filters(self, patches: Tensor, count: int, generator: Generator) -> Tensor:
        """Return W with b as its last row, (c side² + 1, count), from normalised patches. Computed on the CPU in float64."""
        mean = patches.mean(0, dtype=torch.float64)
        covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        for part in torch.split(patches, 1 << 14):
            centred = part.double() - mean
            covariance.addmm_(centred.T, centred)
        values, vectors = torch.linalg.eigh(covariance / len(patches))
        values = values.clamp_min(0)
        spread = (values + self.settled.whitening).rsqrt()
        whitening = (vectors * spread) @ vectors.T
        filters = torch.empty(0, len(mean), dtype=torch.float64)
        if self.settled.draw == "patches":
            lively = (patches.abs().amax(1) > 1e-3).nonzero().squeeze(1)  # a uniform patch cannot be a filter
            chosen = lively[torch.randperm(len(lively), generator=generator)[:count]]
            filters = (patches[chosen].double() - mean) @ whitening
        gaussian = torch.randn(count - len(filters), len(mean), dtype=torch.float64, generator=generator)
        root = (vectors * values.sqrt() * spread) @ vectors.T  # symmetric, so the signs of the eigenvectors do not matter
        filters = torch.cat([filters, gaussian @ root])  # all filters, or the rest if there are too few patches
        filters /= filters.norm(dim=1, keepdim=True).clamp_min(1e-12)
        weight = whitening @ filters.T
        return torch.cat([weight, -(mean @ weight)[None]])

    def _batches(self, images: ImageSource, preprocess: Preprocess, rows: Tensor) -> Iterator[Tensor]:
        for part in torch.split(rows, BATCH):
            yield preprocess(images.take(part).to(self.device))

    # ---- encoding ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Return features (n, dim), ordered by patch size, then by sign, cell and filter."""
        images = self._reduced(images)
        return fill_in_threads(self.fill, torch.empty(len(images), self.dim, device=images.device), images)

    def fill(self, features: Tensor, images: Tensor) -> None:
        """Write the features of images that are reduced already, in one thread."""
        with torch.autocast(images.device.type, enabled=False):
            if self.settled.components:
                return self._fill_components(features, images)
            targets = [self._by_bank(each) for each in (features, self.centre[None], self.deviation[None])]
            for place, (target, centre, deviation) in enumerate(zip(*targets, strict=True)):
                for start, pooled in self._pooled(images, self.banks[place][0], self.get_buffer(f"weight{place}")):
                    done = target[start : start + len(pooled[0])]
                    self._finish(done, pooled)
                    done.sub_(centre).div_(deviation)
        return None

    def _fill_components(self, features: Tensor, images: Tensor) -> None:
        sizes = [self.settled.components * count for _, count in self.banks]
        targets = [torch.split(each, sizes, dim=-1) for each in (features, self.centre, self.deviation)]
        for place, start, averaged in self._averaged(images):
            target, centre, deviation = (each[place] for each in targets)
            mixed = torch.bmm(averaged.flatten(1, 2).permute(2, 0, 1), self.get_buffer(f"mixing{place}"))  # (K, n, components)
            done = target[start : start + len(averaged)]
            done.copy_(mixed.permute(1, 2, 0).flatten(1)).sub_(centre).div_(deviation)

    def _averaged(self, images: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield bank, index of the first image and powers of averages (n, 2, cells, K), for a few images at a time."""
        for place, (side, count) in enumerate(self.banks):
            for start, pooled in self._pooled(images, side, self.get_buffer(f"weight{place}")):
                averaged = torch.empty(len(pooled[0]), 2, self.settled.grid**2, count, device=images.device)
                self._finish(averaged, pooled)
                yield place, start, averaged

    def _finish(self, averaged: Tensor, pooled: list[Tensor]) -> None:
        """Write powers (n, 2, cells, K) of the averages of max(s, 0) and max(-s, 0) = max(s, 0) - s; see `_pooled`."""
        into = torch.split(averaged.transpose(1, 2), [part.shape[3] for part in pooled], dim=3)
        for part, piece in zip(pooled, into, strict=True):
            piece.copy_(part)
        averaged[:, 1].neg_().add_(averaged[:, 0])
        averaged.clamp_min_(0)
        if self.settled.power == 0.5:
            averaged.sqrt_()
        elif self.settled.power != 1:
            averaged.pow_(self.settled.power)

    def _pooled(self, images: Tensor, side: int, weight: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield averages of max(s, 0) and s for a few images at a time: index of the first image, parts (n, cells, 2, columns).

        s is the response a, shrunk towards 0 by the threshold t: s = max(a - t, 0) - max(-a - t, 0). Averaging max(a, t) and
        subtracting t afterwards would leave rounding errors of t where nothing responds; the power would make them forty times
        as large as all others. A response is read and written by two element-wise passes and by the products that average,
        nothing else. All pieces fit into the cache. Buffers are reused, because new memory costs more than the arithmetic.
        """
        (rows, count), channels, threshold = weight.shape, images.shape[1], self.settled.threshold
        high, wide = self._positions(side)
        positions, cells = high * wide, self.settled.grid**2
        patch_room, response_room = CPU_ROOM if images.device.type == "cpu" else GPU_ROOM
        several = max(1, min(len(images), patch_room // (rows * positions)))
        columns = min(count, max(64, response_room // (2 * positions) // 32 * 32))
        block = min(several, max(1, response_room // (2 * positions * columns)))
        views = 2 if self.settled.mirror else 1
        strips = [(places, into, (matrix / views).to(images)) for places, into, matrix in self._strips(high, wide)]
        weights = [part.contiguous() for part in torch.split(weight, columns, dim=1)]
        patches = torch.ones(rows, several, high, wide, device=images.device)
        room = torch.empty(2 * block * positions * columns, device=images.device)
        sums = [room.new_empty(several, cells, 2 * part.shape[1]) for part in weights]

        def responses(now: int) -> list[tuple[Tensor, Tensor, Tensor]]:
            """Return buffers for `now` images and each part of the filters: for max(s, 0), for s, and for both together."""
            both = [room[: 2 * now * positions * part.shape[1]].view(now, positions, -1) for part in weights]
            return [(*each.flatten(0, 1).chunk(2, dim=1), each) for each in both]  # type: ignore[misc]

        usual = responses(block)
        for start in range(0, len(images), several):
            some = images[start : start + several]
            # Cells are not mirrored back, so an image and its mirror image have the same features.
            for view, seen in enumerate((some, some.flip(3))[:views]):
                self._unroll(seen, side, torch.unflatten(patches[:-1, : len(some)], 0, (channels, side, side)))
                for first in range(0, len(some), block):
                    now = min(block, len(some) - first)
                    matrix = patches[:, first : first + now].flatten(1).T
                    rooms = usual if now == block else responses(now)
                    for part, total, (above, response, both) in zip(weights, sums, rooms, strict=True):
                        torch.mm(matrix, part, out=response)
                        softshrink(response, threshold, out=response)  # type: ignore[call-arg] # its stub lacks `out`
                        torch.clamp_min(response, 0, out=above)
                        for places, rows_of_cells, average in strips:
                            into = total[first : first + now, rows_of_cells]
                            torch.baddbmm(into, average.expand(now, -1, -1), both[:, places], beta=view, out=into)
            yield start, [torch.unflatten(total[: len(some)], 2, (2, -1)) for total in sums]

    def _unroll(self, images: Tensor, side: int, out: Tensor) -> None:
        """Write the normalised patches of images (n, c, h, w) to `out` (c, side, side, n, high, wide)."""
        images = images.contiguous()
        stride = self.settled.stride
        pixels = images.double()
        moments = torch.stack([pixels.mean(1), pixels.square().mean(1)])
        down, across = (_box(size, side, stride).to(pixels) for size in self.size)
        mean, square = down @ moments @ across.T
        scale = (square - mean.square()).clamp_min_(0).sqrt_().add_(self.settled.contrast).reciprocal_().float()
        windows = images.unfold(2, side, stride).unfold(3, side, stride).permute(1, 4, 5, 0, 2, 3)
        torch.sub(windows, mean.float(), out=out)
        out.mul_(scale)

    def _strips(self, high: int, wide: int) -> list[tuple[slice, slice, Tensor]]:
        """Return strips of the image: their places, their cells, and the matrix (cells, places) that averages over the cells.

        A strip is a row of cells, to save products with zeros. Up to `WHOLE` cells are one strip: fewer products are faster.
        """
        grid = self.settled.grid
        row, column = torch.arange(high) * grid // high, torch.arange(wide) * grid // wide
        several = grid if grid**2 <= WHOLE else 1  # rows of cells in a strip
        strips = []
        for first in range(0, grid, several):
            rows = ((row >= first) & (row < first + several)).nonzero().squeeze(1)
            cell = ((row[rows] - first)[:, None] * grid + column).flatten()
            member = torch.nn.functional.one_hot(cell, several * grid).double().T
            place = slice(int(rows[0]) * wide, (int(rows[-1]) + 1) * wide)
            strips.append((place, slice(first * grid, (first + several) * grid), member / member.sum(1, keepdim=True)))
        return strips

    def _by_bank(self, features: Tensor) -> list[Tensor]:
        """Return views (n, 2, cells, K) of features (n, dim), one for each bank."""
        cells = self.settled.grid**2
        parts = torch.split(features, [2 * cells * count for _, count in self.banks], dim=1)
        return [torch.unflatten(part, 1, (2, cells, -1)) for part in parts]

    def _reduced(self, images: Tensor) -> Tensor:
        images = images.float()
        return images if images.shape[2:] == self.size else interpolate(images, self.size, mode="area")

    def _positions(self, side: int) -> tuple[int, int]:
        """Return the numbers of patch positions, vertically and horizontally."""
        high, wide = ((size - side) // self.settled.stride + 1 for size in self.size)
        return high, wide

    def _check(self, side: int) -> None:
        shown = f"{self.size[0]} × {self.size[1]} pixels"
        if side > min(self.size):
            raise ValueError(f"patches of {side} × {side} pixels do not fit into images of {shown}; choose smaller sizes.")
        if min(self._positions(side)) < self.settled.grid:
            raise ValueError(
                f"a grid of {self.settled.grid} needs at least as many patch positions each way; images of {shown} have "
                f"{' × '.join(map(str, self._positions(side)))} for patches of {side}. Choose a smaller grid, sizes or stride."
            )


def _box(size: int, side: int, stride: int) -> Tensor:
    """Return the matrix (positions, size) that averages over `side` neighbours."""
    places = torch.arange(0, size - side + 1, stride)[:, None]
    offset = torch.arange(size) - places
    return ((offset >= 0) & (offset < side)) / side
