"""Image -> vector. `build` makes an extractor by name; importing this package does not import torch."""

from amgc.features.registry import blank, build, extractor, names

__all__ = ["blank", "build", "extractor", "names"]
