"""Sources of `amgc learn`, `predict` and `evaluate` (`wds:`, `parquet:`, `hf:`, `s3://` …), and learning on many workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from tyro.conf import arg

from amgc.cli.errors import UsageError, say
from amgc.cli.image_folders import images_by_class, images_of_class
from amgc.cli.own_vectors import are_vectors
from amgc.data.shards import Columns, Shard, ShardError, VectorShard, file_shards, is_source, open_source
from amgc.text import byte_size, duration, plural

if TYPE_CHECKING:
    from rich.console import Console

    from amgc.model import Model
    from amgc.model.pictures import Picture
    from amgc.model.sharded import Engine, Progress
    from amgc.model.state import State

On: TypeAlias = Literal["here", "ray"]
Split: TypeAlias = Annotated[str | None, arg(metavar="TEXT", help="of hf: the split (default: train; to ask a model: test)")]
ImageColumn: TypeAlias = Annotated[
    str | None, arg(metavar="TEXT", help="of parquet and hf: column of the images; of wds: their suffix (default: the usual)")
]
LabelColumn: TypeAlias = Annotated[
    str | None,
    arg(metavar="TEXT", help="of parquet and hf: column of the labels; of wds: suffix, or json:KEY (default: label, cls)"),
]
TIMED = 32  # images that the estimate encodes
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
    files: int

    @property
    def asked(self) -> bool:
        return self.jobs is not None or self.on != "here"

    def check(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"--jobs must be at least 1, not {self.jobs}.")
        if self.files < 1:
            raise UsageError(f"--shard-files must be at least 1, not {self.files}.")
        if self.on == "here" and (self.address or self.gpus or self.cpus != 1):
            raise UsageError("--address, --cpus and --gpus need --on ray.")

    def engine(self, shards: int) -> tuple[Engine, int, str]:
        """Return the engine, the number of workers, and where they are in words."""
        from amgc.data.image_files import available_cores
        from amgc.model import engines

        jobs = min(self.jobs or available_cores(), shards)
        if self.on == "ray":
            engines.import_ray()
            return engines.OnRay(jobs, self.address, self.cpus, self.gpus), jobs, "on Ray"
        return (engines.Processes(jobs) if jobs > 1 else engines.here), jobs, "on this machine"


def are_sources(given: Sequence[str]) -> bool:
    """Return whether sources are given. Either all or none of the arguments are."""
    found = [name for name in given if is_source(name)]
    if found and len(found) < len(given):
        raise UsageError(f"{found[0]!r} is a source and others are not; learn them one after another.")
    return bool(found)


def columns(split: str | None, image: str | None, label: str | None, default: str = "train") -> dict[str, Any]:
    return {"split": split or default, "image_column": image, "label_column": label}


def check_columns(sources: bool, chosen: dict[str, Any]) -> None:
    """Raise an error if columns are chosen for folders or files, which have none."""
    defaults = {field.name: field.default for field in fields(Columns)}
    if not sources and any(chosen[name] not in (None, defaults[name], "test") for name in chosen):
        raise UsageError("--split, --image-column and --label-column need a source: wds:, parquet:, hf: or an address.")


def source_shards(given: Sequence[str], chosen: dict[str, Any]) -> list[Shard]:
    return [shard for name in given for shard in open_source(name, chosen)]


def batches(shards: Sequence[Shard], labelled: bool = False) -> Iterator[tuple[list[Picture], list[str]]]:
    """Yield the images of shards, some at a time, and their labels. With `labelled`, one without a label is an error."""
    from amgc.model.parts import CHUNK, chunks
    from amgc.model.pictures import Picture

    for shard in shards:
        for samples in chunks(shard.samples(), CHUNK):
            without = next((sample.name for sample in samples if not sample.label), None)
            if labelled and without is not None:
                raise ShardError(shard.name, f"{without!r} has no label; --label-column names where labels are.")
            yield [Picture(sample.name, sample.content) for sample in samples], [sample.label for sample in samples]


def shards_of(given: Sequence[str], chosen: dict[str, Any], label: str | None, files: int) -> tuple[list[Shard], list[str]]:
    """Return the shards of sources, folders or files of vectors, and what was left out."""
    if are_sources(given):
        if label is not None:
            raise UsageError("--label is for images and folders; a source has labels of its own.")
        return source_shards(given, chosen), []
    if are_vectors(given):
        return [VectorShard(path, "train", label) for path in given], []
    images, left_out = images_by_class(given) if label is None else images_of_class(label, given)
    return list(file_shards(images, files)), left_out


def estimate(state: State, shards: Sequence[Shard], jobs: int) -> Iterator[str]:
    """Yield lines on what a lesson will take: time, and memory of each worker and of this process."""
    from amgc.features.extractor import Extractor
    from amgc.model.memory import of_driver, of_worker
    from amgc.model.parts import first_samples
    from amgc.model.pictures import Picture

    if isinstance(state.extractor, Extractor):
        samples = first_samples(shards, TIMED)
        given = [Picture(one.name, one.content) for one in samples]
        list(state.encoded(given[:2]))  # the first batch is slower
        start = time.perf_counter()
        list(state.encoded(given))
        rate = len(given) / max(time.perf_counter() - start, 1e-9)
        images = sum(shard.size for shard in shards)
        if shards[0].unit == "bytes":
            images = round(images * len(samples) / max(sum(len(one.content) for one in samples), 1))
        if images > len(shards):  # else a stream does not know its length
            left = images / rate / jobs
            yield f"About {plural(images, 'image')} at {rate:.0f} images/s a worker: about {duration(left)}."
    yield f"Memory: about {byte_size(of_worker(state))} a worker, and {byte_size(of_driver(state))} here for 1,000 classes."


@contextmanager
def shown(screen: Console, quiet: bool) -> Iterator[Any]:
    """Show progress with rate and time left: a bar on a terminal, a line a minute elsewhere."""
    from amgc.cli.progress import bar

    start, last, before = time.monotonic(), time.monotonic(), -1.0
    with bar(screen, "shards", quiet) as advance:

        def show(now: Progress) -> None:
            nonlocal last, before
            before = now.share if before < 0 else before  # of an earlier call
            advance(now.done, now.total)
            spent = time.monotonic() - start
            if quiet or screen.is_terminal or time.monotonic() - last < LINE_SECONDS or now.share <= before:
                return
            last = time.monotonic()
            left = spent * (1 - now.share) / (now.share - before)
            text = f"{now.done:,} of {plural(now.total, 'shard')}, {plural(now.images, 'image')} merged"
            screen.print(f"{text}, {now.images / spent:.0f} images/s; about {duration(left)} left.", highlight=False)

        yield show


def learn_shards(model: Model, shards: Sequence[Shard], workers: Workers, chosen: dict[str, Any], quiet: bool) -> Any:
    """Learn from shards, with an estimate before and progress meanwhile."""
    from amgc.cli.progress import console

    screen = console()
    engine, jobs, where = workers.engine(len(shards))
    if not quiet:
        screen.print(f"{plural(len(shards), 'shard')}, {plural(jobs, 'worker')} {where}.", highlight=False)
    with shown(screen, quiet) as progress:
        told = False

        def counted(job: Any, waiting: Any) -> Any:
            nonlocal told
            if not told and not quiet and waiting:
                told = True
                for line in estimate(model.state, [shard for _, shard in waiting], jobs):
                    screen.print(line, highlight=False)
            return engine(job, waiting)

        learned = model.learn_shards(
            shards, counted, progress=progress, on_bad_shard="skip" if workers.skip_shards else "error", chosen=chosen
        )
    for name, reason in learned.bad_shards:
        say(f"left out: {reason if reason.startswith(name) else f'{name}: {reason}'}")
    return learned


def has_finished(model: str) -> bool:
    """Return whether the folder of a model keeps finished shards."""
    from amgc.model.sharded import SHARDS

    return any((Path(model) / SHARDS).glob("*.safetensors"))


def unfinished(model: str, chosen: dict[str, Any]) -> bool:
    """Return whether a model was created by the same command, which was stopped before it had learned all shards."""
    from amgc.files import plain_json
    from amgc.model.sharded import SHARDS, Kept

    return bool(Kept(Path(model) / SHARDS, {}).found.get("chosen") == plain_json(chosen))
