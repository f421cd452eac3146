"""The jobs of a comparison, one after another in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from amgc.cli.jobs.worker import Job, logged_work


class Done:
    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code

    def stop(self, at_once: bool = False) -> None:
        pytest.fail("has ended already")


class Here:
    """An executor that runs a job when it is submitted, and records it."""

    slots = 1

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> Done:
        self.jobs.append(job)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in job.environment.items():
                patch.setenv(name, value)  # so that it is taken back
            return Done(logged_work(job))

    def close(self) -> None:
        pass

    @property
    def names(self) -> list[str]:
        """Return the names of the cells that were run, and start a new list."""
        names = ["/".join(Path(job.folder).parts[-2:]) for job in self.jobs]
        self.jobs = []
        return names
