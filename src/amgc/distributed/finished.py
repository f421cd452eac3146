"""The finished shards of a lesson, in the folder `.shards` of the model until all are merged.

A driver that was killed can therefore continue. Files of single shards are deleted once their sum takes no more space than they
do. Statistics with a class of a single image stay in memory, because the mean of that class is the features of the image.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amgc import files, tensor_files
from amgc.core.statistics import ClassStatistics
from amgc.data.shards import Shard, ShardError
from amgc.distributed.worker import NAMED, Job, Part, hides_images, read_part
from amgc.locking import FolderBusyError, locked
from amgc.model.folder import ModelBusyError, ModelError

SHARDS = ".shards"  # folder of finished shards, in the folder of the model
PLAN, MERGED = "plan.json", "merged.safetensors"
KIND = "merged parts of a lesson"


@dataclass
class Merged:
    """The merged statistics of the first `done` shards, and the images that were skipped or repeated in them."""

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
        made = cls(ClassStatistics.from_file(header["statistics"], tensors), **about)
        for name, value in about.items():
            if type(value) is not type(getattr(cls(made.statistics), name)) or (isinstance(value, int) and value < 0):
                raise ValueError(f"{name!r} is {value!r}")
        return made


def read_plan(model: Path) -> dict[str, Any]:
    """Return the plan of an earlier call, from the folder of a model; empty if there is none that can be read."""
    with suppress(OSError, ValueError):
        content = files.read_json(model / SHARDS / PLAN)
        return content if isinstance(content, dict) else {}
    return {}


def has_finished(model: Path) -> bool:
    """Return whether the folder of a model keeps finished shards."""
    return any((model / SHARDS).glob("*.safetensors"))


class Finished:
    """The folder of finished shards. Every file is written atomically and has a checksum.

    plan : what determines the result. If it differs, the finished shards of an earlier call are deleted.
    """

    def __init__(self, model: Path, plan: dict[str, Any]) -> None:
        self.folder, self.plan = model / SHARDS, plan
        self.in_memory = 0  # bytes of merged parts that were never written
        self.found = read_plan(model)
        self.same = {name: self.found.get(name) for name in plan} == files.plain_json(plan)

    def added_before(self, generation: int, classes: dict[str, int]) -> bool:
        """Return whether an earlier call with this plan added its shards and was killed before it could delete them."""
        adding = self.found.get("adding") if self.same else None
        if not isinstance(adding, dict) or not isinstance(adding.get("generation"), int):
            return False
        return bool(adding["generation"] < generation and adding.get("classes") == classes)

    def begin(self) -> None:
        """Keep the shards of an earlier call with the same plan; delete those of others."""
        files.remove_partial(self.folder)
        if not self.same:
            for path in self.folder.glob("*.safetensors"):
                path.unlink()
            files.write_json(self.folder / PLAN, self.plan)

    def adding(self, generation: int, classes: dict[str, int]) -> None:
        """Record that the shards are about to be added, so that they are not added twice if this process is killed now."""
        files.write_json(self.folder / PLAN, self.plan | {"adding": {"generation": generation, "classes": classes}})

    def part(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.safetensors"

    def put(self, number: int, content: bytes) -> None:
        with files.atomic(self.part(number)) as temporary:
            temporary.write_bytes(content)

    def is_readable(self, number: int, job: Job, shard: Shard) -> bool:
        """Return whether an earlier call finished a shard. A damaged file is deleted, and the shard computed again."""
        if not self.part(number).exists():
            return False
        try:
            read_part(self.part(number), job, shard)
            return True
        except (ShardError, OSError):
            self.part(number).unlink(missing_ok=True)
            return False

    def merged(self) -> Merged | None:
        """Return the sum of the first shards, if there is one that can be read."""
        try:
            return Merged.read(self.folder / MERGED)
        except (OSError, *files.MISFITS):
            return None

    def tidy(self, merged: Merged, *, always: bool = False) -> None:
        """Replace the files of merged parts by their sum, if they take at least as much space."""
        parts = [path for path in self.folder.glob("part-*.safetensors") if path.name < self.part(merged.done).name]
        size = self.in_memory + sum(part.stat().st_size for part in parts)
        if (always or (size and size >= merged.statistics.nbytes)) and hides_images(merged.statistics):
            merged.write(self.folder / MERGED)
            self.in_memory = 0
            for part in parts:
                part.unlink()


@contextmanager
def only_driver(model: Path) -> Iterator[None]:
    """Hold the lock of the folder of finished shards: only one process at a time learns from shards."""
    folder = model / SHARDS
    if folder.is_symlink():
        raise ModelError(f"{str(folder)!r} is a link, so nothing is written to it and nothing in it is deleted; remove it.")
    folder.mkdir(exist_ok=True)
    try:
        with locked(folder):
            try:
                yield
            finally:
                if not has_finished(model):  # no shard was finished, so nothing is left behind
                    remove(model)
    except FolderBusyError as error:
        raise ModelBusyError(f"the model in {str(model)!r} is learning from shards already ({error}).") from None


def remove(model: Path) -> None:
    """Delete the finished shards."""
    shutil.rmtree(model / SHARDS, ignore_errors=True)
