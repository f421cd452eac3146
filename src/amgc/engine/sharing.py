"""Runs of different methods can share the training of task 1, and of all tasks: one run keeps it, others start from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from amgc import tensor_files
from amgc.engine.config import first_task_key, training_key
from amgc.runs.folder import RunFolder
from amgc.tensor_files import prefixed, without

if TYPE_CHECKING:
    from amgc.engine.session import Session

KIND = "first task"  # of safetensors files; also of later tasks


def keep(session: Session, index: int) -> None:
    """Write network and head after the training of a task, if other methods can start from them."""
    method, key = session.method, key_of(session, index)
    shared = method.common_start and not method.sees_old_data if index == 0 else session.config.machine.keep_tasks
    if session.processes.is_first and shared and key is not None:
        tensors = prefixed("network/", session.network.state_dict())
        tensors |= {"head.weight": method.head.weight, "head.bias": method.head.bias}
        header = {
            "key": key,
            "seconds": session.stopwatch.seconds["train"],
            "losses": session.meter.means(),
            "steps": session.position.step,
        }
        tensor_files.write(session.folder.trained(index), KIND, header, tensors)


def reuses(session: Session, index: int) -> bool:
    """Return whether the training of a task is taken from another run: task 1 if possible, later ones if they are there."""
    start, method = session.config.machine.start, session.method
    if start is None or not method.common_start:
        return False
    path = RunFolder(Path(start)).trained(index)
    key = key_of(session, index)
    return index == 0 or (key is not None and path.is_file() and tensor_files.read_header(path, KIND).get("key") == key)


def load(session: Session, index: int) -> None:
    """Load what `keep` wrote in the folder `machine.start`."""
    start = str(session.config.machine.start)
    header, tensors = tensor_files.read(RunFolder(Path(start)).trained(index), KIND)
    own = key_of(session, index) or {}
    differing = sorted(name for name in own if header.get("key", {}).get(name) != own[name])
    if differing:
        raise ValueError(
            f"task {index + 1} of {start!r} was trained with another {', '.join(differing)}; "
            "leave --start out, or set the same."
        )
    session.network.load_state_dict(without("network/", tensors))
    session.method.head.set(tensors["head.weight"], tensors["head.bias"])
    session.stopwatch.seconds["train"] = float(header["seconds"])
    session.position.step = int(header.get("steps", 0))  # files of older versions lack it
    session.meter.sums = {name: torch.tensor(mean, dtype=torch.float64) for name, mean in header["losses"].items()}
    session.meter.count = 1
    session.stopwatch.start()


def key_of(session: Session, index: int) -> dict[str, Any] | None:
    """Return the settings that decide the training of a task; None if it cannot be shared."""
    return first_task_key(session.config) if index == 0 else training_key(session.config)
