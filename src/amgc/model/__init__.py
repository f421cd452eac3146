"""Own images: a folder that learns classes, predicts, forgets and merges. See `Model`."""

from __future__ import annotations

from amgc.model.evaluation import Evaluation
from amgc.model.folder import ModelBusyError
from amgc.model.model import Model
from amgc.model.pictures import PictureError
from amgc.model.results import UNKNOWN, Info, Learned, ModelError, Prediction

__all__ = ["UNKNOWN", "Evaluation", "Info", "Learned", "Model", "ModelBusyError", "ModelError", "PictureError", "Prediction"]
