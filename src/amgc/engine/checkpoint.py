"""Checkpoints: everything that a run needs to continue, in one safetensors file. It has no images, and no features of one."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from amgc import tensor_files
from amgc.core.running import RunningStatistics
from amgc.core.statistics import ClassStatistics
from amgc.engine.config import identity
from amgc.engine.watch import Stopped
from amgc.files import MISFITS, FileFormatError, misfit
from amgc.methods.contract import LinearHead
from amgc.methods.optional import DelaysCheckpoints, ReshapesNetwork
from amgc.tensor_files import prefixed, without

if TYPE_CHECKING:
    from amgc.engine.session import Session

KIND = "checkpoint"  # of safetensors files
STATISTICS: dict[str, type[ClassStatistics | RunningStatistics]] = {
    "class statistics": ClassStatistics,
    "running statistics": RunningStatistics,
}


@dataclass
class Position:
    """Where a run is: the task, the optimiser steps done in it, and whether `Method.begin` has been called for it.

    In a second training stage, `step` counts from its beginning, and `earlier` has the steps of the first.
    """

    task: int = 0
    step: int = 0
    begun: bool = False
    stage: int = 0
    earlier: int = 0

    def done(self, task: int) -> tuple[int, int]:
        """Return how many steps of the first and of the second stage of a task are done."""
        if task != self.task:
            return 0, 0
        return (self.earlier, self.step) if self.stage else (self.step, 0)


class Checkpoints:
    """Saves and restores a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._saved_at = time.monotonic()
        self._optimizer: dict[str, Tensor] = {}  # restored, until the optimiser exists

    def save_if_due(self, optimizer: Any, *, last: bool) -> None:
        """Save after a step if a checkpoint is due. Stop if the user asked for it and the method's state may be saved.

        The `last` step of a task is always saved: what follows can be interrupted, but cannot be saved halfway.
        """
        session = self.session
        method, stop = session.method, self._stop_requested()
        due = last or time.monotonic() - self._saved_at > 60 * session.config.machine.checkpoint_minutes
        if not (due or stop):
            return
        new = method.task.new
        if isinstance(method, DelaysCheckpoints) and not method.may_save(session.stream.class_counts[0][new.start : new.stop]):
            return
        session.meter.check(method.task)  # a network whose loss is not finite must not replace the last checkpoint
        self.save(optimizer)
        if stop:
            raise Stopped

    def _stop_requested(self) -> bool:
        """Return whether to stop, the same on all processes: if they stopped at different steps, they would wait forever."""
        processes, stop = self.session.processes, self.session.watch.stop
        return stop if processes.count == 1 else bool(processes.sum(torch.tensor(float(stop), device=processes.device)))

    def save(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Write everything that is needed to continue from here. Only the first process writes; all have the same state."""
        session = self.session
        session.stopwatch.count("train" if optimizer is not None else "evaluate")
        self._saved_at = time.monotonic()
        if not session.processes.is_first:
            return
        session.watch.saving(session.lines)
        method, tensors = pack(session.method.state())
        header = {
            "config": identity(session.config),
            "position": asdict(session.position),
            "method": method,
            "lines": session.lines,
            "seconds": session.stopwatch.seconds,
            "count": session.meter.count,
            "precision": session.processes.fabric.strategy.precision.state_dict(),
        }
        parts = prefixed("network/", session.network.state_dict())
        parts |= prefixed("method/", tensors) | prefixed("meter/", session.meter.sums)
        if optimizer is not None:
            parts |= prefixed("optimizer/", optimizer_tensors(optimizer))
        tensor_files.write(session.folder.checkpoint, KIND, header, parts)

    def restore(self) -> None:
        """Restore the session from the last checkpoint, if there is one."""
        session, path, device = self.session, self.session.folder.checkpoint, self.session.processes.device
        if not path.exists():
            return
        header, tensors = read(path)
        if header.get("config") != identity(session.config):
            raise FileFormatError(f"{str(path)!r} belongs to a run with another config; it cannot be resumed here.")
        try:
            session.position = Position(**header["position"])
            method, position = session.method, session.position
            if position.begun:
                method.task = session.task(position.task)
            if isinstance(method, ReshapesNetwork):
                method.reshape_network(position.task, position.begun)
            session.network.load_state_dict(without("network/", tensors))
            method.restore(unpack(header["method"], without("method/", tensors), device))
            session.lines, session.stopwatch.seconds = header["lines"], header["seconds"]
            session.meter.sums = {name: value.to(device) for name, value in without("meter/", tensors).items()}
            session.meter.count = header["count"]
            session.processes.fabric.strategy.precision.load_state_dict(header["precision"])
            self._optimizer = without("optimizer/", tensors)
        except MISFITS as error:
            raise misfit(path, error) from error

    def restore_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Load the restored optimiser state into the first optimiser that is created after `restore`."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in self._optimizer.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = tensor
        if state:
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
            self._optimizer = {}


# ---- tensors ---------------------------------------------------------------------------------------------------------


def pack(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a method's state as a JSON header and named tensors."""
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
        elif isinstance(value, nn.Module | LinearHead):
            header[name] = {"is": "module"}
            parts = value.state_dict() if isinstance(value, nn.Module) else {"weight": value.weight, "bias": value.bias}
            tensors |= {f"{name}/{part}": tensor.detach() for part, tensor in parts.items()}
        elif value is None or isinstance(value, bool | int | float | str | list):
            header[name] = {"is": "value", "value": value}
        else:
            raise TypeError(f"a method remembers {name!r}, a {type(value).__name__}, which cannot be saved.")
    return header, tensors


def unpack(header: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> dict[str, Any]:
    """Return the state that `pack` took apart; heads and modules are returned as dicts of tensors."""
    state: dict[str, Any] = {}
    for name, about in header.items():
        kind = about["is"]
        if kind == "tensor":
            state[name] = tensors[name].to(device)
        elif kind == "value":
            state[name] = about["value"]
        else:
            parts = without(f"{name}/", tensors)
            state[name] = parts if kind in ("module", "network") else STATISTICS[kind].from_file(about["header"], parts, device)
    return state


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return momenta and step counts, by the index of their parameter."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if value is not None
    }


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return header and tensors of a checkpoint."""
    try:
        return tensor_files.read(path, KIND)
    except FileFormatError as error:
        advice = "If there is no copy, delete it: `amgc resume` then restarts the run from task 1."
        raise FileFormatError(f"{error} {advice}") from error
