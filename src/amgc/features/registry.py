"""Extractors by name. Importing this file does not import torch; building an extractor does.

A new extractor is one file: a frozen dataclass with its options, and a class or function with the decorator.

    @dataclass(frozen=True)
    class MineOptions(Options):
        depth: int = field(default=3, metadata=about("number of layers"))

    @extractor("mine", MineOptions)
    class Mine(Extractor):
        def __init__(self, image_shape: ImageShape, options: MineOptions) -> None: ...
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from amgc.features.options import OPTIONS, Options, make_options

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

ImageShape: TypeAlias = tuple[int, int, int]  # channels, height, width
Factory = TypeVar("Factory", bound=Callable[..., Any])

MODULES = ("convnet", "patches", "pretrained", "resnet")  # the files of this folder that register something
_FACTORIES: dict[str, Callable[[ImageShape, Any], Extractor]] = {}


def extractor(name: str, options: type[Options] | None = None) -> Callable[[Factory], Factory]:
    """Register a class or function `(image_shape, options) -> Extractor` under `name`.

    The built-in extractors have their options in `options.OPTIONS`, for a quick `--help`; others give theirs.
    """
    if options is not None:
        OPTIONS[name] = options
    if name not in OPTIONS:
        raise TypeError(f"extractor {name!r} declares no options; write @extractor({name!r}, YourOptions).")

    def register(factory: Factory) -> Factory:
        _FACTORIES[name] = factory
        return factory

    return register


def names() -> list[str]:
    """The names that `build` knows.

    >>> names()
    ['convnet', 'patches', 'resnet18', 'resnet32', 'timm']
    """
    return sorted(OPTIONS)


def build(name: str, *, image_shape: Sequence[int], **options: Any) -> Extractor:
    """The extractor `name` for images of `image_shape` (channels, height, width), its weights drawn or loaded.

    Random weights come from torch's global generator: the same seed, the same weights. `timm:NAME` is a model of timm.

    >>> build("resnet18", image_shape=(3, 32, 32), width=0.25).dim
    128
    """
    made = _made(name, image_shape, options)
    if made.options.weights is not None:
        from amgc.features.weights import load_weights  # here, because it needs torch

        load_weights(made, made.options.weights)
    return made


def blank(name: str, *, image_shape: Sequence[int], **options: Any) -> Extractor:
    """The extractor that `build` would make, for a caller who has its weights: none are read from a file or fetched."""
    made = _made(name, image_shape, {**options, "weights": "the caller's"})  # any name: without one, timm fetches its own
    made.options = replace(made.options, weights=None)
    return made


def _made(name: str, image_shape: Sequence[int], options: dict[str, Any]) -> Extractor:
    """The extractor, its weights drawn."""
    shape = _checked(image_shape)
    base, _, model = name.partition(":")
    if base not in OPTIONS or (model and base != "timm"):
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(f"there is no extractor {name!r}{hint} There are {', '.join(names())} (as timm:NAME).")
    chosen = make_options(base, {**options, "model": model} if model else options)
    from amgc.features.pointwise import make_safe  # here, because it needs torch

    for module in MODULES:
        importlib.import_module(f"amgc.features.{module}")
    made = _FACTORIES[base](shape, chosen)
    make_safe(made)
    made.name, made.image_shape, made.options = base, shape, chosen
    return made


def _checked(image_shape: Sequence[int]) -> ImageShape:
    shape = tuple(int(size) for size in image_shape)
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"image_shape must be (channels, height, width), each at least 1; not {tuple(image_shape)}.")
    return shape[0], shape[1], shape[2]
