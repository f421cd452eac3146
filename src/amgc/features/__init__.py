"""Feature extractors: from images to vectors. `build` makes one by name. Importing this package does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amgc.features.registry import Options, blank, build, extractors, feature_extractor
from amgc.lazy import lazy_names
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

__all__ = ["Extractor", "Options", "blank", "build", "extractors", "feature_extractor", "option"]


__getattr__ = lazy_names(__name__, {"extractor": ("Extractor",)})  # needs torch
