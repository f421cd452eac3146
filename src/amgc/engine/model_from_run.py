"""Create a model from a finished run: its network, its classifier, and the class statistics."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amgc import files, tensor_files
from amgc.core.incremental import IncrementalClassifier
from amgc.core.losses import margins
from amgc.core.statistics import ClassStatistics
from amgc.data import Augment, load
from amgc.engine import checkpoint
from amgc.engine.config import Config, identity, read_config
from amgc.features import blank
from amgc.features.registry import find as find_extractor
from amgc.methods.contract import Method
from amgc.methods.optional import ReshapesNetwork, RestoresStructure
from amgc.methods.registry import find
from amgc.model import Model, ModelError
from amgc.model.manifest import Features, ImageSize, Manifest
from amgc.model.state import FixedHead, State
from amgc.options import decode
from amgc.registry import is_file
from amgc.runs.folder import RUN, RunError, RunFolder

PLACES = ("data", "data_options", "features_options")  # fields of a run's config that may name files and folders of its machine
LARGEST = 100_000  # pixels of a side
PROBES = 64  # random features on which a method's scores are compared with those of its linear head


def model_from_run(run: str | os.PathLike[str], path: str | os.PathLike[str]) -> Model:
    """Make a new model in the folder `path` that predicts what the run's method predicts after its last task.

    If the method keeps class statistics, as the AMGC family does, the model can learn more classes; otherwise it can only
    predict and forget. Raises ModelError for a method without a linear head on the features of one network.
    """
    folder = RunFolder(Path(run))
    config = read_config(folder.path, {"device": "cpu"})
    about, info = folder.read(), folder.info()
    names, sizes = list(info.class_names), list(info.sizes)
    header, tensors = checkpoint.read(folder.checkpoint)
    tasks = header["position"]["task"]
    if tasks < len(sizes):
        raise ModelError(f"the run in {str(run)!r} has done {tasks} of {len(sizes)} tasks; `amgc resume` it first.")
    shape, mean, std, scale = _images(about, config, run)
    try:
        network = blank(config.features, image_shape=shape, **config.features_options)
    except TypeError as error:  # of an extractor without these options
        raise RunError(f"{str(folder / RUN)!r} cannot be read: config.features: {error}") from error
    built = {name: tensor.shape for name, tensor in network.state_dict().items()}
    method: Method[Any] = find(config.method).kind(config.hyper, network, torch.device("cpu"))
    try:
        if isinstance(method, ReshapesNetwork):
            method.reshape_network(tasks, False)
        network.load_state_dict(tensor_files.without("network/", tensors))
        method.restore(checkpoint.unpack(header["method"], tensor_files.without("method/", tensors), torch.device("cpu")))
    except files.MISFITS as error:
        raise files.misfit(folder.checkpoint, error) from error
    if isinstance(method, RestoresStructure):
        method.restore_structure()
    if {name: tensor.shape for name, tensor in network.state_dict().items()} != built:
        raise ModelError(f"{config.method} changes the network's structure, which a model cannot keep.")
    _check_linear(method, config, len(names))
    network.mean, network.std = mean, std
    manifest = _manifest(config, run, shape, scale, about)
    classifier = _classifier(method, config, names, sizes)
    if isinstance(classifier, IncrementalClassifier):
        manifest.made["classifier"] = files.plain_json(classifier.parameters())
    return Model.begin(path, State(manifest, network.eval().requires_grad_(False), classifier))


@dataclass(frozen=True)
class _Images:
    """The entry `images` of run.json."""

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: int

    def check(self) -> None:
        """Raise ValueError if the numbers cannot be those of images."""
        if self.shape[0] not in (1, 3) or not all(1 <= side <= LARGEST for side in (*self.shape, self.scale)):
            raise ValueError(f"images.shape {list(self.shape)} and images.scale {self.scale} cannot be those of images.")
        finite = all(map(math.isfinite, self.mean + self.std))
        if not len(self.mean) == len(self.std) == self.shape[0] or not finite or not min(self.std) > 0:
            raise ValueError(f"images.mean {list(self.mean)} and images.std {list(self.std)} are not a valid normalisation.")


def _images(
    about: dict[str, Any], config: Config, run: str | os.PathLike[str]
) -> tuple[tuple[int, int, int], tuple[float, ...], tuple[float, ...], int]:
    """Return shape, mean and standard deviation of the network's images, and the side to which images are scaled first."""
    kept = about.get("images")
    if kept is None and "images" not in about:  # a run of an older version: ask the data set
        dataset = load(config.data, **config.data_options)
        augment = Augment.of(dataset)
        kept = None if dataset.is_features else {"shape": dataset.train.shape, "mean": augment.mean, "std": augment.std}
        if kept is not None:
            kept |= {"scale": dataset.train.shape[1]}
            if augment.resized:
                kept["shape"] = (dataset.train.shape[0], augment.size, augment.size)
    if kept is None:
        raise ModelError(f"the run in {str(run)!r} was made on feature vectors, and has no extractor for images.")
    try:
        found: _Images = decode(_Images, kept, "images")
        found.check()
    except ValueError as error:
        raise RunError(f"{str(Path(run) / RUN)!r} cannot be read: {error}") from error
    channels, height, width = found.shape
    if height != width:
        raise ModelError(f"the run in {str(run)!r} has images of {height} × {width} pixels; a model's are square.")
    return (channels, height, width), found.mean, found.std, found.scale


def _check_linear(method: Method[Any], config: Config, classes: int) -> None:
    """Check on random features that the method's scores are those of its linear head."""
    features = torch.rand(PROBES, method.network.dim, generator=torch.Generator().manual_seed(0))
    if len(method.head) == classes:
        with torch.no_grad():
            scores, linear = method.scores(features).double(), method.head(features).double()
        if torch.allclose(scores, linear, rtol=1e-4, atol=1e-4 * float(linear.abs().max())):
            return
    raise ModelError(
        f"{config.method} does not classify by a linear head on the network's features, so it cannot become a model. Methods "
        "that do: the AMGC family, lda, finetune, joint, lwf, ewc and others that train a linear head."
    )


def _manifest(
    config: Config, run: str | os.PathLike[str], shape: tuple[int, int, int], scale: int, about: dict[str, Any]
) -> Manifest:
    # By name: a model must not contain the path of a user's file.
    config = replace(config, method=find(config.method).name)
    if is_file(config.features):
        config = replace(config, features=find_extractor(config.features).name)
    made = {
        "by": "model",
        "from": f"a run of {config.method} on {Path(config.data).name}",
        "run": Path(run).name,
        "config": {name: value for name, value in identity(config).items() if name not in PLACES},
        "seed": config.seed,
        "amgc": about.get("amgc"),
        "covariance": None,
    }
    options = {name: value for name, value in config.features_options.items() if name != "weights"}
    return Manifest(made, Features(config.features, options, config.features), ImageSize(shape[1], scale))


def _classifier(method: Method[Any], config: Config, names: list[str], sizes: list[int]) -> IncrementalClassifier | FixedHead:
    weight, bias = method.head.weight.detach().double(), method.head.bias.detach().double()
    statistics = getattr(method, "statistics", None)
    if not isinstance(statistics, ClassStatistics) or sorted(statistics.classes) != list(range(len(names))):  # type: ignore[type-var]
        return FixedHead(tuple(names), weight.numpy(), bias.numpy())
    margin = float(getattr(config.hyper, "margin", 0.0))
    parameters = IncrementalClassifier(
        margin=margin,
        balance=getattr(config.hyper, "balance", "per_class"),
        covariance=statistics.form,
        rank=statistics.rank,
        dtype=str(statistics.dtype).removeprefix("torch."),
    ).parameters()
    order = [int(str(label)) for label in statistics.classes]
    task_of = torch.repeat_interleave(torch.arange(1, len(sizes) + 1), torch.tensor(sizes))[order]
    header = {
        "parameters": parameters,
        "statistics": statistics.header() | {"classes": [names[label] for label in order]},
        "latest": task_of.tolist(),
        "features": None,
        "temperature": 1.0,
        "certificate": dict.fromkeys(("loss", "gradient_norm", "gap"), float("nan"))  # trained, or solved elsewhere
        | {"iterations": 0, "evaluations": 0, "converged": False},
    }
    old = (task_of < len(sizes)).double()
    found = margins(weight[order], statistics.covariances.double(), margin) * old if margin else torch.zeros(len(order))
    tensors: dict[str, Tensor] = {f"statistics.{name}": one for name, one in statistics.tensors(exact=True).items()}
    tensors |= {"head.weight": weight[order], "head.bias": bias[order], "head.margins": found.double()}
    return IncrementalClassifier.from_packed(header, tensors)
