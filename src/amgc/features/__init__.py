"""Image -> vector. `build` makes an extractor by name; importing this package does not import torch."""

from amgc.features.registry import build, extractor, names

__all__ = ["build", "extractor", "names"]
