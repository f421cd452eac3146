"""Execute one run of a comparison, in any process: a local one, a Ray worker or a Slurm node.

`python -m amgc.cli.jobs.worker JSON` executes a job. A job can be repeated: it resumes the run in its folder.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

from amgc.cli.errors import FAILED, exit_code, reported, trust
from amgc.parent import end_with_parent


@dataclass(frozen=True)
class Job:
    """A run to execute. Its fields are plain values because the worker may be on another machine that shares the files."""

    folder: str  # of the run; contains plan.json
    log: str  # file for the output of the job
    start: str | None  # folder of the run whose training of task 1, or of all tasks, is reused
    cwd: str
    environment: dict[str, str]
    keep_tasks: bool = False  # whether other runs will reuse the training of all tasks
    trusted: tuple[str, ...] = ()  # Python files that the user named

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def work(job: Job) -> int:
    """Execute the job in this process. Returns the exit code of `amgc resume`."""
    os.environ.update(job.environment)  # before torch is imported
    os.chdir(job.cwd)
    with reported() as outcome:
        try:
            from amgc.cli.plan import Plan, resume_plan
            from amgc.cli.progress import console

            trust(job.trusted)
            plan = Plan.read(Path(job.folder))
            (config,) = plan.configs.values()
            machine = asdict(config.machine) | ({} if job.start is None else {"start": job.start})
            machine["keep_tasks"] = machine["keep_tasks"] or job.keep_tasks
            outcome.code = resume_plan(plan, console(), machine, quiet=True, summary=False)
        except Exception as error:
            if exit_code(error) is not None:
                raise  # reported as one message
            traceback.print_exc()  # a bug, possibly in a user's method; the worker must survive it
            outcome.code = FAILED
    return outcome.code


def logged_work(job: Job) -> int:
    """Execute the job in a process that another program started, with the output appended to the job's log."""
    with open(job.log, "a") as log, redirect_stdout(log), redirect_stderr(log):
        return work(job)


def main(arguments: Sequence[str]) -> int:
    end_with_parent()  # a checkpoint is saved first
    return work(Job(**json.loads(arguments[0])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
