"""The configuration of a run, which determines its result and is saved in run.json. Does not import torch."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from amgc import files
from amgc.data.registry import find as find_data_set
from amgc.data.registry import is_text
from amgc.features.registry import find as find_extractor
from amgc.methods.contract import Hyper
from amgc.methods.registry import find
from amgc.options import Checked, decode, merged, option
from amgc.registry import absolute_name, check_trusted, split_name
from amgc.runs.folder import RUN, RunError, RunFolder

MOST = 10_000  # threads, and processes
# Functions of a method that decide the training of network and head, and some that do not.
TRAINING = {"phase", "begin", "loss", "trainable", "trains_network", "network_copy", "views", "repeats", "trains"}
TRAINING |= {"parameter_groups", "begin_epoch"}
AFTER_TRAINING = {"end", "scores", "collect"}
Precision = Literal["32-true", "16-mixed", "bf16-mixed"]


@dataclass(frozen=True)
class Machine(Checked):
    """Where and how a run computes. Only rounding, and dropout with several processes, depend on it."""

    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto: a GPU if there is one")
    devices: int = option(
        1, "processes, each on a GPU or a share of the CPU's cores; under torchrun its number counts", least=1, most=MOST
    )
    precision: Precision = option("32-true", "precision of the network; class statistics and losses are always in float32")
    threads: int = option(0, "CPU threads per process; 0: the cores divided by the processes", least=0, most=MOST)
    checkpoint_minutes: float = option(
        5.0, "between two checkpoints within a task; one is written after every task anyway", least=0
    )
    feature_cache: str | None = option(
        None,
        "folder in which the features of a frozen network are cached for later runs; it contains a row per image",
        path=True,
        metavar="FOLDER",
    )
    log: tuple[Literal["tensorboard", "wandb"], ...] = option(
        (),
        "where to log as well: tensorboard, wandb (Weights & Biases); each needs the extra of its name",
        metavar="NAME [NAME …]",
    )
    start: str | None = option(
        None, "a run whose training of task 1 is reused; all settings that decide it must be the same", path=True, metavar="RUN"
    )
    keep_tasks: bool = option(
        False, "keep the network after every task; a run with --start and the same training of later tasks reuses it"
    )


@dataclass(frozen=True)
class Config:
    """One run: a method on a stream of tasks."""

    method: str
    hyper: Hyper
    data: str = "digits"
    data_options: dict[str, Any] = field(default_factory=dict)
    features: str = "convnet"
    features_options: dict[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    first_classes: int | None = None
    increment: int | None = None
    sizes: tuple[int, ...] | None = None
    classes: tuple[str, ...] | None = None
    natural_order: bool = False
    seed: int = 1993
    machine: Machine = field(default_factory=Machine)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON; `from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Config:
        """Return the config that `to_json` wrote. Raises ValueError for invalid values."""
        if missing := [name for name in ("method", "hyper", "machine") if name not in values]:
            raise ValueError(f"the config lacks {missing[0]!r}.")
        for name in ("method", "data", "features"):
            check_trusted(decode(str, values.get(name, ""), f"config.{name}"))
        return merged(cls(values["method"], find(values["method"]).hyper), values)


def read_config(folder: Path, machine: dict[str, Any]) -> Config:
    """Return the config of the run in `folder`, with some settings of the machine replaced."""
    values = RunFolder(folder).read()
    try:
        config = Config.from_json(values["config"])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise RunError(f"{str(folder / RUN)!r} cannot be read: {reason}") from error
    return replace(config, machine=merged(config.machine, machine))


def absolute(config: Config) -> Config:
    """Return the same config with absolute paths, so that the run can be resumed from any working directory."""

    def placed(values: dict[str, Any], declared: Any, *more: str) -> dict[str, Any]:
        paths = {*more, *(f.name for f in fields(declared) if f.metadata.get("path"))}
        return {
            name: absolute_path(value) if name in paths and isinstance(value, str) else value for name, value in values.items()
        }

    kind, path = split_name(absolute_name(config.data))
    return replace(
        config,
        method=absolute_name(config.method),
        data=f"{kind}:{absolute_path(path)}" if path else kind,
        data_options=placed(config.data_options, find_data_set(kind).options, "root"),
        features=absolute_name(config.features),
        features_options=placed(config.features_options, find_extractor(config.features).options),
        machine=replace(config.machine, **placed(vars(config.machine), config.machine)),
    )


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path as a run's files store it."""
    found = str(Path(path).expanduser().resolve())
    if not is_text(found):
        raise ValueError(f"the path {found!r} is not UTF-8, so a run's files cannot store it; rename that folder or file.")
    return found


def identity(config: Config) -> dict[str, Any]:
    """Return the settings that determine a run's result: all but the machine and the location of the data."""
    values = {name: value for name, value in config.to_json().items() if name != "machine"}
    values["data_options"] = {name: value for name, value in config.data_options.items() if name != "root"}
    plain: dict[str, Any] = files.plain_json(values)
    return plain


def first_task_key(config: Config) -> dict[str, Any]:
    """Return the settings that determine the training of task 1."""
    decides = identity(config)
    key = {name: value for name, value in decides.items() if name not in ("method", "hyper")}
    return key | {"first": deciding(decides["hyper"]["first"]), "precision": config.machine.precision}


def training_key(config: Config) -> dict[str, Any] | None:
    """Return the settings that determine the training of all tasks; None if the method's training is its own."""
    kind = find(config.method).kind
    if not kind.same_training or not kind.common_start or kind.sees_old_data:
        return None
    hyper = identity(config)["hyper"]
    key = {name: hyper[name] for name in kind.same_training} | {"later": deciding(hyper["later"])}
    family = next(base for base in kind.__mro__ if "same_training" in vars(base))  # its helpers may be part of the training
    own = {name for name, value in vars(family).items() if callable(value) and not name.startswith("__")}
    code = [getattr(kind, name) for name in sorted(own - AFTER_TRAINING | TRAINING) if hasattr(kind, name)]
    return first_task_key(config) | key | {"code": [f"{part.__module__}.{part.__qualname__}" for part in code]}


def deciding(phase: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a phase that matter."""
    if not phase["epochs"]:
        return {"epochs": 0}
    phase = dict(phase)
    if phase["schedule"] != "step":
        del phase["milestones"], phase["gamma"]  # they are not used
    if not phase.get("clip"):
        phase.pop("clip", None)  # files of older versions lack it
    return phase
