"""Models for your own images: learn classes, predict, forget and merge. See `Model`."""

from __future__ import annotations

from amgc.model.changes import Learned
from amgc.model.folder import ModelBusyError
from amgc.model.info import Info
from amgc.model.model import Model
from amgc.model.pictures import PictureError
from amgc.model.predict import UNKNOWN, Evaluation, Prediction
from amgc.model.state import ModelError

__all__ = ["UNKNOWN", "Evaluation", "Info", "Learned", "Model", "ModelBusyError", "ModelError", "PictureError", "Prediction"]
