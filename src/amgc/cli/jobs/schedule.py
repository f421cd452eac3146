"""Schedule the runs of a comparison: start jobs, poll them, and restart those that were stopped."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from amgc.cli.errors import STOPPED
from amgc.cli.jobs.executors import Executor, Running
from amgc.cli.jobs.grid import Cell
from amgc.cli.jobs.worker import Job
from amgc.engine.watch import Watch
from amgc.runs import RunRecord
from amgc.runs.folder import COMMAND

POLL_SECONDS = 0.1  # between two polls of the jobs
READ_SECONDS = 1.0  # between two reads of the files of a run
MAX_RESTARTS = 100  # of a job that the cluster stopped, because of a time limit or another user's priority
ERROR = "amgc: error: "


@dataclass
class Work:
    """A cell of the grid and the state of its job."""

    cell: Cell
    key: str | None  # equal for cells with the same training of task 1
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    run: RunRecord | None = None
    reason: str = ""  # why it failed
    job: Running | None = None
    submitted: float = 0.0
    seconds: float | None = None  # from submission to end
    read_at: float = 0.0
    restarts: int = 0
    training: str | None = None  # equal for cells with the same training of all tasks

    @classmethod
    def of(cls, cell: Cell) -> Work:
        run = cell.record()
        state: Literal["waiting", "done"] = "done" if run is not None and run.finished else "waiting"
        return cls(cell, cell.start_key(), state, run, training=cell.training_key())

    def refresh(self) -> None:
        """Read the run's files, at most once per READ_SECONDS."""
        if time.monotonic() - self.read_at > READ_SECONDS:
            self.run, self.read_at = self.cell.record(), time.monotonic()


def run_all(
    works: Sequence[Work], executor: Executor, environment: dict[str, str], watch: Watch, show: Callable[[], None]
) -> None:
    """Run all cells until they are done or have failed, or `watch.stop` is set. `show` is called after every poll."""
    asked = False
    try:
        while True:
            running = [one for one in works if one.state == "running"]
            for one in running:
                poll(one, stopping=watch.stop)
            if not watch.stop:
                start(works, executor, environment)
            elif not asked:
                for one in running:
                    if one.job is not None:
                        one.job.stop()
                asked = True
            show()
            left = {one.state for one in works}
            if "running" not in left and (watch.stop or "waiting" not in left):
                return
            time.sleep(POLL_SECONDS)
    except BaseException:  # a second Ctrl-C, or a bug: kill all jobs
        for one in works:
            if one.state == "running" and one.job is not None:
                one.job.stop(at_once=True)
        raise


def poll(one: Work, stopping: bool) -> None:
    """Poll a job and update the state of its cell."""
    assert one.job is not None
    ended = one.job.poll()
    if ended is None:
        one.refresh()
        return
    one.job, one.run = None, one.cell.record()
    if ended == 0 and one.run is not None and one.run.finished:
        one.state, one.seconds = "done", time.monotonic() - one.submitted
    elif (ended == STOPPED and one.restarts < MAX_RESTARTS) or (stopping and isinstance(ended, str)):
        one.state, one.restarts = "waiting", one.restarts + 1
    else:
        one.state = "failed"
        one.reason = ended if isinstance(ended, str) else last_line(one.cell.log) or f"exit code {ended}"


def start(works: Sequence[Work], executor: Executor, environment: dict[str, str]) -> None:
    """Submit waiting cells while there are free slots."""
    for one in works:
        if sum(other.state == "running" for other in works) >= executor.slots:
            return
        if one.state == "waiting" and not must_wait(one, works):
            alike = [other for other in same_training(one, works) if other is not one]
            able = [other for other in alike if other.cell.keeps_tasks] or same_start(one, works)
            source = next((other for other in able if other.cell.first_task.is_file()), one)
            one.cell.write_plan()
            job = Job(
                folder=str(one.cell.folder.resolve()),
                log=str(one.cell.log.resolve()),
                start=None if source is one else str(source.cell.folder.resolve()),
                cwd=os.getcwd(),
                keep_tasks=any(other.state == "waiting" for other in alike) and not source.cell.keeps_tasks,
                environment=environment,
                trusted=one.cell.python_files,
            )
            one.job, one.state, one.submitted = executor.submit(job), "running", time.monotonic()


def must_wait(one: Work, works: Sequence[Work]) -> bool:
    """Return whether another cell trains task 1, or all tasks, for this one. If that cell fails, the next one trains them."""
    if not one.cell.begun and any(other.state == "running" for other in same_training(one, works)):
        return True
    others = [other for other in same_start(one, works) if other is not one and other.cell.can_share_start]
    if one.cell.begun or any(other.cell.first_task.is_file() for other in same_start(one, works)):
        return False
    if any(other.state == "running" for other in others):
        return True
    return not one.cell.can_share_start and any(other.state == "waiting" for other in others)


def same_start(one: Work, works: Sequence[Work]) -> list[Work]:
    """Return the cells with the same training of task 1, including this one."""
    return [other for other in works if one.key is not None and other.key == one.key]


def same_training(one: Work, works: Sequence[Work]) -> list[Work]:
    """Return the cells with the same training of all tasks, including this one; none if it cannot be shared."""
    return [other for other in works if one.training is not None and other.training == one.training]


def job_environment(command: Sequence[str], threads: int) -> dict[str, str]:
    """Return the environment variables of jobs: folders of data and caches, and the number of threads."""
    own = {name: value for name, value in os.environ.items() if name.startswith("AMGC_")}
    limit = min(threads, int(os.environ.get("OMP_NUM_THREADS") or threads))
    return own | {"OMP_NUM_THREADS": str(limit), "OMP_WAIT_POLICY": "PASSIVE", COMMAND: json.dumps(list(command))}


def last_line(log: Path) -> str:
    """Return the last line of a log, which is the error message or the end of a traceback."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1].removeprefix(ERROR) if lines else ""
