"""Feature extractors by name. Importing this module does not import torch; building an extractor does.

An extractor is a class or function `(image_shape, options) -> Extractor` with a decorator; docs/add-an-extractor.md shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from amgc import registry
from amgc.options import Checked, option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

ImageShape: TypeAlias = tuple[int, int, int]  # channels, height, width
KIND = "extractor"  # of the file of a saved extractor
LARGEST = (1024, 65536, 65536)  # channels, height and width; more means a damaged file
Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(frozen=True)
class Options(Checked):
    """Options of every extractor."""

    weights: str | None = option(
        None, "file with the weights to start from (.safetensors, .pth); None: random weights", path=True
    )


@dataclass(frozen=True)
class Entry(registry.Entry[Options]):
    """A registered extractor. `argument` is the option that `NAME:VALUE` sets, if there is one."""

    argument: str = ""


EXTRACTORS: registry.Registry[Entry] = registry.Registry(
    "extractor", "amgc.features.builtin", "@feature_extractor(name, options)"
)


def feature_extractor(name: str, options: Options | None = None, *, argument: str = "") -> Callable[[Factory], Factory]:
    """Register a class or function `(image_shape, options) -> Extractor` under `name`.

    options : a frozen dataclass derived from `Options`, with the defaults of this name.
    argument : the option that is set by what follows the colon in `NAME:VALUE`.
    """

    def register(factory: Factory) -> Factory:
        EXTRACTORS.add(Entry(name, factory, options or Options(), registry.summary_of(factory), argument))
        return factory

    return register


def extractors() -> dict[str, Entry]:
    """Return all extractors of this package and those registered elsewhere so far.

    >>> list(extractors())
    ['convnet', 'layers', 'lite0', 'lite1', 'lite2', 'patches', 'resnet18', 'resnet32', 'timm']
    """
    return EXTRACTORS.all()


def find(name: str) -> Entry:
    """Return the extractor `NAME` or `NAME:VALUE`. NAME may be a file that ends in `.py`."""
    base, value = registry.split_name(name)
    entry = EXTRACTORS.find(base)
    if value and not entry.argument:
        raise ValueError(f"there is no extractor {name!r}: {base} takes no value after a colon.")
    return entry


def build(name: str, *, image_shape: Sequence[int], **options: Any) -> Extractor:
    """Return the extractor `name` for images of `image_shape` (channels, height, width), with its weights drawn or loaded.

    Random weights come from torch's global generator: the same seed gives the same weights. `timm:NAME` is a model of timm;
    a name that ends in `.py` is your own file.

    >>> build("resnet18", image_shape=(3, 32, 32), width=0.25).dim
    128
    """
    made = _make(name, image_shape, options)
    if made.options.weights is not None:
        from amgc.features.weights import load_weights  # here, because it needs torch

        load_weights(made, made.options.weights)
    return made


def blank(name: str, *, image_shape: Sequence[int], **options: Any) -> Extractor:
    """Return an extractor like `build`, but without reading or downloading weights, for a caller that sets them itself."""
    made = _make(name, image_shape, {**options, "weights": "the caller's"})  # any value, so that timm does not download its own
    made.options = replace(made.options, weights=None)
    return made


def _make(name: str, image_shape: Sequence[int], chosen: dict[str, Any]) -> Extractor:
    """Return the extractor with random weights."""
    shape = _checked(image_shape)
    entry = find(name)
    if value := registry.split_name(name)[1]:
        chosen = {**chosen, entry.argument: value}
    options = entry.with_options(chosen)
    from amgc.features.pointwise import make_safe  # here, because it needs torch

    made: Extractor = entry.make(shape, options)
    make_safe(made)
    made.name, made.image_shape, made.options = entry.name, shape, options
    return made


def _checked(image_shape: Sequence[int]) -> ImageShape:
    shape = tuple(int(size) for size in image_shape)
    if len(shape) != 3 or not all(1 <= size <= most for size, most in zip(shape, LARGEST, strict=True)):
        raise ValueError(
            f"image_shape must be (channels, height, width), each at least 1 and at most {LARGEST}; not {tuple(image_shape)}."
        )
    return shape[0], shape[1], shape[2]
