"""Checkpoints: everything that a run needs to go on, in one safetensors file. No pickle, no image, no feature row."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from amgc import files
from amgc.core.running import RunningStatistics
from amgc.core.statistics import ClassStatistics

KIND = "checkpoint"
STATISTICS: dict[str, type[ClassStatistics | RunningStatistics]] = {
    "class statistics": ClassStatistics,
    "running statistics": RunningStatistics,
}


def pack(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A method's state as a JSON header and named tensors."""
    header: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            header[name] = {"is": "tensor"}
            tensors[name] = value
        elif isinstance(value, ClassStatistics | RunningStatistics):
            kind = next(kind for kind, made in STATISTICS.items() if isinstance(value, made))
            header[name] = {"is": kind, "header": value.header()}
            parts = value.tensors(exact=True) if isinstance(value, ClassStatistics) else value.tensors()
            tensors |= {f"{name}/{part}": tensor for part, tensor in parts.items()}
        elif isinstance(value, nn.Module):
            header[name] = {"is": "network"}
            tensors |= {f"{name}/{part}": tensor for part, tensor in value.state_dict().items()}
        elif value is None or isinstance(value, bool | int | float | str | list):
            header[name] = {"is": "value", "value": value}
        else:
            raise TypeError(f"a method remembers {name!r}, a {type(value).__name__}, which cannot be saved.")
    return header, tensors


def unpack(header: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> dict[str, Any]:
    """The state that `pack` took apart; copies of networks come as state dicts."""
    state: dict[str, Any] = {}
    for name, about in header.items():
        kind = about["is"]
        if kind == "tensor":
            state[name] = tensors[name].to(device)
            continue
        if kind == "value":
            state[name] = about["value"]
            continue
        parts = {part.removeprefix(f"{name}/"): tensor for part, tensor in tensors.items() if part.startswith(f"{name}/")}
        state[name] = parts if kind == "network" else STATISTICS[kind].from_file(about["header"], parts, device)
    return state


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def without(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Momenta and step counts, by the number of their parameter."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The opposite of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def write(path: str | os.PathLike[str], header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """As `files.write`."""
    files.write(path, KIND, header, tensors)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a checkpoint."""
    try:
        return files.read(path, KIND)
    except files.FileFormatError as error:
        advice = "If there is no copy, delete it: `amgc resume` then begins the run again, with task 1."
        raise files.FileFormatError(f"{error} {advice}") from error
