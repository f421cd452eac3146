"""Learn from shards on many workers. Their statistics are merged in the order of the shards, in float64.

The result therefore depends neither on the number of workers nor on their speed. If the driver is killed, the same call
continues with the finished shards (`amgc.distributed.finished`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch

from amgc.core.incremental import IncrementalClassifier
from amgc.core.scatter import ROWS
from amgc.core.spread import Spread
from amgc.core.statistics import ClassStatistics
from amgc.core.threads import one_thread
from amgc.core.within import DRAWS
from amgc.data.shards import Shard, ShardError
from amgc.distributed.executors import here
from amgc.distributed.finished import Finished, Merged, only_driver, remove
from amgc.distributed.worker import CHUNK, VECTORS_BYTES, Job, Part, first_images, read_part
from amgc.features.extractor import Extractor
from amgc.model import Learned, Model, ModelError
from amgc.model.changes import Lesson, check_can_learn, learn
from amgc.model.extractors import FIT_IMAGES
from amgc.model.inputs import PIXELS, ImageError
from amgc.model.state import State, fitted

# An executor yields, in any order, pairs of a shard's number and its part, or an error message if there is none.
Executor: TypeAlias = Callable[[Job, Sequence[tuple[int, Shard]]], Iterator[tuple[int, "bytes | str"]]]
OnBadShard = Literal["error", "skip"]
PROCESS = 350 << 20  # bytes of a process with torch imported, measured on Linux
IMAGE = 1 << 20  # bytes of an encoded image, generously
COPIES = 4  # of the statistics of single classes in a worker, measured with benchmarks/scale.py --only memory
TABLES = 10  # of scores of draws for all classes, with which the driver calibrates; measured in the same way
ACTIVATIONS = 40  # times the pixels of a batch, in float32: what a network holds at a time


@dataclass(frozen=True)
class ShardProgress:
    """Progress of a lesson: finished shards, all shards, images so far, and the share of the work that is done."""

    done: int
    total: int
    images: int
    share: float


def learn_shards(
    model: Model,
    shards: Sequence[Shard],
    executor: Executor = here,
    *,
    progress: Callable[[ShardProgress], None] = lambda _: None,
    on_bad_shard: OnBadShard = "error",
    chosen: Mapping[str, Any] | None = None,
) -> Learned:
    """Learn from shards, each read by one worker. The result does not depend on the number of workers.

    Unreadable images are skipped. Copies of an image count once in a shard. Features that are fitted on the first images are
    fitted on those of the first shards. If this process is killed, the same call continues with the finished shards.

    shards : of `amgc.data.shards.open_source`. executor : where the workers run: `here`, `LocalProcesses` or `OnRay`.
    on_bad_shard : "skip" skips shards that cannot be read after several attempts. `Learned.bad_shards` lists them.
    chosen : settings with which the model was created, for `amgc learn`.
    """
    start = time.monotonic()
    check_can_learn(model.state)
    if model.state.manifest.private or int(model.state.manifest.made.get("fewest", 1)) > 1:
        raise ModelError(
            "a model with a privacy budget, or with `fewest`, cannot learn from shards: statistics of each are stored until "
            "all are done, without noise and of few images. Learn in one process, without --jobs and --on."
        )
    with only_driver(model.path):
        with model.locked() as state:
            if state.extractor is None:
                state = model.write(fitted(state, first_images(shards, FIT_IMAGES)))
        job = Job(os.path.abspath(model.path), state.checksum)
        plan = {
            "amgc": job.amgc,
            "extractor": job.checksum,
            "classifier": state.manifest.made["classifier"],
            "chosen": dict(chosen or {}),
            "shards": [[shard.name, shard.stamp()] for shard in shards],
        }
        finished = Finished(model.path, plan)
        if finished.added_before(state.manifest.generation, state.manifest.classes):
            remove(model.path)
            raise ModelError("these shards were learned already: an earlier call was stopped after it had added them.")
        finished.begin()
        with one_thread():  # the workers use the cores
            merged = merge_shards(state, job, shards, finished, executor, progress, on_bad_shard)
        lesson = _lesson(state, merged)
        with model.locked() as now:
            if now.checksum != state.checksum:
                raise ModelError(f"the model in {str(model.path)!r} was replaced while it learned; repeat the command.")
            again = tuple(label for label in lesson.added if label in now.manifest.classes)
            changed = learn(now, lesson)
            finished.adding(now.manifest.generation, changed.class_counts)
            model.write(changed)
        remove(model.path)
    bad = tuple((name, reason) for name, reason in merged.bad)
    return replace(lesson.result(again, {}, time.monotonic() - start), bad_shards=bad)


def merge_shards(
    state: State,
    job: Job,
    shards: Sequence[Shard],
    finished: Finished,
    executor: Executor,
    progress: Callable[[ShardProgress], None],
    on_bad_shard: OnBadShard,
) -> Merged:
    """Return the statistics of all shards. Those that an earlier call finished are not computed again."""
    merged = finished.merged()
    if merged is None or (merged.bad and on_bad_shard == "error"):  # an earlier call was to skip shards, this one is not
        own = Lesson.begin(state).classifier
        assert state.extractor is not None
        statistics = ClassStatistics(state.extractor.dim, own.covariance, own.rank, dtype=torch.float64, device=own.device)
        merged = Merged(statistics)
    ready = {number for number in range(merged.done, len(shards)) if finished.is_readable(number, job, shards[number])}
    fresh: dict[int, Part] = {}  # parts in memory that are not merged yet
    failed: dict[int, str] = {}
    total = sum(shard.size for shard in shards)
    share = sum(shard.size for number, shard in enumerate(shards) if number < merged.done or number in ready)

    def done() -> int:
        return merged.done + sum(number >= merged.done for number in ready)

    def advance() -> None:
        """Merge the finished parts that are next in the order of the shards."""
        while merged.done in ready or merged.done in failed:
            number = merged.done
            if number not in failed:
                try:
                    part = fresh.pop(number, None) or read_part(finished.part(number), job, shards[number])
                    _check_names(state, merged, part)
                    merged.add(part)
                except ShardError as error:
                    if on_bad_shard == "error":
                        raise
                    failed[number] = str(error)
            if number in failed:
                merged.bad.append([shards[number].name, failed[number]])
            merged.done += 1
            finished.tidy(merged)
        progress(ShardProgress(done(), len(shards), merged.images, share / max(total, 1)))

    advance()
    waiting = [(number, shards[number]) for number in range(merged.done, len(shards)) if number not in ready]
    for number, found in executor(job, waiting):
        part: Part | None = None
        if isinstance(found, bytes):
            try:
                part = read_part(found, job, shards[number])
            except ShardError as error:  # from a damaged worker, or on the way
                found = str(error)
        if isinstance(found, str):
            if on_bad_shard == "error":
                raise ModelError(
                    f"{found} Nothing was learned; {done()} of {len(shards)} shards are kept, and the same command continues "
                    "with them. --skip-shards skips shards that cannot be used."
                )
            failed[number] = found
        else:
            assert part is not None
            if part.may_be_stored:
                finished.put(number, found)
            else:
                finished.in_memory += len(found)
            if number == merged.done or not part.may_be_stored:
                fresh[number] = part
            ready.add(number)
        share += shards[number].size
        advance()
    if merged.done < len(shards):
        raise ModelError(f"the workers ended before shard {shards[merged.done].name!r} was done; repeat the command.")
    if not merged.images:
        why = f"; the first: {merged.bad[0][1]}" if merged.bad else ""
        raise ModelError(f"no {state.manifest.noun} of the {len(shards)} shards can be used{why}.")
    finished.tidy(merged, always=True)
    return merged


def _check_names(state: State, merged: Merged, part: Part) -> None:
    """Raise ShardError if a shard names its classes by numbers and the others by words, or vice versa."""

    def numbered(names: Sequence[object]) -> bool:  # such as those of `.cls` files
        return all(str(name).isdigit() for name in names)

    known, own = [*state.manifest.classes, *merged.statistics.classes], part.statistics.classes
    if known and own and numbered(known) != numbered(own):
        kinds = [f"{'numbers' if numbered(names) else 'names'} such as {names[0]!r}" for names in (own, known)]
        raise ShardError(
            part.header["shard"],
            f"its classes are {kinds[0]}, those before are {kinds[1]}; all shards must name classes in the same way.",
        )


def _lesson(state: State, merged: Merged) -> Lesson:
    classifier = IncrementalClassifier.of_statistics(merged.statistics, **state.manifest.made["classifier"])
    counts = zip(map(str, merged.statistics.classes), merged.statistics.count.tolist(), strict=True)
    skipped = [ImageError(name, reason) for name, reason in merged.skipped]
    return Lesson(classifier, dict(counts), skipped, list(merged.animated), list(merged.repeated))


# ---- memory, before a lesson begins ----------------------------------------------------------------------------------


def worker_memory(state: State, classes: int = CHUNK) -> int:
    """Return the bytes of a worker for shards with this number of classes.

    They are those of the process, the extractor, a chunk of images or vectors, and some copies of the statistics of a shard:
    those of a chunk are added to them, and the sum is packed to be sent.
    """
    each, matrix = _statistics_bytes(state, classes)
    own = PROCESS + COPIES * each + 2 * matrix
    if not isinstance(state.extractor, Extractor):
        return own + 6 * VECTORS_BYTES
    weights = sum(int(tensor.nbytes) for tensor in state.extractor.state_dict().values())
    return own + weights + CHUNK * IMAGE + 4 * ACTIVATIONS * PIXELS


def driver_memory(state: State, classes: int) -> int:
    """Return the bytes of the driver for this number of classes.

    They are those of the process, the sum in float64 (twice float32), one part, the model's statistics and a copy of them, what
    a solve needs of a shared matrix, and what calibration computes.
    """
    each, matrix = _statistics_bytes(state, classes)
    return PROCESS + 5 * each + 8 * matrix + TABLES * 8 * DRAWS * classes


def _statistics_bytes(state: State, classes: int) -> tuple[int, int]:
    """Return the bytes of the statistics of this number of classes in float32, and of a matrix that they share."""
    own = Lesson.begin(state).classifier
    assert state.extractor is not None
    dim = state.extractor.dim
    shapes = Spread(own.covariance, dim, min(own.rank, dim), torch.float32).shapes().values()
    each = 8 * dim + 4 * sum(torch.Size(shape).numel() for shape in shapes)
    matrix = 4 * dim * (dim + ROWS) if own.covariance == "shared" else 0
    return classes * each, matrix
