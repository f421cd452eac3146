"""The configuration of a run. It is saved in run.json and decides the result. Free of torch."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from amgc.data.registry import is_text
from amgc.methods.contract import Hyper, about
from amgc.methods.registry import find
from amgc.runs.folder import RUN, RunError, RunFolder

T = TypeVar("T")
# A command asks for those of the same few dataclasses dozens of times.
type_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
Precision = Literal["32-true", "16-mixed", "bf16-mixed"]


@dataclass(frozen=True)
class Machine:
    """Where and how a run computes. The result depends on it only by rounding, and by dropout with several processes."""

    device: Literal["auto", "cpu", "cuda"] = about("auto", "auto takes a GPU if there is one")
    devices: int = about(1, "processes, each on a GPU or a share of the CPU's cores; under torchrun its number counts")
    precision: Precision = about("32-true", "of the network; statistics and losses of classes stay in float32")
    threads: int = about(0, "CPU threads per process; 0: the cores divided by the processes")
    checkpoint_minutes: float = about(5.0, "between two checkpoints within a task; one is written after every task anyway")
    feature_cache: str | None = about(
        None, "folder for the features of a network that does not train, for later runs; it holds a row per image"
    )
    log: tuple[Literal["tensorboard", "wandb"], ...] = about(
        (), "where to log as well: tensorboard, wandb (Weights & Biases); each needs the extra of its name"
    )
    start: str | None = about(None, "a run whose training of task 1 is taken over, if all that decides it is the same")

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"devices must be at least 1, not {self.devices}.")
        if self.threads < 0 or not self.checkpoint_minutes >= 0:
            raise ValueError("threads and checkpoint_minutes must not be negative.")


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
        """Return the config that `to_json` wrote; raise a ValueError for what does not fit."""
        values = dict(values)
        hyper = merged(find(values["method"]).hyper, values.pop("hyper"))
        machine = merged(Machine(), values.pop("machine"))
        for name in ("sizes", "classes"):
            values[name] = None if values.get(name) is None else tuple(values[name])
        if unknown := set(values) - {f.name for f in fields(cls)}:
            raise ValueError(f"this version of amgc knows no setting {', '.join(sorted(unknown))}.")
        return cls(hyper=hyper, machine=machine, **values)


def read_config(folder: Path, machine: dict[str, Any]) -> Config:
    """Return the config of the run in `folder`, with some settings of the machine replaced."""
    path, values = folder / RUN, RunFolder(folder).read()
    try:
        config = values["config"]
        return Config.from_json(config | {"machine": config["machine"] | machine})
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{str(path)!r} is damaged, or not a run's ({error!r}).") from error


def absolute(config: Config) -> Config:
    """The same run, its paths made absolute: it can then be resumed from any working folder."""

    def placed(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        return {
            name: absolute_path(value) if name in names and isinstance(value, str) else value for name, value in values.items()
        }

    kind, _, path = config.data.partition(":")
    return replace(
        config,
        data=f"{kind}:{absolute_path(path)}" if path else config.data,
        data_options=placed(config.data_options, ("root", "cache", "classes")),
        features_options=placed(config.features_options, ("weights",)),
        machine=replace(config.machine, **placed(vars(config.machine), ("feature_cache", "start"))),
    )


def absolute_path(path: str | os.PathLike[str]) -> str:
    """As it is written into a run's files."""
    found = str(Path(path).expanduser().resolve())
    if not is_text(found):
        raise ValueError(f"the path {found!r} is not UTF-8, so a run's files cannot hold it; rename what is not.")
    return found


def merged(default: T, chosen: dict[str, Any], where: str = "") -> T:
    """A frozen dataclass with the `chosen` fields replaced, nested ones too; an unknown name or a wrong type is an error.

    >>> merged(Machine(), {"devices": 2}).devices
    2
    """
    assert is_dataclass(default) and not isinstance(default, type)
    hints = type_hints(type(default))
    values: dict[str, Any] = {}
    for name, value in chosen.items():
        full = f"{where}{name}"
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(hints)}."
            raise ValueError(f"there is no setting {full!r}{hint}")
        current = getattr(default, name)
        if is_dataclass(current) and isinstance(value, dict):
            values[name] = merged(current, value, f"{full}.")
        else:
            values[name] = _fitting(value, hints[name], full)
    return replace(default, **values)


def _fitting(value: Any, hint: Any, name: str) -> Any:
    """The value as the type that is asked for: JSON and TOML know no tuples, and write 1 for 1.0."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_fitting(item, options[0], name) for item in value)
    if origin is Literal:
        if value in options:
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}; not {value!r}.")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    allowed = options if type(None) in options else (hint,)
    if not any(type(value) is kind for kind in allowed):
        wanted = " or ".join("None" if kind is type(None) else getattr(kind, "__name__", str(kind)) for kind in allowed)
        raise ValueError(f"{name} must be {wanted}, not {value!r}.")
    return value
