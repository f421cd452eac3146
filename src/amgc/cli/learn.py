"""`amgc learn`: learn classes from images, vectors or shards. The first call creates the model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError
from amgc.cli.inputs import (
    ImageColumn,
    LabelColumn,
    SplitFlag,
    check_kind,
    columns,
    images_by_class,
    images_of_class,
    kind_of,
    shards_of,
    vectors_by_class,
)
from amgc.cli.output import show
from amgc.cli.own_images import ModelFolder
from amgc.cli.tyro_flags import several
from amgc.cli.workers import On, Workers, has_finished, is_unfinished, learn_shards
from amgc.data.shards import Shard
from amgc.text import duration, first_few, per_second, plural

if TYPE_CHECKING:
    from rich.console import Console

    from amgc.model import Learned, Model
    from amgc.model.changes import ProgressCallback
    from amgc.model.manifest import Manifest

Form: TypeAlias = Literal["full", "lowrank", "diagonal", "shared"]
Photos: TypeAlias = Annotated[
    Positional[tuple[str, ...]],
    several(
        "FOLDER",
        "folders with one sub-folder per class, files of vectors, or sources: wds:PATTERN, parquet:PATTERN, hf:NAME, s3://…; "
        "with --label images, or folders of them",
    ),
]
UNTRAINED = ("resnet18", "resnet32", "convnet")  # networks for which amgc has no weights
FEW = 5  # from this number of images of a class in one call, nothing is said about what two versions of a model reveal
LONG = 10.0  # minimum number of expected seconds for which the expected time is printed


def learn(
    model: ModelFolder,
    folders: Photos,
    label: Annotated[str | None, arg(metavar="CLASS", help="all images are of this class")] = None,
    features: Annotated[
        str | None,
        arg(
            metavar="NAME|FILE",
            help="for a new model: lite0 (for photographs), patches, resnet18, timm:NAME, a file, or another model, for its "
            "extractor (default: lite0 or patches, by the first images)",
        ),
    ] = None,
    size: Annotated[int | None, arg(metavar="INT", help="for a new model: side of the images in pixels")] = None,
    filters: Annotated[
        int | None, arg(metavar="INT", help="for new patches: number of filters; more are better and slower (default: 400)")
    ] = None,
    draw: Annotated[
        Literal["gaussian", "patches"] | None,
        arg(help="for new patches: random filters (default: gaussian), or fragments of the first images"),
    ] = None,
    weights: Annotated[str | None, arg(metavar="FILE", help="for a new network: file of its weights")] = None,
    seed: Annotated[int | None, arg(metavar="INT", help="for a new model: random seed (default: 0)")] = None,
    epsilon: Annotated[
        float | None,
        arg(metavar="FLOAT", help="for a new model: budget of differential privacy for each image; 1 is strong, 8 is weak"),
    ] = None,
    delta: Annotated[float | None, arg(metavar="FLOAT", help="with --epsilon: its δ (default: 1e-5)")] = None,
    lessons: Annotated[
        int | None, arg(metavar="INT", help="with --epsilon: number of times that a class can be learned (default: 1)")
    ] = None,
    fewest: Annotated[
        int | None, arg(metavar="INT", help="for a new model: minimum number of images of a class in a call (default: 1)")
    ] = None,
    covariance: Annotated[
        Form | None,
        arg(help="for a new model: form of the covariances; shared is the smallest for many classes (default: by features)"),
    ] = None,
    jobs: Annotated[int | None, arg(metavar="INT", help="learn in shards, with this number of processes")] = None,
    on: Annotated[On, arg(help="learn in shards, with processes on this machine or with Ray Data")] = "here",
    address: Annotated[
        str | None, arg(metavar="TEXT", help="with --on ray: the cluster (default: $RAY_ADDRESS, or start one here)")
    ] = None,
    cpus: Annotated[float, arg(metavar="FLOAT", help="with --on ray: CPUs of a worker")] = 1.0,
    gpus: Annotated[float, arg(metavar="FLOAT", help="with --on ray: GPUs of a worker")] = 0.0,
    shard_files: Annotated[
        int | None, arg(metavar="INT", help="images per shard of folders (default: depends on their number, at most 1,000)")
    ] = None,
    skip_shards: Annotated[bool, arg(help="skip shards that cannot be read after several attempts")] = False,
    split: SplitFlag = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    quiet: Annotated[bool, arg(help="print errors only")] = False,
) -> None:
    """Learn classes from images: each sub-folder of FOLDER is a class. The first call creates the model.

    `amgc learn MODEL --label CLASS IMAGE …` learns one class. Images of a known class are added to it. No image is stored.
    `amgc learn MODEL FILE.npz` learns from vectors, such as embeddings: arrays x (n, d) and y (n,), or a .parquet file with a
    column `label`.
    `amgc learn MODEL wds:train-*.tar --jobs 8` learns from shards, on many workers. The same command resumes it.
    """
    images: Mapping[str, Sequence[Any]] = {}
    shards: list[Shard] = []
    left_out: list[str] = []
    workers = Workers(jobs, on, address, cpus, gpus, skip_shards, shard_files)
    workers.check()
    kind = kind_of(folders)
    chosen_columns = columns(kind, split, image_column, label_column)
    if kind == "vectors":
        features = features or (None if (Path(model) / "manifest.json").is_file() else "vectors")
    if kind == "sources" or workers.asked:
        shards, left_out = shards_of(folders, chosen_columns, label, shard_files)
    elif kind == "vectors":
        images = vectors_by_class(folders, "train", label)
    else:
        images, left_out = images_by_class(folders) if label is None else images_of_class(label, folders)

    from amgc.cli.progress import bar, console
    from amgc.model.folder import Folder
    from amgc.model.manifest import normal

    chosen: dict[str, Any] = {
        "features": features,
        "size": size,
        "filters": filters,
        "draw": draw,
        "weights": weights,
        "seed": seed,
        "epsilon": epsilon,
        "delta": delta,
        "lessons": lessons,
        "fewest": fewest,
        "covariance": covariance,
    }
    opened, created = open_or_create(model, {} if shards and is_unfinished(model, chosen) else chosen)
    try:
        check_kind(opened, kind)
        if shards:
            learned = learn_shards(opened, shards, workers, chosen, quiet)
        else:
            screen = console()
            with bar(screen, "learning", quiet) as progress:
                shown = progress if quiet else with_cost(progress, screen)
                learned = opened.learn_all(images, progress=shown, on_corrupt="skip")
    except BaseException:
        if created and not (shards and has_finished(model)):  # so that the same command can be repeated
            with suppress(Exception):  # report the first error
                Folder(model).remove_if_empty()
        raise
    if quiet:
        return
    manifest = opened.state.manifest
    lines, used = describe_learned(learned, left_out, manifest), manifest.features
    if created and used.why:
        lines.insert(1, f"Features: {used.name}, because {used.why}. --features chooses others.")
    unusable = [label for label in images if normal(label) not in learned.added]
    if unusable:
        lines.append(f"Not learned, because none of their {manifest.noun}s could be used: {first_few(unusable)}")
    show(*lines)


def with_cost(progress: ProgressCallback, screen: Console) -> ProgressCallback:
    """Return `progress`, which also prints the expected time after two batches if it is long.

    The first batch starts the clock: it includes loading, and the choice or fit of the features.
    """
    calls: list[tuple[float, int]] = []

    def shown(done: int, total: int) -> None:
        progress(done, total)
        calls.append((time.monotonic(), done))
        if len(calls) == 2:
            (start, before), (now, _) = calls
            rate = (done - before) / max(now - start, 1e-9)
            if (left := (total - done) / rate) > LONG:
                screen.print(f"{total:,} images at {per_second(rate)} images/s: about {duration(left)}.", highlight=False)

    return shown


def open_or_create(path: str, options: dict[str, Any]) -> tuple[Model, bool]:
    """Open a model, or create it with the options that are not None. Returns the model and whether it was created."""
    from amgc.model import Model

    chosen = {name: value for name, value in options.items() if value is not None}
    if not (Path(path) / "manifest.json").is_file():
        if chosen.get("features") in UNTRAINED and "weights" not in chosen:
            raise UsageError(
                f"the weights of {chosen['features']} would be random. Choose trained ones with `amgc learn --weights FILE` or "
                "other features: lite0 for photographs, patches without training."
            )
        budget = {name: chosen.pop(name) for name in ("epsilon", "delta", "lessons") if name in chosen}
        if budget and "epsilon" not in budget:
            raise UsageError(f"--{next(iter(budget))} needs --epsilon, the budget of differential privacy.")
        if budget:
            from amgc.core.privacy import Privacy

            chosen["privacy"] = Privacy(**budget)
        return Model.create(path, **chosen), True
    model = Model.open(path)
    if chosen:
        flags = ", ".join(f"--{name}" for name in chosen)
        hint = "" if model.classes else " It has no classes yet: delete the folder to start again."
        raise UsageError(f"{path!r} is an existing model; {flags} can only be chosen for a new one.{hint}")
    return model, False


def describe_learned(learned: Learned, left_out: Sequence[str], manifest: Manifest) -> list[str]:
    """Describe what was learned and what was not."""
    noun, known = manifest.noun, len(manifest.classes)
    rate = learned.images / max(learned.seconds, 1e-9)
    lines = [
        f"Learned {plural(len(learned.added), 'class')} from {plural(learned.images, noun)} in "
        f"{learned.seconds:.1f} s ({per_second(rate)} {noun}s/s); the model has {plural(known, 'class')}. No {noun} was stored."
    ]
    if learned.again:
        lines.append(f"Known before, {noun}s added: {first_few(learned.again)}")
    few = [name for name, count in learned.added.items() if count <= 2 and name not in learned.again]
    if few and not manifest.private:
        lines.append(f"Only one or two {noun}s, whose features follow from the stored statistics: {first_few(few)}")
    if alone := [name for name in learned.again if learned.added[name] == 1 and not manifest.private]:
        lines.append(
            f"Only one {noun} more: who has a copy of the model from before can compute its features, and from them often the "
            f"{noun}. Learn several in one call (--fewest of a new model refuses fewer): {first_few(alone)}"
        )
    if some := [name for name in learned.again if 1 < learned.added[name] < FEW and not manifest.private]:
        lines.append(
            f"Only {FEW - 1} {noun}s more, or fewer: who has a copy of the model from before can compute the sum of their "
            f"features: {first_few(some)}"
        )
    if learned.animated:
        animated = plural(len(learned.animated), "animated image")
        lines.append(f"Only the first frame of {animated} was used: {first_few(learned.animated)}")
    if learned.skipped:
        lines.append(f"{plural(len(learned.skipped), noun)} could not be used:")
        lines += [f"  {path}: {reason}" for path, reason in learned.skipped]
    if learned.repeated:
        again = plural(len(learned.repeated), noun)
        lines.append(f"{again} had the same pixels as another one of the class and counted once: {first_few(learned.repeated)}")
    if learned.learned_before:
        many, counts = plural(len(learned.learned_before), noun), "counts" if len(learned.learned_before) == 1 else "count"
        lines.append(
            f"{many} had probably been learned before, by the same class, and {counts} twice now (`amgc undo` undoes it): "
            f"{first_few(learned.learned_before)}"
        )
    lines += [f"Left out: {text}" for text in left_out]
    return lines
