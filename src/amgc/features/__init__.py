"""Feature extractors: from images to vectors. `build` makes one by name. Importing this package does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amgc.features.registry import Options, blank, build, extractors, feature_extractor
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor

__all__ = ["Extractor", "Options", "blank", "build", "extractors", "feature_extractor", "option"]


def __getattr__(name: str) -> Any:
    if name == "Extractor":  # needs torch
        from amgc.features.extractor import Extractor

        return Extractor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
