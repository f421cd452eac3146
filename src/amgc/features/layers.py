"""Features of small networks that learn task 1 before anything else: averages of all their layers, joined to patches.

The last layer of a network that knows ten classes tells these ten apart, and little else. The other layers respond to parts and
textures, and tell apart classes that the network has never seen. So the features are averages of every layer over the cells of
a grid, raised to a power and standardised, as those of patches are. In training, rotations by quarter turns are classes of
their own (Lee et al., "Self-supervised label augmentation via input transformations", 2020), because what tells them apart is
more general. After `fit` nothing is trained any more, and a linear classifier on these features has a closed form.

**Privacy.** The weights are those of networks that were trained on the images of task 1. `amgc.features.patches` says what the
patches reveal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy, max_pool2d, pad, relu

from amgc.features.builtin import LayersOptions
from amgc.features.extractor import Extractor, ImageSource, Preprocess, fill_in_threads, in_threads, initialise
from amgc.features.patches import BATCH, MEASURED, PRIOR, Patches
from amgc.features.registry import ImageShape

SIDE = 3  # of the first layer's patches
FLAT = 0.01  # added to the variances of these patches, of images with variance 1
GRID = 2  # cells a side over which a layer is averaged; one cell, the whole image, for the layers of the last block
POWER = 0.7  # of the averages, as for patches
TRAINED = 128  # images per step
PIECE = 64  # images that are encoded at a time: the maps of a layer stay in the cache, and their memory is used again
SOME = 500  # images whose patches are whitened
RATE, MOMENTUM, DECAY = 0.2, 0.9, 5e-4  # of SGD with Nesterov momentum
WARM_UP = 0.2  # share of the steps in which the rate rises; then it falls to 0
SMOOTHING = 0.1  # of the labels
CROP = 0.75  # of an image's side that a network sees in training: in the same time it sees nearly twice as many images
JITTER = 0.2  # the contrast of each channel changes by up to this share, the brightness by half of it
TURNS = 4  # a network learns images that are turned by 0, 90, 180 and 270 degrees as different classes


class Block(nn.Module):
    """Halves the image: a convolution and the maximum of 2 × 2 pixels, then a convolution with a shortcut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.widened = nn.BatchNorm2d(after)
        self.mix = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.mixed = nn.BatchNorm2d(after)

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return both layers; the second is the input of the next block."""
        first = relu(self.widened(max_pool2d(self.widen(maps), 2)))
        return first, relu(self.mixed(self.mix(first)) + first)


class SmallNetwork(nn.Module):
    """A convolution that whitens patches of the image, which is not trained, and blocks."""

    def __init__(self, channels: int, widths: tuple[int, ...], stride: int) -> None:
        super().__init__()
        self.input = nn.BatchNorm2d(channels, affine=False)  # pixels from 0 to 255 to mean 0 and variance 1
        first = 2 * SIDE**2 * channels  # whitening filters of both signs
        self.stem = nn.Conv2d(channels, first, SIDE, stride=stride, padding=SIDE // 2, bias=False)
        self.stemmed = nn.BatchNorm2d(first)
        self.blocks = nn.ModuleList(Block(*pair) for pair in zip((first, *widths), widths, strict=False))
        initialise(self.blocks)

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Set the first layer to the filters that whiten patches of these images, and to their negatives. Not trained."""
        variance, mean = torch.var_mean(images, (0, 2, 3), keepdim=True, correction=0)
        normal = (images - mean) / (variance + self.input.eps).sqrt()
        patches = normal.unfold(2, SIDE, 1).unfold(3, SIDE, 1).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)
        values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).double())
        filters = (vectors * (values.clamp_min(0) + FLAT).rsqrt()).T.reshape(-1, *self.stem.weight.shape[1:])
        self.stem.weight.copy_(torch.cat([filters, -filters]))
        self.stem.weight.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the maps of all layers, two for each block."""
        maps, layers = relu(self.stemmed(self.stem(self.input(images)))), []
        for block in self.blocks:
            first, maps = block(maps)
            layers += [first, maps]
        return layers


class Averages(nn.Module):
    """Powers of the averages of all layers over cells, standardised. An image and its mirror image are averaged if `mirror`."""

    centre: Tensor
    deviation: Tensor

    def __init__(self, network: SmallNetwork, size: tuple[int, int], channels: int, mirror: bool) -> None:
        super().__init__()
        self.network, self.mirror = _without_parameters(network), mirror
        with torch.no_grad():
            self.dim = self.powers(torch.zeros(1, channels, *size)).shape[1]
        self.register_buffer("centre", torch.zeros(self.dim))
        self.register_buffer("deviation", torch.ones(self.dim))

    def forward(self, images: Tensor) -> Tensor:
        return (self.powers(images) - self.centre) / self.deviation

    @torch.no_grad()
    def measure(self, batches: Iterable[Tensor]) -> None:
        """Measure the moments by which features are standardised."""
        features = torch.cat([self.powers(batch).double() for batch in batches])
        if len(features) > 1:  # the mean of a single image would be that image's features
            variance = features.var(0, correction=0)
            variance = (len(features) * variance + PRIOR * variance.mean()) / (len(features) + PRIOR)
            self.centre.copy_(features.mean(0))
            self.deviation.copy_(variance.sqrt() if bool(variance.all()) else torch.ones_like(variance))

    def powers(self, images: Tensor) -> Tensor:
        total = self._averages(images)
        if self.mirror:
            total = (total + self._averages(images.flip(3))) / 2
        return total.pow(POWER)

    def _averages(self, images: Tensor) -> Tensor:
        layers = self.network(images)
        grids = [GRID] * (len(layers) - 2) + [1, 1]
        return torch.cat([adaptive_avg_pool2d(maps, grid).flatten(1) for maps, grid in zip(layers, grids, strict=True)], 1)


class Layers(Extractor):
    """Averages of all layers of small networks, joined to `patches`.

    Call `fit` with the images of task 1 before the first image. There are no parameters: the trained weights are buffers, so
    nothing trains them further.
    """

    fit_images = 2 * MEASURED
    fitted: Tensor

    def __init__(self, image_shape: ImageShape, options: LayersOptions) -> None:
        super().__init__()
        self.image_shape, self.patches = image_shape, Patches(image_shape, options.patches())
        self.size, self.mean, self.std = self.patches.size, self.patches.mean, self.patches.std
        self.widths, self.fit_steps = options.widths, options.steps * options.networks
        if min(self.size) < 2 ** len(self.widths):
            least = 2 ** len(self.widths)
            raise ValueError(
                f"layers halves images {len(self.widths)} times and needs at least {least} × {least} pixels, not "
                f"{self.size[0]} × {self.size[1]}. Specify fewer widths."
            )
        mirror = bool(self.patches.settled.mirror)
        each = (Averages(self.small(), self.size, image_shape[0], mirror) for _ in range(options.networks))
        self.averages = nn.ModuleList(each)
        self.dim = sum(one.dim for one in self._averages) + self.patches.dim
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def needs_fit(self) -> bool:
        return not bool(self.fitted)

    def train(self, mode: bool = True) -> Layers:
        """Stay in evaluation mode: moments of batch norm are those of task 1."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, dim) of float images (n, c, h, w) with pixel values from 0 to 255: layers, then patches."""
        if self.needs_fit:
            raise RuntimeError("layers are not fitted yet: call fit with the images of task 1, or load a file.")
        reduced = self.reduced(images).contiguous(memory_format=torch.channels_last)
        return fill_in_threads(self._fill, torch.empty(len(images), self.dim, device=images.device), reduced)

    @torch.no_grad()
    def _fill(self, features: Tensor, images: Tensor) -> None:
        """Write the features of images, in one thread."""
        *layers, patches = torch.split(features, [*(each.dim for each in self._averages), self.patches.dim], dim=1)
        with torch.autocast(images.device.type, enabled=False):
            for average, target in zip(self._averages, layers, strict=True):
                for some, rows in zip(torch.split(images, PIECE), torch.split(target, PIECE), strict=True):
                    rows.copy_(average(some))
        self.patches.fill(patches, images)

    def fit(self, images: ImageSource, *, preprocess: Preprocess = Tensor.float, generator: Generator) -> None:
        """Fit the patches, train the networks on `images` and their labels, and measure the moments of their layers.

        Networks are trained side by side, with one thread each. They depend on the seed only, not on the number of threads.
        """
        self.patches.fit(images, preprocess=preprocess, generator=generator)
        trainings = [Training(self, images, preprocess, generator) for _ in self.averages]
        done, lock = [0] * len(trainings), threading.Lock()

        def count(number: int, step: int, loss: Tensor) -> None:
            with lock:
                done[number] = step
                self.report(sum(done), self.fit_steps, loss)

        steps = -(-self.fit_steps // len(trainings))
        threads = min(torch.get_num_threads(), len(trainings)) if self.device.type == "cpu" else 1
        calls = [(steps, partial(count, number)) for number in range(len(trainings))]
        in_threads(
            lambda training, *call: training.run(*call), [(t, *c) for t, c in zip(trainings, calls, strict=True)], threads
        )
        rows = torch.randperm(len(images.labels), generator=generator)[:MEASURED].sort().values
        for averages, training in zip(self._averages, trainings, strict=True):
            averages.network.load_state_dict(training.network.state_dict())
            averages.measure(self.reduced(preprocess(images.take(part).to(self.device))) for part in torch.split(rows, BATCH))
        self.fitted.fill_(True)

    def reduced(self, images: Tensor) -> Tensor:
        """Reduce large images to the size that patches and networks see."""
        return self.patches._reduced(images)

    def small(self) -> SmallNetwork:
        """Return a network with random weights."""
        return SmallNetwork(self.image_shape[0], self.widths, stride=2 if min(self.size) > 48 else 1)

    @property
    def _averages(self) -> list[Averages]:
        return cast("list[Averages]", list(self.averages))


class Training:
    """Trains a network to tell the classes of images, and their rotations, apart. It has random numbers of its own."""

    def __init__(self, layers: Layers, images: ImageSource, preprocess: Preprocess, generator: Generator) -> None:
        self.images, self.mirror = images, bool(layers.patches.settled.mirror)
        self.random = Generator().manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
        classes, self.labels = torch.unique(images.labels, return_inverse=True)
        self.turns = TURNS if layers.size[0] == layers.size[1] else 1
        height, width = (max(round(CROP * side), 2 ** len(layers.widths)) for side in layers.size)
        self.crop = height, width
        self.layers, self.preprocess, self.device = layers, preprocess, layers.device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(1 << 62, (), generator=self.random)))
            self.network = layers.small().to(self.device)
            self.classifier = nn.Linear(layers.widths[-1], self.turns * len(classes)).to(self.device)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # its stub lacks this form

    def seen(self, rows: Tensor) -> Tensor:
        """Return some images as the network sees them."""
        return self.layers.reduced(self.preprocess(self.images.take(rows).to(self.device)))

    @torch.enable_grad()
    def run(self, steps: int, report: Callable[[int, Tensor], None]) -> None:
        """Whiten, then make all steps; `report` is called after each of them with its number and loss."""
        self.network.whiten(self.seen(torch.randperm(len(self.labels), generator=self.random)[:SOME]))
        learned = [p for module in (self.network, self.classifier) for p in module.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(learned, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True)
        order, half = torch.empty(0, dtype=torch.int64), self.device.type == "cpu" and has_bfloat16()
        for step in range(1, steps + 1):
            while len(order) < TRAINED:
                order = torch.cat([order, torch.randperm(len(self.labels), generator=self.random)])
            rows, order = order[:TRAINED], order[TRAINED:]
            turn = torch.randint(self.turns, (len(rows),), generator=self.random)
            share = step / steps
            optimiser.param_groups[0]["lr"] = RATE * min(share / WARM_UP, (1 - share) / (1 - WARM_UP) + 1e-3)
            views = augmented(self.seen(rows), self.crop, turn, self.mirror, self.random)
            # No cache: it would keep the weights of the first step, because `in_threads` has entered autocast already.
            with torch.autocast("cpu", torch.bfloat16, enabled=half, cache_enabled=False):
                last = self.network(views)[-1]
            targets = (self.turns * self.labels[rows] + turn).to(self.device)
            loss = cross_entropy(self.classifier(last.float().mean((2, 3))), targets, label_smoothing=SMOOTHING)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            report(step, loss.detach())


def has_bfloat16() -> bool:
    """Return whether the CPU multiplies numbers of 16 bits. A step of training then takes 0.55 times as long."""
    return torch.cpu._is_avx512_bf16_supported()


def augmented(images: Tensor, size: tuple[int, int], turn: Tensor, mirror: bool, generator: Generator) -> Tensor:
    """Crop to `size` anywhere, mirror half of them, change contrast and brightness, and turn each by `turn` (n,) quarters.

    Crops reach over the edge by up to an eighth of the image, where it is reflected.
    """
    count, channels, *sides = images.shape
    margin = max(1, min(sides) // 8)
    rows, columns = (
        torch.randint(side + 2 * margin - seen + 1, (count, 1), generator=generator) + torch.arange(seen)
        for side, seen in zip(sides, size, strict=True)
    )
    if mirror:
        mirrored = torch.rand(count, generator=generator) < 0.5
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    contrast = 1 + JITTER * (2 * torch.rand(count, channels, 1, 1, generator=generator) - 1)
    brightness = 255 * JITTER / 2 * (2 * torch.rand(count, 1, 1, 1, generator=generator) - 1)
    padded = pad(images, (margin, margin, margin, margin), mode="reflect").permute(0, 2, 3, 1)
    each = torch.arange(count)[:, None, None]
    images = padded[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)  # channels_last
    images = (images - 127.5) * contrast.to(images) + 127.5 + brightness.to(images)
    for quarter in range(1, int(turn.max()) + 1):  # none if images are not square
        turned = (turn == quarter).nonzero().squeeze(1).to(images.device)
        images[turned] = images[turned].rot90(quarter, (2, 3))
    return images


def _without_parameters(module: SmallNetwork) -> SmallNetwork:
    """Turn all parameters into buffers."""
    for layer in module.modules():
        for name, parameter in list(layer.named_parameters(recurse=False)):
            delattr(layer, name)
            layer.register_buffer(name, parameter.detach())
    module.eval()
    return module
