"""Jobs as processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from amgc.cli.jobs.job import Job


class Local:
    """`slots` processes at a time, each with its share of the cores; with several GPUs, each on one of them in turn."""

    def __init__(self, slots: int, gpus: Sequence[str] = ()) -> None:
        self.slots, self.gpus = slots, gpus
        self.jobs: dict[int, LocalJob] = {}  # the last one in each slot

    def submit(self, job: Job) -> LocalJob:
        slot = next(place for place in range(self.slots) if place not in self.jobs or self.jobs[place].poll() is not None)
        if len(self.gpus) > 1:
            seen = {"CUDA_VISIBLE_DEVICES": self.gpus[slot % len(self.gpus)]}
            job = replace(job, environment=job.environment | seen)
        self.jobs[slot] = LocalJob(job)
        return self.jobs[slot]

    def close(self) -> None:
        """Nothing is left."""


class LocalJob:
    """A process in a session of its own: Ctrl-C in the terminal reaches the scheduler alone, which then stops its jobs."""

    def __init__(self, job: Job) -> None:
        warnings = [f"-W{option}" for option in sys.warnoptions]
        command = [sys.executable, *warnings, "-m", "amgc.cli.jobs.job", job.to_json()]
        with Path(job.log).open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | job.environment,
                start_new_session=True,
            )

    def poll(self) -> int | str | None:
        code = self.process.poll()
        if code is None or code >= 0:
            return code
        killed = signal.Signals(-code)
        return f"killed by {killed.name}" + (" (out of memory, perhaps)" if killed == signal.SIGKILL else "")

    def stop(self, at_once: bool = False) -> None:
        if self.process.poll() is not None:
            return
        if at_once and sys.platform != "win32":
            os.killpg(self.process.pid, signal.SIGKILL)  # and the processes that it started, with --devices
        else:
            self.process.terminate()
        if at_once:
            self.process.wait()
