"""What a run tells while it goes on. The command line shows it; by default nobody listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from amgc.methods.contract import Task


@dataclass(frozen=True)
class Progress:
    """Where the training of a task is. Losses and accuracy are those of the batch at hand."""

    epoch: int
    epochs: int
    step: int  # of the task
    steps: int
    losses: dict[str, float]
    accuracy: float


class Watch:
    """Silent; a subclass shows what it is told. Setting `stop` ends the run at the next step, saved."""

    stop = False

    def begin_run(self, class_names: Sequence[str], sizes: Sequence[int], cost: Callable[[], Any]) -> None:
        """Before anything is trained or written; `cost()` measures what the run will take (engine.cost.Cost)."""

    def wants_progress(self) -> bool:
        """Asked at every step. To answer yes costs a synchronisation with the device."""
        return False

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        """`done` of the task's `steps` are behind it already, if the run is resumed."""

    def progress(self, now: Progress) -> None:
        """Told when `wants_progress` said yes."""

    def note(self, text: str) -> None:
        """A line worth keeping."""

    def saving(self, lines: list[dict[str, Any]]) -> None:
        """Before a checkpoint is written, from which another process may go on; `lines` of metrics.jsonl are finished."""

    def end_task(self, task: Task, line: dict[str, Any]) -> None:
        """The task's line in metrics.jsonl."""


class Stopped(Exception):  # noqa: N818 - not an error
    """The run was asked to stop and can be resumed."""


class TrainingError(RuntimeError):
    """The training went wrong in a way that the user can do something about."""
