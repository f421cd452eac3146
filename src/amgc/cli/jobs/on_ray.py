"""Jobs as tasks of Ray: on a cluster that is there, or on a local one that is started. All nodes share the files."""

from __future__ import annotations

import logging
import os
from typing import Any

from amgc.cli.errors import STOPPED, UsageError
from amgc.cli.jobs.job import Job, logged_work

RETRIES = 5  # of a job whose worker was killed
MANY = 10_000  # jobs at a time: the cluster queues them


class OnRay:
    """Each job runs in a worker process that ends with it: it dies with its worker, and then runs again elsewhere."""

    def __init__(self, address: str | None, slots: int | None, cpus: int, gpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageError("--on ray needs Ray: pip install 'amgc[ray]'.") from error
        self.ray: Any = ray
        self.slots = slots or MANY
        where = address or os.environ.get("RAY_ADDRESS") or "local"
        room = {"num_cpus": slots * cpus} if slots else {}  # else as many as there are cores
        local: dict[str, Any] = {"include_dashboard": False, **room} if where == "local" else {}
        try:
            ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"there is no cluster of Ray at {where!r} ({error}).") from error
        self.remote = ray.remote(max_calls=1, max_retries=RETRIES, num_cpus=cpus, num_gpus=gpus)(logged_work)

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
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"

    def stop(self, at_once: bool = False) -> None:
        self.ray.cancel(self.result, force=at_once)  # as Ctrl-C in the worker, unless it is forced
