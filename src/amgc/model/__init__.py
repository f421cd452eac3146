"""Models for your own images: learn classes, predict, forget and merge. See `Model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amgc.lazy import lazy_names

if TYPE_CHECKING:
    from amgc.model.changes import Learned
    from amgc.model.folder import ModelBusyError, ModelError
    from amgc.model.info import Info
    from amgc.model.inputs import ImageError
    from amgc.model.model import Model
    from amgc.model.predict import UNKNOWN, Evaluation, Prediction

__all__ = ["UNKNOWN", "Evaluation", "ImageError", "Info", "Learned", "Model", "ModelBusyError", "ModelError", "Prediction"]

# Imported when first used: `amgc info` needs no torch.
__getattr__ = lazy_names(
    __name__,
    {
        "changes": ("Learned",),
        "folder": ("ModelBusyError", "ModelError"),
        "info": ("Info",),
        "inputs": ("ImageError",),
        "model": ("Model",),
        "predict": ("UNKNOWN", "Evaluation", "Prediction"),
    },
)
