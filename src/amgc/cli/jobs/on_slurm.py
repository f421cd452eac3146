"""Jobs of Slurm, through submitit. All nodes share the files."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

from amgc.cli.errors import UsageError
from amgc.cli.jobs.job import Job, logged_work

MANY = 10_000  # jobs at a time: Slurm queues them


class OnSlurm:
    """`cluster` is Slurm but in tests, where submitit plays it with processes of this machine."""

    def __init__(
        self,
        folder: Path,
        slots: int | None,
        cpus: int,
        gpus: int,
        partition: str | None,
        minutes: int,
        cluster: str = "slurm",
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise UsageError("--on slurm needs submitit: pip install 'amgc[slurm]'.") from error
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UsageError("there is no Slurm here: no command sbatch. Start from a login node, or choose another --on.")
        self.slots = slots or MANY
        self.executor = submitit.AutoExecutor(folder=folder / ".submitit", cluster=cluster)
        partitioned = {} if partition is None else {"slurm_partition": partition}
        self.executor.update_parameters(name="amgc", timeout_min=minutes, cpus_per_task=cpus, gpus_per_node=gpus, **partitioned)

    def submit(self, job: Job) -> SlurmJob:
        return SlurmJob(self.executor.submit(slurm_work, job))

    def close(self) -> None:
        """Slurm stays."""


def slurm_work(job: Job) -> int:
    """`logged_work` that also saves itself and stops a minute before its time is up; the scheduler then hands it in again."""
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    return logged_work(job)


class SlurmJob:
    def __init__(self, job: Any) -> None:
        self.job = job

    def poll(self) -> int | str | None:
        if not self.job.done():
            return None
        error = self.job.exception()
        if error is not None:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        return int(self.job.result())

    def stop(self, at_once: bool = False) -> None:
        self.job.cancel()  # Slurm asks first, and kills half a minute later
