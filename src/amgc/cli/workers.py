"""`amgc learn` on many workers: flags, cost estimate and progress."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from amgc.cli.errors import UsageError, say
from amgc.data.shards import FileShard, Shard
from amgc.text import byte_size, duration, per_second, plural

if TYPE_CHECKING:
    from rich.console import Console

    from amgc.distributed import Executor, ShardProgress
    from amgc.model import Learned, Model
    from amgc.model.state import State

On: TypeAlias = Literal["here", "ray"]
TIMED = 32  # images that the estimate encodes
CLASSES = 1000  # assumed by the estimate for a source, whose classes are not known before it is read
LINE_SECONDS = 60.0  # between two lines of progress without a terminal


@dataclass(frozen=True)
class Workers:
    """Flags of `amgc learn` for shards."""

    jobs: int | None
    on: On
    address: str | None
    cpus: float
    gpus: float
    skip_shards: bool
    files: int | None

    @property
    def asked(self) -> bool:
        return self.jobs is not None or self.on != "here"

    def check(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"--jobs must be at least 1, not {self.jobs}.")
        if self.files is not None and self.files < 1:
            raise UsageError(f"--shard-files must be at least 1, not {self.files}.")
        if self.on == "here" and (self.address or self.gpus or self.cpus != 1):
            raise UsageError("--address, --cpus and --gpus need --on ray.")

    def executor(self, shards: int) -> tuple[Executor, int, str]:
        """Return the executor, the number of workers, and a description of where they run."""
        from amgc.data.image_files import available_cores
        from amgc.distributed import executors

        jobs = min(self.jobs or available_cores(), shards)
        if self.on == "ray":
            executors.import_ray()
            return executors.OnRay(jobs, self.address, self.cpus, self.gpus), jobs, "on Ray"
        return (executors.LocalProcesses(jobs) if jobs > 1 else executors.here), jobs, "on this machine"


def estimate(state: State, shards: Sequence[Shard], jobs: int) -> Iterator[str]:
    """Yield lines with the estimated time, and the memory of each worker and of this process."""
    from amgc.core.threads import one_thread
    from amgc.distributed.learn import driver_memory, worker_memory
    from amgc.distributed.worker import first_images
    from amgc.features.extractor import Extractor

    if isinstance(state.extractor, Extractor):
        given = first_images(shards, TIMED)
        with one_thread():  # as in a worker
            list(state.encoded(given[:2]))  # the first batch is slower
            start = time.perf_counter()
            list(state.encoded(given))
            rate = len(given) / max(time.perf_counter() - start, 1e-9)
        images = sum(shard.size for shard in shards)
        if shards[0].unit == "bytes":
            images = round(images * len(given) / max(sum(len(one.source) for one in given), 1))
        if images > len(shards):  # else a stream does not know its length
            left = images / rate / jobs
            yield f"About {plural(images, 'image')} at {per_second(rate)} images/s a worker: about {duration(left)}."
    labels = [{label for _, label in shard.files} for shard in shards if isinstance(shard, FileShard)]
    known = len(set(state.manifest.classes).union(*labels)) if labels else CLASSES
    worker = worker_memory(state, *([max(map(len, labels))] if labels else []))
    here = byte_size(driver_memory(state, known))
    yield f"Memory: about {byte_size(worker)} a worker, and {here} here for {plural(known, 'class')}."


@contextmanager
def shown(screen: Console, quiet: bool) -> Iterator[Any]:
    """Show progress with rate and time left: a bar on a terminal, a line a minute elsewhere."""
    from amgc.cli.progress import bar

    start, last = time.monotonic(), time.monotonic()
    first: ShardProgress | None = None  # what an earlier call has done
    with bar(screen, "shards", quiet) as advance:

        def show(now: ShardProgress) -> None:
            nonlocal last, first
            first = first or now
            advance(now.done, now.total)
            spent = time.monotonic() - start
            if quiet or screen.is_terminal or time.monotonic() - last < LINE_SECONDS or now.share <= first.share:
                return
            last = time.monotonic()
            left = spent * (1 - now.share) / (now.share - first.share)
            text = f"{now.done:,} of {plural(now.total, 'shard')}, {plural(now.images, 'image')} merged"
            screen.print(
                f"{text}, {per_second((now.images - first.images) / spent)} images/s; about {duration(left)} left.",
                highlight=False,
            )

        yield show


def learn_shards(model: Model, shards: Sequence[Shard], workers: Workers, chosen: dict[str, Any], quiet: bool) -> Learned:
    """Learn from shards. Print an estimate first, and show the progress."""
    from amgc import distributed
    from amgc.cli.progress import console

    screen = console()
    executor, jobs, where = workers.executor(len(shards))
    if not quiet:
        screen.print(f"{plural(len(shards), 'shard')}, {plural(jobs, 'worker')} {where}.", highlight=False)
    with shown(screen, quiet) as progress:
        estimated = False

        def counted(job: Any, waiting: Any) -> Any:
            nonlocal estimated
            if not estimated and not quiet and waiting:
                estimated = True
                for line in estimate(model.state, [shard for _, shard in waiting], jobs):
                    screen.print(line, highlight=False)
            return executor(job, waiting)

        on_bad: Literal["skip", "error"] = "skip" if workers.skip_shards else "error"
        learned = distributed.learn_shards(model, shards, counted, progress=progress, on_bad_shard=on_bad, chosen=chosen)
    for name, reason in learned.bad_shards:
        say(f"left out: {reason if reason.startswith(name) else f'{name}: {reason}'}")
    return learned


def has_finished(model: str) -> bool:
    """Return whether the folder of a model keeps finished shards."""
    from amgc.distributed import finished

    return finished.has_finished(Path(model))


def is_unfinished(model: str, chosen: dict[str, Any]) -> bool:
    """Return whether a model was created by the same command, which was stopped before it had learned all shards."""
    from amgc.distributed.finished import read_plan
    from amgc.files import plain_json

    return bool(read_plan(Path(model)).get("chosen") == plain_json(chosen))
