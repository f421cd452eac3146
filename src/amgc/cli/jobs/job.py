"""One run as a job for whoever has a processor free: a process of this machine, a worker of Ray, a node of Slurm.

`python -m amgc.cli.jobs.job JSON` does the job in a process of its own. A job is idempotent: it goes on with what is there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from amgc.cli.errors import FAILED, reported


@dataclass(frozen=True)
class Job:
    """What a worker has to know; plain values, because it may be another machine that shares the files."""

    folder: str  # of the run, with its plan.json
    log: str  # takes what the job prints
    start: str | None  # the run that task 1's training is taken over from
    cwd: str
    environment: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Running(Protocol):
    """A job that was handed over."""

    def poll(self) -> int | str | None:
        """None while it has not ended; then its exit code, or why it has none."""

    def stop(self, at_once: bool = False) -> None:
        """Let it save itself and end, or end it at once."""


class Executor(Protocol):
    """Where jobs run."""

    slots: int  # jobs at a time

    def submit(self, job: Job) -> Running:
        """Hand a job over."""

    def close(self) -> None:
        """All jobs have ended."""


def work(job: Job) -> int:
    """Do the job in this process; returns the exit code that `amgc resume` would end with."""
    os.environ.update(job.environment)  # before torch is imported
    os.chdir(job.cwd)
    with reported() as outcome:
        try:
            from amgc.cli.plan import Plan, go_on
            from amgc.cli.progress import console

            plan = Plan.read(Path(job.folder))
            (config,) = plan.configs.values()
            machine = asdict(config.machine) | ({} if job.start is None else {"start": job.start})
            outcome.code = go_on(plan, console(), machine, quiet=True, ending=False)
        except Exception as error:
            from amgc.cli.errors import exit_code

            if exit_code(error) is not None:
                raise  # told as one message
            traceback.print_exc()  # a bug, of a method perhaps: the job ends, its worker does not
            outcome.code = FAILED
    return outcome.code


def logged_work(job: Job) -> int:
    """`work` in a process that others started: what it prints goes to the job's log."""
    with _printing_to(Path(job.log)):
        return work(job)


@contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """The process's output streams, Python's and those of libraries below it, go to the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    streams = sys.stdout, sys.stderr
    with path.open("a") as file:
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            sys.stdout = sys.stderr = file  # they may not be what the descriptors are
            yield
        finally:
            file.flush()
            sys.stdout, sys.stderr = streams
            for number, descriptor in zip((1, 2), kept, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


def end_with_parent() -> None:
    """If the process that started this one is killed, this one saves itself and stops (on Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def main(arguments: Sequence[str]) -> int:
    end_with_parent()
    return work(Job(**json.loads(arguments[0])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
