"""`--log`: log a run to TensorBoard and Weights & Biases.

The x-axis counts the optimiser steps of all tasks so far, plus one for each finished task, so that a task without training has
a position of its own. Loggers are flushed before a checkpoint is written. A resumed run therefore continues the log exactly
at its checkpoint. A logger is `new` if this run has not logged to it before.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from amgc.engine.watch import TrainingProgress, Watch
from amgc.methods.contract import Task
from amgc.runs.folder import RUN
from amgc.runs.metrics import Metrics

if TYPE_CHECKING:
    from amgc.engine.session import Session

POINTS = 100  # losses that are logged per task, evenly spaced: each costs a synchronisation with the device
PROJECT = "amgc"  # in Weights & Biases, unless $WANDB_PROJECT says otherwise


class TensorBoard:
    """Fabric's logger, in FOLDER/tensorboard. What an interrupted process logged after its last checkpoint is purged."""

    def __init__(self, folder: Path, config: dict[str, Any], moment: int) -> None:
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        self.new, self.config = not (folder / "tensorboard").exists(), config
        beyond = None if self.new else moment + 1
        self.logger = TensorBoardLogger(folder, name="", version="tensorboard", purge_step=beyond)
        if self.new:
            self.logger.experiment.add_text("config", f"```\n{json.dumps(config, indent=1)}\n```")

    def log(self, values: dict[str, float], moment: int) -> None:
        self.logger.log_metrics(values, moment)

    def flush(self) -> None:
        self.logger.save()

    def finish(self, final: dict[str, float], moment: int) -> None:
        self.logger.log_hyperparams(self.config, {f"final/{name}": value for name, value in final.items()}, moment)

    def close(self, complete: bool) -> None:
        self.logger.finalize("success" if complete else "failed")


class WeightsAndBiases:
    """In FOLDER/wandb, and online unless $WANDB_MODE is offline.

    Logged values cannot be purged, so they are held back until the checkpoint that covers them. A resumed run has the same id;
    offline it gets another folder for `wandb sync` to upload.
    """

    def __init__(self, folder: Path, config: dict[str, Any], moment: int) -> None:
        import wandb

        self.new = not (folder / "wandb").exists()
        self.waiting: list[tuple[dict[str, float], int]] = []
        identity = hashlib.blake2b((folder / RUN).read_bytes(), digest_size=8).hexdigest()  # it never changes
        chosen = wandb.setup().settings  # from the user's environment
        try:
            self.run = wandb.init(
                project=chosen.project or PROJECT,
                dir=str(folder.resolve()),
                id=identity,
                name=folder.name,
                config=config,
                resume="allow" if chosen.mode == "online" else None,
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            raise ConnectionError(f"Weights & Biases: {error} WANDB_MODE=offline needs neither network nor account.") from error
        for name in ("accuracy", "task_accuracy", "memory", "seconds"):
            self.run.define_metric(f"{name}/*", step_metric="task")

    def log(self, values: dict[str, float], moment: int) -> None:
        self.waiting.append((values, moment))

    def flush(self) -> None:
        for values, moment in self.waiting:
            self.run.log(values, step=moment)
        self.waiting = []

    def finish(self, final: dict[str, float], moment: int) -> None:
        self.run.summary.update({f"final/{name}": value for name, value in final.items()})

    def close(self, complete: bool) -> None:
        self.run.finish(exit_code=int(not complete))


Logger: TypeAlias = TensorBoard | WeightsAndBiases
LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


class Logged(Watch):
    """Passes every call to the loggers and then to the watch that it wraps."""

    def __init__(self, inner: Watch, sizes: Sequence[int], lines: list[dict[str, Any]], loggers: Sequence[Logger]) -> None:
        self.inner, self.sizes, self.loggers = inner, sizes, loggers
        self.lines = list(lines)
        self.step = self.steps = 0
        self.shown = False
        for logger in loggers:
            for task in range(len(lines) if logger.new else 0):  # logging was enabled after the run had begun
                logger.log(task_values(sizes, lines[: task + 1]), moment(lines[: task + 1]))

    @property
    def stop(self) -> bool:  # type: ignore[override] # the wrapped watch is asked to stop
        return self.inner.stop

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.step, self.steps = done, steps
        self.inner.begin_task(task, tasks, steps, done)

    def is_due(self, step: int) -> bool:
        """Return whether a step is logged. This depends on the step only, so a resumed run logs the same steps."""
        return step % max(1, self.steps // POINTS) == 0

    def wants_progress(self) -> bool:
        self.step += 1
        self.shown = self.inner.wants_progress()
        return self.shown or self.is_due(self.step)

    def progress(self, now: TrainingProgress) -> None:
        if self.shown:
            self.inner.progress(now)
        if self.is_due(now.step):
            values = {f"loss/{name}": value for name, value in now.losses.items()}
            if not math.isnan(now.accuracy):  # a batch that has only classes that the method added
                values["batch_accuracy"] = now.accuracy
            for logger in self.loggers:
                logger.log(values, moment(self.lines, now.step))

    def note(self, text: str) -> None:
        self.inner.note(text)

    def saving(self, lines: list[dict[str, Any]]) -> None:
        for task in range(len(self.lines), len(lines)):
            self.lines.append(lines[task])
            for logger in self.loggers:
                logger.log(task_values(self.sizes, self.lines), moment(self.lines))
        for logger in self.loggers:
            logger.flush()
        self.inner.saving(lines)

    def end_task(self, task: Task, line: dict[str, Any]) -> None:
        self.inner.end_task(task, line)


@contextmanager
def logged(session: Session) -> Iterator[None]:
    """Log while the block runs, on the first process, to what `machine.log` names."""
    names = dict.fromkeys(session.config.machine.log)
    if not names or not session.processes.is_first:
        yield
        return
    config, sizes, position = session.config.to_json(), session.stream.sizes, session.position
    begun = moment(session.lines, position.earlier + position.step)
    loggers: list[Logger] = []
    complete, inner = False, session.watch
    try:
        loggers += [LOGGERS[name](session.folder.path, config, begun) for name in names]
        session.watch = Logged(inner, sizes, session.lines, loggers)
        yield
        accuracies = task_values(sizes, session.lines)
        final = {name.partition("/")[2]: value for name, value in accuracies.items() if name.startswith("accuracy/")}
        for logger in loggers:
            logger.flush()
            logger.finish(final, moment(session.lines))
        complete = True
    finally:
        session.watch = inner
        for logger in loggers:
            logger.close(complete)


def check(names: Sequence[str]) -> None:
    """Check that the packages to log to are installed."""
    for name in names:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"--log {name} needs a package that is not installed: pip install 'amgc[{name}]'")


def moment(lines: Sequence[dict[str, Any]], step: int = 0) -> int:
    """Return the position on the x-axis after these tasks and `step` steps of the next one."""
    return sum(int(line.get("steps", 0)) + 1 for line in lines) + step


def task_values(sizes: Sequence[int], lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return what is logged after the last of these tasks."""
    metrics = Metrics(sizes, [line["correct"] for line in lines], [line["total"] for line in lines])
    summary = {"LA": metrics.last_accuracy, "AIA": metrics.average_incremental_accuracy, "forgetting": metrics.forgetting}
    values = {"task": float(metrics.done)} | {f"accuracy/{name}": value for name, value in summary.items() if value is not None}
    values |= {f"task_accuracy/{task}": accuracy for task, accuracy in enumerate(metrics.matrix[-1], 1)}
    values |= {f"seconds/{name}": seconds for name, seconds in lines[-1]["seconds"].items()}
    return values | {f"memory/{name}": lines[-1][name] for name in ("kept_bytes", "peak_bytes") if name in lines[-1]}
