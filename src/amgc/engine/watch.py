"""Callbacks of a run. The command line uses them to show progress and to stop a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from amgc.methods.contract import Task


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of the training of a task. Losses and accuracy (NaN: unknown) are those of the current batch."""

    epoch: int
    epochs: int
    step: int  # of the task
    steps: int
    losses: dict[str, float]
    accuracy: float


class Watch:
    """Callbacks that do nothing; a subclass overrides some. Set `stop` to save and stop the run at the next step."""

    stop = False

    def begin_run(self, class_names: Sequence[str], sizes: Sequence[int], cost: Callable[[], Any]) -> None:
        """Called before anything is trained or written; `cost()` measures the cost of the run (engine.cost.Cost)."""

    def wants_progress(self) -> bool:
        """Return whether `progress` should be called. Asked at every step; True costs a synchronisation with the device."""
        return False

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        """Called before a task is trained; in a resumed run, `done` of its `steps` are already done."""

    def progress(self, now: TrainingProgress) -> None:
        """Called after a step for which `wants_progress` returned True."""

    def note(self, text: str) -> None:
        """Called with a message for the user."""

    def saving(self, lines: list[dict[str, Any]]) -> None:
        """Called before a checkpoint is written; `lines` are the lines of metrics.jsonl so far."""

    def end_task(self, task: Task, line: dict[str, Any]) -> None:
        """Called after a task with its line of metrics.jsonl."""


class Stopped(Exception):  # noqa: N818 - not an error
    """The run was asked to stop and can be resumed."""


class TrainingError(RuntimeError):
    """The training failed for a reason that the user can change."""
