"""Where jobs run: processes on this machine, tasks on Ray, or jobs on Slurm. On a cluster, all nodes share the files."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from amgc.cli.errors import STOPPED, UsageError
from amgc.cli.jobs.worker import Job, logged_work

RAY_RETRIES = 5  # of a job whose worker process was killed
UNLIMITED = 10_000  # jobs at a time; a cluster has its own queue


class Running(Protocol):
    """A submitted job."""

    def poll(self) -> int | str | None:
        """Return None while the job runs; then its exit code, or the reason why it has none."""

    def stop(self, at_once: bool = False) -> None:
        """Ask the job to save a checkpoint and stop, or kill it."""


class Executor(Protocol):
    """A place where jobs run."""

    slots: int  # jobs at a time

    def submit(self, job: Job) -> Running:
        """Start a job."""

    def close(self) -> None:
        """Release resources. All jobs have ended."""
        return


class Local(Executor):
    """At most `slots` processes at a time. With several GPUs, the slots use them in turn."""

    def __init__(self, slots: int, gpus: Sequence[str] = ()) -> None:
        self.slots, self.gpus = slots, gpus
        self.jobs: dict[int, LocalJob] = {}  # the latest job of each slot

    def submit(self, job: Job) -> LocalJob:
        slot = next(place for place in range(self.slots) if place not in self.jobs or self.jobs[place].poll() is not None)
        if len(self.gpus) > 1:
            visible = {"CUDA_VISIBLE_DEVICES": self.gpus[slot % len(self.gpus)]}
            job = replace(job, environment=job.environment | visible)
        self.jobs[slot] = LocalJob(job)
        return self.jobs[slot]


class LocalJob:
    """A process in its own session, so that Ctrl-C in the terminal reaches only the scheduler, which stops the jobs."""

    def __init__(self, job: Job) -> None:
        warnings = [f"-W{option}" for option in sys.warnoptions]
        command = [sys.executable, *warnings, "-m", "amgc.cli.jobs.worker", job.to_json()]
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
        return f"killed by {killed.name}" + (" (possibly out of memory)" if killed == signal.SIGKILL else "")

    def stop(self, at_once: bool = False) -> None:
        if self.process.poll() is not None:
            return
        if at_once and sys.platform != "win32":
            os.killpg(self.process.pid, signal.SIGKILL)  # includes the processes that --devices starts
        else:
            self.process.terminate()
        if at_once:
            self.process.wait()


class OnRay(Executor):
    """Tasks of a Ray cluster, or of a local one that is started. A job runs in its worker; Ray restarts it if that dies."""

    def __init__(self, address: str | None, slots: int | None, cpus: int, gpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageError("--on ray needs Ray: pip install 'amgc[ray]'.") from error
        self.ray: Any = ray
        self.slots = slots or UNLIMITED
        where = address or os.environ.get("RAY_ADDRESS") or "local"
        resources = {"num_cpus": slots * cpus} if slots else {}  # default: all cores
        local: dict[str, Any] = {"include_dashboard": False, **resources} if where == "local" else {}
        try:
            ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"there is no Ray cluster at {where!r} ({error}).") from error
        self.remote = ray.remote(max_calls=1, max_retries=RAY_RETRIES, num_cpus=cpus, num_gpus=gpus)(logged_work)

    def submit(self, job: Job) -> RayJob:
        return RayJob(self.ray, self.remote.remote(job))

    def close(self) -> None:
        self.ray.shutdown()


class RayJob:
    def __init__(self, ray: Any, result: Any) -> None:
        self.ray, self.result = ray, result

    def poll(self) -> int | str | None:
        if not self.ray.wait([self.result], timeout=0)[0]:
            return None
        try:
            return int(self.ray.get(self.result))
        except self.ray.exceptions.TaskCancelledError:
            return STOPPED
        except self.ray.exceptions.RayError as error:
            return _first_line(error)

    def stop(self, at_once: bool = False) -> None:
        self.ray.cancel(self.result, force=at_once)  # without force, the worker receives KeyboardInterrupt


class OnSlurm(Executor):
    """Slurm jobs, submitted through submitit. Tests use `cluster="local"`: submitit then starts processes here."""

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
            raise UsageError("there is no Slurm here (no command sbatch). Use a login node, or choose another --on.")
        self.slots = slots or UNLIMITED
        self.executor = submitit.AutoExecutor(folder=folder / ".submitit", cluster=cluster)
        partitioned = {} if partition is None else {"slurm_partition": partition}
        self.executor.update_parameters(name="amgc", timeout_min=minutes, cpus_per_task=cpus, gpus_per_node=gpus, **partitioned)

    def submit(self, job: Job) -> SlurmJob:
        return SlurmJob(self.executor.submit(slurm_work, job))


class SlurmJob:
    def __init__(self, job: Any) -> None:
        self.job = job

    def poll(self) -> int | str | None:
        if not self.job.done():
            return None
        error = self.job.exception()
        return int(self.job.result()) if error is None else _first_line(error)

    def stop(self, at_once: bool = False) -> None:
        self.job.cancel()  # Slurm sends SIGTERM, and SIGKILL half a minute later


def slurm_work(job: Job) -> int:
    """Run a job that stops itself when submitit warns that its time is up; the scheduler then submits it again."""
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    return logged_work(job)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
