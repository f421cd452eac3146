"""Any model of timm as an extractor: `timm:NAME`. Needs the extra `timm`, which is imported when a model is built."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

from amgc.features.builtin import TimmOptions
from amgc.features.extractor import Extractor
from amgc.features.registry import ImageShape


class Timm(Extractor):
    """timm's model without its classifier. Weight files use timm's parameter names.

    With published weights (`pretrained`, downloaded or from a file) the model has the number of channels that it was trained
    with, and grey images are repeated to that number. Without them, it is built for the channels of the images.
    """

    def __init__(self, image_shape: ImageShape, options: TimmOptions) -> None:
        super().__init__()
        timm = import_timm()
        if not options.model:
            raise ValueError("specify a model of timm as timm:NAME, for example timm:resnet18.")
        if ":" not in options.model and not timm.is_model(options.model):  # hf-hub:OWNER/NAME is looked up there
            close = timm.list_models(f"*{options.model}*")[:5]
            hint = f"it has {', '.join(close)}" if close else "timm.list_models() lists its models"
            raise ValueError(f"timm {timm.__version__} has no model {options.model!r}; {hint}.")
        download = options.pretrained and options.weights is None
        channels = {} if options.pretrained else {"in_chans": image_shape[0]}
        try:
            model = timm.create_model(options.model, pretrained=download, num_classes=0, **channels)
        except Exception as error:  # no network, no such weights or a full disk: the hub has different exceptions for each
            if not download:
                raise
            raise OSError(
                f"timm's weights of {options.model} could not be downloaded ({error}). Get the file elsewhere and pass it "
                "with weights=FILE (amgc run: --features.weights FILE), or start from random weights with pretrained=False "
                "(--features.no-pretrained)."
            ) from error
        self.model: nn.Module = model
        config = model.pretrained_cfg
        self.input_size = config.get("input_size", (3, 224, 224))
        self.resize = options.resize
        self.channels = self.input_size[0] if options.pretrained else image_shape[0]
        if image_shape[0] not in (1, self.channels):
            raise ValueError(
                f"{options.model} was trained on images with {self.channels} channels, but these have {image_shape[0]}; only "
                "images with one channel can be repeated. Start from random weights with pretrained=False, or choose another "
                "model."
            )
        classifier = config.get("classifier") or ()
        self.classifier = tuple(f"{name}." for name in ([classifier] if isinstance(classifier, str) else classifier))
        mean, std = tuple(config.get("mean") or ()), tuple(config.get("std") or ())
        if (options.pretrained or options.weights is not None) and len(mean) == len(std) == self.channels:
            self.mean, self.std = mean, std  # random weights expect no particular normalisation
        self.dim = self._measured_dim(image_shape)

    @property
    def network(self) -> nn.Module:
        return self.model

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, dim) of float images (n, c, h, w), or (n, 1, h, w)."""
        if images.shape[1] == 1 < self.channels:
            images = images.expand(-1, self.channels, -1, -1)
        if self.resize and images.shape[2:] != (self.resize, self.resize):
            size = (self.resize, self.resize)
            images = functional.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)
        features: Tensor = self.model(images)
        return features

    def _measured_dim(self, image_shape: ImageShape) -> int:
        """Measure the number of features with a black image: some models report it wrongly, some accept one size only."""
        training = self.training
        try:
            with torch.no_grad():
                features = self.eval()(torch.zeros(1, *image_shape))
        except (AssertionError, RuntimeError) as error:
            wanted = self.input_size
            raise ValueError(
                f"the timm model does not accept images of {image_shape[1]} × {image_shape[2]} pixels ({error}). Its own "
                f"size is {wanted[-1]}: set resize={wanted[-1]}."
            ) from error
        finally:
            self.train(training)
        if features.ndim != 2:
            raise ValueError(f"the timm model returns a map of shape {tuple(features.shape)}, not a vector per image.")
        return int(features.shape[1])


def import_timm() -> ModuleType:
    """Import timm. The error distinguishes a missing timm from a torchvision that does not fit torch."""
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name == "timm":
            raise ImportError("timm:NAME needs timm, an extra: pip install 'amgc[timm]'.") from error
        reason: Exception = error
    except (ImportError, RuntimeError, OSError, AttributeError) as error:  # what a torchvision of another build raises
        reason = error
    raise ImportError(
        f"timm is installed, but cannot be imported with torch {torch.__version__}: {reason}. Usually torchvision, which timm "
        "needs, is missing or was built for another torch. Install the matching build (CPU for a CPU torch)."
    ) from reason
