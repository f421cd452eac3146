"""Models for your own images: learn classes, predict, forget and merge. See `Model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amgc.lazy import lazy_names

if TYPE_CHECKING:
    from amgc.model.changes import Learned
    from amgc.model.folder import ModelBusyError, ModelError
    from amgc.model.info import Info
    from amgc.model.model import Model
    from amgc.model.pictures import PictureError
    from amgc.model.predict import UNKNOWN, Evaluation, Prediction

__all__ = ["UNKNOWN", "Evaluation", "Info", "Learned", "Model", "ModelBusyError", "ModelError", "PictureError", "Prediction"]

# Imported when first used: `amgc info` needs no torch.
__getattr__ = lazy_names(
    __name__,
    {
        "changes": ("Learned",),
        "folder": ("ModelBusyError", "ModelError"),
        "info": ("Info",),
        "model": ("Model",),
        "pictures": ("PictureError",),
        "predict": ("UNKNOWN", "Evaluation", "Prediction"),
    },
)
