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
    """An executor that does a job when it is handed over, and remembers it."""

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
        """Of the cells that were worked on, and a new list begins."""
        names = ["/".join(Path(job.folder).parts[-2:]) for job in self.jobs]
        self.jobs = []
        return names
