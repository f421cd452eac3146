"""Where the workers of a sharded lesson run: in this process, in processes on this machine, or on Ray."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any

from amgc.data.shards import Shard
from amgc.distributed.worker import TRIES, Job, Worker
from amgc.model.folder import ModelError
from amgc.parent import end_with_parent

Result = tuple[int, "bytes | str"]
_WORKER: Worker | str = ""  # of this process, if it is one of a pool; or why it has none


def here(job: Job, shards: Sequence[tuple[int, Shard]]) -> Iterator[Result]:
    """Compute the parts one after another in this process."""
    if not shards:
        return
    worker = Worker(job)
    for number, shard in shards:
        yield number, worker(shard)


@dataclass(frozen=True)
class LocalProcesses:
    """Processes on this machine. If one is killed, the current shards are tried again, one at a time, to find the cause."""

    jobs: int

    def __call__(self, job: Job, shards: Sequence[tuple[int, Shard]]) -> Iterator[Result]:
        waiting = deque(shards)
        suspects: deque[tuple[int, Shard]] = deque()  # being computed when a worker was killed
        tries: dict[int, int] = {}
        while waiting or suspects:
            running: dict[Future[bytes | str], tuple[int, Shard]] = {}
            pool = ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"), _begin, (job,))
            try:
                while waiting or suspects or running:
                    source, most = (suspects, 1) if suspects else (waiting, self.jobs + 1)  # no worker waits for the driver
                    while source and len(running) < most:
                        number, shard = source.popleft()
                        running[pool.submit(_work, shard)] = number, shard
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        found = done.result()
                        yield running.pop(done)[0], found
            except BrokenProcessPool:
                alone = len(running) == 1
                for number, shard in running.values():
                    tries[number] = tries.get(number, 0) + alone
                    if tries[number] >= TRIES:
                        yield number, _killed(shard)
                    else:
                        suspects.append((number, shard))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _killed(shard: Shard) -> str:
    return f"{shard.name}: its worker was killed {TRIES} times, possibly out of memory."


def _begin(job: Job) -> None:
    global _WORKER
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        _WORKER = Worker(job)
    except Exception as error:  # a pool would only say that it is broken
        _WORKER = str(error)


def _work(shard: Shard) -> bytes | str:
    if isinstance(_WORKER, str):
        raise ModelError(_WORKER)
    return _WORKER(shard)


@dataclass(frozen=True)
class OnRay:
    """Actors of Ray Data, on a cluster or on a local one that is started. Ray restarts those that die and repeats their shards.

    All machines share the model's folder. cpus, gpus : of each worker. With `gpus` it encodes on a GPU.
    """

    jobs: int
    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    def __call__(self, job: Job, shards: Sequence[tuple[int, Shard]]) -> Iterator[Result]:
        if not shards:
            return
        ray = import_ray()
        where = self.address or os.environ.get("RAY_ADDRESS") or "local"
        local: dict[str, Any] = {}
        if where == "local":
            local = {"include_dashboard": False, "num_cpus": math.ceil(self.jobs * self.cpus) + 1}  # one for Ray Data
        try:
            ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ModelError(f"there is no Ray cluster at {where!r} ({error}).") from error
        try:
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            context.verbose_progress = False
            context.max_errored_blocks = -1  # shards without a result are reported below; the others are kept
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            rows = [{"number": number} for number, _ in shards]
            workers = min(self.jobs, len(shards))
            parts = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
                Actor,
                fn_constructor_args=(replace(job, device="cuda" if self.gpus else "cpu"), dict(shards)),
                batch_size=1,
                batch_format="numpy",
                compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
                num_cpus=self.cpus,
                num_gpus=self.gpus or None,
                max_task_retries=TRIES - 1,  # Ray Data repeats without end by default
            )
            missing = dict(shards)
            for row in parts.iter_rows():
                del missing[int(row["number"])]
                yield int(row["number"]), row["part"] if len(row["part"]) else str(row["error"])
            for number, shard in missing.items():
                yield number, _killed(shard)
        finally:
            ray.shutdown()


class Actor:
    """A worker of Ray Data."""

    def __init__(self, job: Job, shards: dict[int, Shard]) -> None:
        self.shards = shards
        self.worker: Worker | str
        try:
            self.worker = Worker(job)
        except ModelError as error:  # Ray would start it again and again
            self.worker = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        found: list[bytes | str] = []
        for number in batch["number"]:
            shard = self.shards[int(number)]
            found.append(f"{shard.name}: {self.worker}" if isinstance(self.worker, str) else self.worker(shard))
        return {
            "number": list(batch["number"]),
            "part": [one if isinstance(one, bytes) else b"" for one in found],
            "error": [one if isinstance(one, str) else "" for one in found],
        }


def import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"--on ray needs Ray Data: pip install 'amgc[ray]' ({error}).") from error
    return ray
