"""Learn from shards on many workers. Their statistics are merged in the order of the shards, in float64.

So the result does not depend on the number of workers, or on which of them is faster. Finished shards are kept in the folder
`.shards` of the model until all are merged: a driver that was killed goes on where it was. The files of single shards are
deleted as soon as their sum takes no more room than they do. What has a class with a single image stays in memory: the mean of
that class is the image's features.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from amgc import files, tensor_files
from amgc.core.incremental import IncrementalClassifier
from amgc.core.statistics import ClassStatistics
from amgc.data.shards import Shard, ShardError
from amgc.locking import FolderBusyError, locked
from amgc.model.changes import Lesson
from amgc.model.folder import ModelBusyError, ModelError
from amgc.model.parts import NAMED, Job, Part, hides_images, numbered, read_part
from amgc.model.pictures import PictureError
from amgc.model.state import State

SHARDS = ".shards"  # folder of finished shards, in the folder of the model
PLAN, MERGED = "plan.json", "merged.safetensors"
KIND = "merged parts of a lesson"
# An engine computes the parts of shards, in any order: pairs of a shard's number and its part, or why there is none.
Engine: TypeAlias = Callable[[Job, Sequence[tuple[int, Shard]]], Iterator[tuple[int, "bytes | str"]]]
OnBadShard = Literal["error", "skip"]


@dataclass(frozen=True)
class Progress:
    """How far a lesson is: shards done and in all, images so far, and the share of the work that is done."""

    done: int
    total: int
    images: int
    share: float


@dataclass
class Merged:
    """The sum of the first `done` shards, and what was noticed in them."""

    statistics: ClassStatistics
    done: int = 0
    images: int = 0
    unusable: int = 0
    skipped: list[list[str]] = field(default_factory=list)
    animated: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    bad: list[list[str]] = field(default_factory=list)  # shards that were left out, each with the reason

    def add(self, part: Part) -> None:
        self.statistics.merge(part.statistics)
        self.images += int(part.header["images"])
        self.unusable += int(part.header["unusable"])
        for name in ("skipped", "animated", "repeated"):
            mine = getattr(self, name)
            mine += part.header[name][: max(NAMED - len(mine), 0)]

    def write(self, path: Path) -> None:
        about = {name: value for name, value in vars(self).items() if name != "statistics"}
        header = about | {"statistics": self.statistics.header()}
        tensor_files.write(path, KIND, header, self.statistics.tensors(exact=True))

    @classmethod
    def read(cls, path: Path) -> Merged:
        header, tensors = tensor_files.read(path, KIND)
        about = {name: value for name, value in header.items() if name != "statistics"}
        return cls(ClassStatistics.from_file(header["statistics"], tensors), **about)


class Kept:
    """The folder of finished shards. Every file is written atomically and has a checksum."""

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.folder, self.plan = folder, plan
        self.in_memory = 0  # bytes of merged parts that were never written

    @property
    def found(self) -> dict[str, Any]:
        """The plan of an earlier call; empty if there is none that can be read."""
        with suppress(OSError, ValueError):
            content = files.read_json(self.folder / PLAN)
            return content if isinstance(content, dict) else {}
        return {}

    def begin(self) -> None:
        """Keep the shards of an earlier call with the same plan; delete those of others."""
        self.folder.mkdir(exist_ok=True)
        files.remove_partial(self.folder)
        if {name: self.found.get(name) for name in self.plan} != files.plain_json(self.plan):
            self.clear()
            files.write_json(self.folder / PLAN, self.plan)

    def adding(self, generation: int, classes: dict[str, int]) -> None:
        """Note that the shards are about to be added, so that they are not added twice if this process is killed now."""
        files.write_json(self.folder / PLAN, self.plan | {"adding": {"generation": generation, "classes": classes}})

    def clear(self) -> None:
        for path in self.folder.glob("*.safetensors"):
            path.unlink()
        (self.folder / PLAN).unlink(missing_ok=True)

    def part(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.safetensors"

    def put(self, number: int, content: bytes) -> Path:
        with files.atomic(self.part(number)) as temporary:
            temporary.write_bytes(content)
        return self.part(number)

    def merged(self) -> Merged | None:
        """Return the sum of the first shards, if there is one that can be read."""
        try:
            return Merged.read(self.folder / MERGED)
        except (OSError, *files.MISFITS):
            return None

    def tidy(self, merged: Merged, *, always: bool = False) -> None:
        """Replace the parts that are merged by their sum, if they take as much room."""
        parts = [path for path in self.folder.glob("part-*.safetensors") if path.name < self.part(merged.done).name]
        size = self.in_memory + sum(path.stat().st_size for path in parts)
        if (always or (size and size >= merged.statistics.nbytes)) and hides_images(merged.statistics):
            merged.write(self.folder / MERGED)
            self.in_memory = 0
            for path in parts:
                path.unlink()


def collect(
    state: State,
    path: Path,
    shards: Sequence[Shard],
    engine: Engine,
    progress: Callable[[Progress], None],
    on_bad_shard: OnBadShard,
    chosen: dict[str, Any],
) -> tuple[Lesson, Merged]:
    """Return the statistics of all shards. Those that an earlier call finished are not computed again."""
    job = Job(os.path.abspath(path), state.checksum)
    plan = plan_of(state, job, shards, chosen)
    kept = Kept(path / SHARDS, plan)
    kept.begin()
    own = Lesson.begin(state).classifier
    assert state.extractor is not None
    merged = kept.merged()
    if merged is None:
        statistics = ClassStatistics(state.extractor.dim, own.covariance, own.rank, dtype=torch.float64, device=own.device)
        merged = Merged(statistics)
    ready = {number for number in range(merged.done, len(shards)) if _readable(kept, number, job, shards[number])}
    fresh: dict[int, Part] = {}  # parts in memory that are not merged yet
    failed: dict[int, str] = {}
    total = sum(shard.size for shard in shards)
    share = sum(shard.size for number, shard in enumerate(shards) if number < merged.done or number in ready)

    def advance() -> None:
        """Merge what is next."""
        while merged.done in ready or merged.done in failed:
            number = merged.done
            if number in failed:
                merged.bad.append([shards[number].name, failed[number]])
            else:
                part = fresh.pop(number, None) or read_part(kept.part(number), job, shards[number])
                _check_names(state, merged, part)
                merged.add(part)
            merged.done += 1
            kept.tidy(merged)
        finished = merged.done + sum(number >= merged.done for number in ready)
        progress(Progress(finished, len(shards), merged.images, share / max(total, 1)))

    advance()
    waiting = [(number, shards[number]) for number in range(merged.done, len(shards)) if number not in ready]
    for number, found in engine(job, waiting):
        if isinstance(found, str):
            if on_bad_shard == "error":
                count = merged.done + sum(one >= merged.done for one in ready)
                raise ModelError(
                    f"{found} Nothing was learned; {count} of {len(shards)} shards are kept, and the same command goes on with "
                    "them. --skip-shards leaves out shards that cannot be used."
                )
            failed[number] = found
        else:
            part = read_part(found, job, shards[number])
            if part.may_be_stored:
                kept.put(number, found)
            else:
                kept.in_memory += len(found)
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
    kept.tidy(merged, always=True)
    return _lesson(state, merged), merged


def plan_of(state: State, job: Job, shards: Sequence[Shard], chosen: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the result. If it differs, finished shards of an earlier call are of no use."""
    return {
        "amgc": job.amgc,
        "extractor": job.checksum,
        "classifier": state.manifest.made["classifier"],
        "chosen": chosen,
        "shards": [[shard.name, shard.stamp()] for shard in shards],
    }


def _readable(kept: Kept, number: int, job: Job, shard: Shard) -> bool:
    """Return whether an earlier call finished a shard. A damaged file is deleted, and the shard computed again."""
    if not kept.part(number).exists():
        return False
    try:
        read_part(kept.part(number), job, shard)
        return True
    except (ShardError, OSError):
        kept.part(number).unlink(missing_ok=True)
        return False


def _check_names(state: State, merged: Merged, part: Part) -> None:
    """Raise ShardError if a shard names its classes by numbers, and others by words, or the other way round."""
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
    skipped = [PictureError(name, reason) for name, reason in merged.skipped]
    return Lesson(classifier, dict(counts), skipped, list(merged.animated), list(merged.repeated))


def check(state: State) -> None:
    """Raise an error if finished shards of this model must not be stored."""
    if state.private or int(state.manifest.made.get("fewest", 1)) > 1:
        raise ModelError(
            "a model with a privacy budget, or with `fewest`, cannot learn from shards: statistics of each are stored until "
            "all are done, without noise and of few images. Learn in one process, without --jobs and --on."
        )


def added_before(kept: dict[str, Any], plan: dict[str, Any], state: State) -> bool:
    """Return whether an earlier call with this plan added its shards and was killed before it could delete them."""
    adding = kept.get("adding")
    if not adding or {name: kept.get(name) for name in plan} != files.plain_json(plan):
        return False
    return bool(adding["generation"] < state.manifest.generation and adding["classes"] == state.manifest.classes)


@contextmanager
def only_driver(path: Path) -> Iterator[Path]:
    """Give the folder of finished shards. Only one process at a time learns from shards."""
    folder = path / SHARDS
    folder.mkdir(exist_ok=True)
    try:
        with locked(folder):
            try:
                yield folder
            finally:
                if not any(folder.glob("*.safetensors")):  # no shard was finished: a model that fails at once leaves nothing
                    remove(folder)
    except FolderBusyError as error:
        raise ModelBusyError(f"the model in {str(path)!r} is learning from shards already ({error}).") from None


def remove(folder: Path) -> None:
    """Delete the finished shards."""
    shutil.rmtree(folder, ignore_errors=True)
