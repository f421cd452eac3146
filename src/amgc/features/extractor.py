"""The base class of extractors; evaluation mode and fixed batch norm for class-incremental learning; threads for images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol, SupportsIndex, TypeAlias

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amgc.core.threads import one_thread
from amgc.features.registry import ImageShape, Options

Preprocess: TypeAlias = Callable[[Tensor], Tensor]  # uint8 (n, c, h, w) -> float (n, c, h, w), deterministic


class ImageSource(Protocol):
    """Labelled images that are read when they are needed, such as `amgc.data.Images`."""

    @property
    def labels(self) -> Tensor:
        """The label of each image, (n,)."""

    def take(self, indices: Tensor, /) -> Tensor:
        """Return the pixels of some images, uint8 (len(indices), c, h, w)."""


class Extractor(nn.Module):
    """A network from images (n, c, h, w), float, to features (n, dim). `build` sets name, image_shape and options.

    mean, std : for the normalisation of images, per channel, of pixel values scaled to [0, 1]. A pretrained network sets its
        own. None: use those of the data set.
    far : the features that differ most in images of another kind, if they are known.
    """

    dim: int
    name: str = ""
    image_shape: ImageShape
    options: Options = Options()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    far: range | None = None
    fit_images: int = 0  # maximum number of images that `fit` passes through the network
    fit_steps: int = 0  # steps of training that `fit` makes
    classifier: tuple[str, ...] = (
        "fc.",
        "linear.",
        "classifier.",
        "head.",
    )  # prefixes of the classifier's parameters in published weights

    @property
    def network(self) -> nn.Module:
        """The module whose parameter names are used in weight files: this one, unless it wraps another module."""
        return self

    @property
    def device(self) -> torch.device:
        """The device of the weights; the CPU if there are none."""
        return next(chain(self.parameters(), self.buffers()), torch.empty(0)).device

    @property
    def needs_fit(self) -> bool:
        """Whether `fit` must be called before the first image. False for networks, which have weights from the start."""
        return False

    def fit(self, images: ImageSource, *, preprocess: Preprocess, generator: Generator) -> None:
        """Learn from the images of task 1 before anything else. Draw random numbers from `generator`.

        A `fit` that trains calls `report` after each step.
        """

    def report(self, step: int, steps: int, loss: Tensor) -> None:
        """Called by a `fit` that takes long. Whoever calls `fit` may replace it, to show progress or to stop by raising."""


def initialise(module: nn.Module) -> None:
    """Initialise as torchvision and PyCIL do (He): convolutions N(0, 2 / fan_out); batch norm scale 1, shift 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)


class _Fixed(_BatchNorm):
    """Batch norm that stays in evaluation mode when `train` is called."""

    def train(self, mode: bool = True) -> _Fixed:
        super().train(False)
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle the original class, because this class is created at run time and cannot be imported."""
        return _blank_fixed, (type(self).__bases__[1],), super().__reduce_ex__(2)[2]


_FIXED: dict[type[_BatchNorm], type[_BatchNorm]] = {}


def _fixed(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """Return `kind` with `_Fixed.train`: a class and not a patched method, so that deepcopy works."""
    if kind not in _FIXED:
        _FIXED[kind] = type(f"Fixed{kind.__name__}", (_Fixed, kind), {})
    return _FIXED[kind]


def _blank_fixed(kind: type[_BatchNorm]) -> _BatchNorm:
    """Return an empty fixed layer, to be filled by unpickling."""
    fixed = _fixed(kind)
    return fixed.__new__(fixed)


def freeze_batchnorm(module: nn.Module) -> int:
    """Fix all batch norms of `module` ("BN fixed after task 1"): running statistics, scale and shift. Returns how many.

    From here on they normalise with the statistics of task 1, also after `train()`, and their scale and shift get no
    gradient. Otherwise each new task would change the features of the old classes, whose images are no longer available.
    The state dict does not record that a network is fixed: call this again after loading one, before wrapping with DDP,
    and after any conversion to SyncBatchNorm, which makes new layers.

    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> freeze_batchnorm(network), network.train()[1].training
    (1, False)
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    for layer in layers:
        if not isinstance(layer, _Fixed):
            layer.__class__ = _fixed(type(layer))
        layer.eval()
        layer.requires_grad_(False)
    return len(layers)


def release_batchnorm(module: nn.Module) -> None:
    """Undo `freeze_batchnorm`: `train()` affects the batch norms again, and their scale and shift can be trained."""
    for layer in module.modules():
        if isinstance(layer, _Fixed):
            layer.__class__ = type(layer).__bases__[1]
            layer.requires_grad_()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Enter evaluation and inference mode; restore the mode of every layer afterwards."""
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode


def in_threads(function: Callable[..., None], calls: Sequence[tuple[Any, ...]], threads: int) -> None:
    """Call `function` with each tuple of arguments, in threads. For small operations this is faster than torch's own threads.

    Modes of torch are set per thread, so a new thread enters inference mode if its caller is in it.
    """
    inference = torch.is_inference_mode_enabled()

    def run(arguments: tuple[Any, ...]) -> None:
        with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", enabled=False):
            function(*arguments)

    with one_thread(), ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, calls))


def fill_in_threads(fill: Callable[[Tensor, Tensor], None], features: Tensor, images: Tensor) -> Tensor:
    """Call `fill` with parts of features (n, d) and of images, a part for each of torch's threads. Return the features.

    Threads divide the images, not the operations on them, which are too small for several cores.
    """
    threads = min(torch.get_num_threads(), len(images)) if images.device.type == "cpu" else 1
    if threads < 2:
        fill(features, images)
    else:
        in_threads(fill, [*zip(features.tensor_split(threads), images.tensor_split(threads), strict=True)], threads)
    return features
