"""Share the training of task 1 between runs of different methods: one run saves it, others start from it."""

from __future__ import annotations

from pathlib import Path

import torch

from amgc import tensor_files
from amgc.engine.checkpoint import prefixed, without
from amgc.engine.from_config import first_task_key
from amgc.engine.session import Session
from amgc.runs.folder import FIRST_TASK

KIND = "first task"


def save(session: Session) -> None:
    """Write network and head after the training of task 1, if other methods can start from them."""
    method = session.method
    if session.processes.is_first and method.common_start and not method.sees_old_data:
        tensors = prefixed("network/", session.network.state_dict())
        tensors |= {"head.weight": method.head.weight, "head.bias": method.head.bias}
        header = {
            "key": first_task_key(session.config),
            "seconds": session.stopwatch.seconds["train"],
            "losses": session.meter.means(),
            "steps": session.position.step,
        }
        tensor_files.write(session.folder.first_task, KIND, header, tensors)


def is_reused(session: Session) -> bool:
    """Return whether the run starts from another run's training of task 1."""
    return session.config.machine.start is not None and session.method.common_start


def load(session: Session) -> None:
    """Load what `save` wrote in the folder `machine.start`."""
    path = Path(str(session.config.machine.start)) / FIRST_TASK
    header, tensors = tensor_files.read(path, KIND)
    own = first_task_key(session.config)
    differing = sorted(name for name in own if header.get("key", {}).get(name) != own[name])
    if differing:
        raise ValueError(
            f"task 1 of {session.config.machine.start!r} was trained with another {', '.join(differing)}; "
            "leave --start out, or set the same."
        )
    session.network.load_state_dict(without("network/", tensors))
    session.method.head.set(tensors["head.weight"], tensors["head.bias"])
    session.stopwatch.seconds["train"] = float(header["seconds"])
    session.position.step = int(header.get("steps", 0))  # files of older versions lack it
    session.meter.sums = {name: torch.tensor(mean, dtype=torch.float64) for name, mean in header["losses"].items()}
    session.meter.count = 1
    session.stopwatch.start()
