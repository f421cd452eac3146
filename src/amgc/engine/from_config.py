"""Derive from a config: the order of the classes, the tasks, the network, and what decides the result."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from amgc import files
from amgc.data import Augment, Dataset, class_order, order_of, split_tasks
from amgc.engine.config import Config
from amgc.features import build
from amgc.features.extractor import Extractor


class Vectors(Extractor):
    """The extractor of a data set that consists of features: the identity."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return features


def order_and_sizes(config: Config, dataset: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the classes in order of arrival, as labels of the data set, and the number of classes in each task."""
    if config.classes is not None:
        order = order_of(config.classes, dataset.class_names)
    else:
        order = class_order(len(dataset.class_names), None if config.natural_order else config.seed)
    tasks = config.tasks
    if (config.first_classes, config.increment, config.sizes, tasks) == (None, None, None, None):
        tasks = 1
    return order, split_tasks(
        len(order), tasks=tasks, first=config.first_classes, increment=config.increment, sizes=config.sizes
    )


def make_network(config: Config, dataset: Dataset) -> Extractor:
    """Return the extractor for the data set's images; for a data set of features the identity."""
    if dataset.is_features:
        return Vectors(dataset.train.shape[0])
    augmented = Augment.of(dataset)
    shape = (dataset.train.shape[0], augmented.size, augmented.size) if augmented.resized else dataset.train.shape
    return build(config.features, image_shape=shape, **config.features_options)


def identity(config: Config) -> dict[str, Any]:
    """Return what decides a run's result: the config without the machine and without the location of the data."""
    values = {name: value for name, value in config.to_json().items() if name != "machine"}
    values["data_options"] = {name: value for name, value in config.data_options.items() if name != "root"}
    plain: dict[str, Any] = files.plain_json(values)
    return plain


def first_task_key(config: Config) -> dict[str, Any]:
    """Return what decides the training of task 1."""
    decides = identity(config)
    key = {name: value for name, value in decides.items() if name not in ("method", "hyper")}
    first = dict(decides["hyper"]["first"])
    if not first["epochs"]:
        first = {"epochs": 0}  # the other settings do not matter then
    elif first["schedule"] != "step":
        del first["milestones"], first["gamma"]  # they are not used
    return key | {"first": first, "precision": config.machine.precision}
