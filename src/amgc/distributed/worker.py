"""Workers: read, decode and encode the images of a shard, and return the statistics of their classes.

Neither images nor features leave the worker. The driver checks the statistics before it merges them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import amgc
from amgc import files, tensor_files
from amgc.core.parameters import DeviceError
from amgc.core.statistics import ClassStatistics
from amgc.data.shards import Sample, Shard, ShardError
from amgc.features.extractor import Extractor
from amgc.model.changes import Lesson
from amgc.model.folder import Folder, ModelError
from amgc.model.inputs import Input
from amgc.model.manifest import checked_name
from amgc.model.state import State

KIND = "part of a lesson"
CHUNK = 256  # images of a shard that are in memory at a time
MOST_BYTES = 256 << 20  # of encoded images that are in memory at a time, beyond the last one
VECTORS_CHUNK, VECTORS_BYTES = (
    4096,
    16 << 20,
)  # the same for vectors: a step for each class of a chunk takes longer than a vector
TRIES = 3  # to read a shard
NAMED = 20  # unusable images of a shard that are named


@dataclass(frozen=True)
class Job:
    """The settings that all shards of a lesson share. Every worker gets them once.

    model : folder of the model, which workers read the extractor from. checksum : of the extractor's file.
    """

    model: str
    checksum: str
    amgc: str = amgc.__version__
    device: str = "cpu"


class Worker:
    """Compute the statistics of one shard after another. The extractor is loaded once."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)  # sums of several threads differ in rounding, so results would depend on the machine
        self.job = job
        if job.amgc != amgc.__version__:
            raise ModelError(f"this worker has amgc {amgc.__version__}, and the lesson was begun with {job.amgc}.")
        self.state = State.read(Folder(job.model), classes=False)  # of other statistics than its own, a worker has none
        if self.state.checksum != job.checksum:
            raise ModelError(f"the extractor in {job.model!r} is not that of the lesson; workers need the same model folder.")
        if isinstance(self.state.extractor, Extractor) and job.device != "cpu":
            if not torch.cuda.is_available():
                raise DeviceError(f"this worker has no device {job.device!r}.")
            self.state.extractor.to(job.device)

    def __call__(self, shard: Shard) -> bytes | str:
        """Return the statistics of a shard as a file in memory, or why there are none: a text, which all executors can send."""
        problem = ""
        for _ in range(TRIES):
            try:
                return self._part(shard)
            except ShardError as error:
                problem = str(error)
            except OSError as error:  # of a disk or a network
                problem = f"{shard.name}: it cannot be read: {error}"
            except (
                ValueError,
                RuntimeError,
                MemoryError,
            ) as error:  # such as too large numbers; torch's memory is a RuntimeError
                return f"{shard.name}: {error or type(error).__name__}"
        return problem

    def _part(self, shard: Shard) -> bytes:
        lesson = Lesson.begin(self.state)
        sizes = (VECTORS_CHUNK, VECTORS_BYTES) if self.state.manifest.noun == "vector" else (CHUNK, MOST_BYTES)
        for samples in chunks(shard, *sizes):
            labels = [label_of(shard, sample) for sample in samples]
            for _ in lesson.add(self.state, inputs(samples), labels, "skip", {}):
                pass
        assert self.state.extractor is not None
        statistics = getattr(lesson.classifier, "statistics_", None)
        if statistics is None:  # no image could be used
            own = lesson.classifier
            statistics = ClassStatistics(self.state.extractor.dim, own.covariance, own.rank, dtype=getattr(torch, own.dtype))
        header = {
            "shard": shard.name,
            "amgc": self.job.amgc,
            "extractor": self.job.checksum,
            "images": sum(lesson.added.values()),
            "unusable": len(lesson.skipped),
            "skipped": [[error.path, error.reason] for error in lesson.skipped[:NAMED]],
            "animated": lesson.animated[:NAMED],
            "repeated": lesson.repeated[:NAMED],
            "statistics": statistics.header(),
        }
        return tensor_files.to_bytes(KIND, header, statistics.tensors(exact=True))


def first_images(shards: Sequence[Shard], most: int) -> list[Input]:
    """Return up to `most` images, or vectors, of the first shards that can be read, and no more than `MOST_BYTES` of them."""
    found: list[Sample] = []
    problem: Exception | None = None
    for shard in shards:
        if len(found) >= most or sum(_bytes(one) for one in found) >= MOST_BYTES:
            break
        try:
            found += next(chunks(shard, most - len(found)), [])
        except (ShardError, OSError) as error:  # a worker reports it
            problem = problem or error
    if not found:
        raise ModelError(f"no shard has images{f'; the first: {problem}' if problem else ''}.")
    return inputs(found)


def chunks(shard: Shard, size: int = CHUNK, most: int | None = None) -> Iterator[list[Sample]]:
    """Yield the samples of a shard, `size` at a time; fewer if they take `most` bytes (`MOST_BYTES`), and at the end."""
    most = MOST_BYTES if most is None else most
    chunk: list[Sample] = []
    held = 0
    for sample in shard.samples():
        chunk.append(sample)
        held += _bytes(sample)
        if len(chunk) == size or held >= most:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _bytes(sample: Sample) -> int:
    """Return the bytes of an encoded image or a vector; hardly any for the path of a file."""
    return int(getattr(sample.content, "nbytes", 0)) or len(sample.content)


def inputs(samples: Sequence[Sample]) -> list[Input]:
    """Return samples as a model takes them."""
    return [Input(sample.name, sample.content) for sample in samples]


def label_of(shard: Shard, sample: Sample) -> str:
    """Return the name of a sample's class. Raises ShardError if it has none."""
    if not sample.label:
        raise ShardError(shard.name, f"{sample.name!r} has no label; --label-column names where labels are.")
    try:
        return checked_name(sample.label)
    except ValueError as error:
        raise ShardError(shard.name, str(error)) from error


@dataclass(frozen=True)
class Part:
    """The checked statistics of a shard."""

    header: dict[str, Any]
    statistics: ClassStatistics

    @property
    def may_be_stored(self) -> bool:
        return hides_images(self.statistics)


def hides_images(statistics: ClassStatistics) -> bool:
    """Return whether no class has a single image, whose features would be the mean of the class."""
    return not bool((statistics.count == 1).any())


def read_part(source: Path | bytes, job: Job, shard: Shard) -> Part:
    """Read and check what a worker returned. Raises ShardError, which names the shard, if it cannot be merged."""
    try:
        if isinstance(source, bytes):
            header, tensors = tensor_files.from_bytes(source, KIND, shard.name)
        else:
            header, tensors = tensor_files.read(source, KIND)
        for name in ("amgc", "extractor"):
            expected = job.amgc if name == "amgc" else job.checksum
            if header[name] != expected:
                raise ValueError(f"it was computed with the {name} {header[name]!r}, not {expected!r}")
        if header["shard"] != shard.name:
            raise ValueError(f"it is of {header['shard']!r}")
        statistics = ClassStatistics.from_file(header["statistics"], tensors)
        _check(statistics, tensors, int(header["images"]))
        return Part(header, statistics)
    except files.MISFITS as error:
        raise ShardError(shard.name, f"its statistics cannot be used: {error}.") from error


def _check(statistics: ClassStatistics, tensors: dict[str, Tensor], images: int) -> None:
    """Raise ValueError if statistics are impossible. `ClassStatistics.from_file` has checked shapes, types and counts."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name!r} holds NaN or infinity")
    if int(statistics.count.sum()) != images:
        raise ValueError(f"it counts {int(statistics.count.sum())} images and names {images}")
    freedom = int((statistics.count - 1).sum())
    if statistics.freedom != freedom:
        raise ValueError(f"it has {statistics.freedom} degrees of freedom, not {freedom}")
    if len(statistics):
        variances = statistics.shared().variances if statistics.form == "shared" else statistics.covariances.variances()
        if bool((variances < 0).any()):
            raise ValueError("a variance is negative")
