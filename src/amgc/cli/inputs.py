"""What `amgc learn`, `predict` and `evaluate` read: folders of images, files of vectors, and sources such as `wds:` and `s3://`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from tyro.conf import arg

from amgc.cli.errors import UsageError
from amgc.data.shards import Shard, VectorShard, file_shards, is_source, open_source
from amgc.data.vectors import LABEL, Split, by_class, is_vector_file, read_vectors
from amgc.text import first_few

if TYPE_CHECKING:
    from amgc.model import Model
    from amgc.model.inputs import Input

NAMED = 50  # files of one reason that an error names
SPLITS = ("train", "test", "val", "valid", "validation")  # names of folders that contain folders of classes
Kind: TypeAlias = Literal["images", "vectors", "sources"]
SplitFlag: TypeAlias = Annotated[str | None, arg(metavar="TEXT", help="hf: split of the data set (default: train, or test)")]
ImageColumn: TypeAlias = Annotated[
    str | None,
    arg(metavar="TEXT", help="parquet, hf: column of the images; wds: their suffix (default: one of the usual names)"),
]
LabelColumn: TypeAlias = Annotated[
    str | None,
    arg(metavar="TEXT", help="parquet, hf: column of the labels; wds: their suffix, or json:KEY (default: label, cls)"),
]


def kind_of(given: Sequence[str]) -> Kind:
    """Return what the arguments are. All must be of one kind."""
    found = [name for name in given if is_source(name)]
    if found and len(found) < len(given):
        raise UsageError(f"{found[0]!r} is a source and others are not; learn them one after another.")
    if found:
        return "sources"
    found = [path for path in given if is_vector_file(path)]
    if found and len(found) < len(given):
        raise UsageError(f"{found[0]!r} is a file of vectors, and others are not; a model takes either vectors or images.")
    return "vectors" if found else "images"


# ---- images ----------------------------------------------------------------------------------------------------------


def images_of_class(label: str, given: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """List the image files of one class, from files and folders. Returns also what was left out."""
    from amgc.data.image_files import list_files

    if not given:
        raise UsageError("specify at least one image: amgc learn MODEL --label CLASS IMAGE")
    found: list[str] = []
    left: dict[str, list[str]] = {}
    for path in map(Path, given):
        if not path.exists():
            raise UsageError(f"there is no file or folder {str(path)!r}.")
        if not path.is_dir():
            found.append(str(path))
            continue
        listing = list_files(path)
        found += map(str, listing.images)
        leave_out(left, listing.left_out)
    if not found:
        raise UsageError(f"there are no images in {' and '.join(map(repr, given))}.{_instead(left)}")
    return {label: found}, as_lines(left)


def images_by_class(folders: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """List the image files of each class. Returns also what was left out: other files, empty folders, images elsewhere."""
    from amgc.data.image_files import list_files, list_folders

    if not folders:
        raise UsageError("specify at least one folder of images.")
    found: dict[str, list[str]] = {}
    left: dict[str, list[str]] = {}
    for root in map(Path, folders):
        if not root.is_dir():
            raise UsageError(f"there is no folder {str(root)!r}.")
        inside = list_folders(root)
        if not inside:
            raise UsageError(f"{str(root)!r} has no sub-folders; put the images of each class into a sub-folder.")
        splits = [folder for folder in inside if folder.name.lower() in SPLITS and list_folders(folder)]
        splits.sort(key=lambda folder: SPLITS.index(folder.name.lower()))
        if len(splits) == len(inside):
            names = " and ".join(folder.name for folder in splits)
            raise UsageError(f"{names} in {str(root)!r} are not classes; specify one of them, such as {str(splits[0])!r}.")
        listing = list_files(root)
        leave_out(left, {"outside sub-folders": [path for path in listing.images if path.parent == root]})
        leave_out(left, {why: [path for path in paths if path.parent == root] for why, paths in listing.left_out.items()})
        for folder in inside:
            listing = list_files(folder)
            leave_out(left, listing.left_out if listing.images else {"no images": [folder]} | listing.left_out)
            if listing.images:
                found.setdefault(folder.name, []).extend(map(str, listing.images))
    if not found:
        raise UsageError(f"there are no images in the sub-folders of {' and '.join(map(repr, folders))}.{_instead(left)}")
    return found, as_lines(left)


def other_files(given: Sequence[str]) -> list[str]:
    """Describe the files of folders that are not images, one line for each reason."""
    from amgc.data.image_files import list_files

    left: dict[str, list[str]] = {}
    for path in map(Path, given):
        if path.is_dir():
            leave_out(left, list_files(path).left_out)
    return as_lines(left)


def leave_out(left: dict[str, list[str]], more: Mapping[str, Sequence[Path]]) -> None:
    """Add files that are left out, by reason."""
    for reason, paths in more.items():
        if paths:
            left.setdefault(reason, []).extend(map(str, paths))


def as_lines(left: Mapping[str, Sequence[str]], most: int | None = None) -> list[str]:
    """Describe what was left out, one line for each reason, with all names or the first `most`.

    >>> as_lines({"hidden": ["a/.x"], "no images": list("abcdefg")})
    ['a/.x (hidden)', '7: a, b, c, d, e, f, g (no images)']
    """
    counts = {reason: f"{len(names):,}: " if len(names) > 1 else "" for reason, names in left.items()}
    return [f"{counts[reason]}{first_few(names, most or len(names))} ({reason})" for reason, names in left.items()]


def _instead(left: Mapping[str, Sequence[str]]) -> str:
    return f" Left out: {'; '.join(as_lines(left, NAMED))}" if left else ""


# ---- vectors ---------------------------------------------------------------------------------------------------------


def vectors_by_class(files: Sequence[str], split: Split, label: str | None = None) -> dict[str, list[Input]]:
    """Return the vectors of each class. With `label`, all are of this class."""
    from amgc.model.inputs import vectors_from

    found: dict[str, list[Input]] = {}
    for path in files:
        own = vectors_from(path, split)
        if label is not None:
            found.setdefault(label, []).extend(own)
            continue
        content = read_vectors(path, split)
        if content.labels is None:
            raise UsageError(f"{path!r} has no labels: add an array 'y', or a column {LABEL!r} in Parquet, or use --label.")
        for name, rows in by_class(content).items():
            found.setdefault(name, []).extend(own[row] for row in rows)
    return found


def check_kind(model: Model, kind: Kind) -> None:
    """Raise UsageError if a model takes images and vectors are given, or vice versa."""
    noun = model.state.manifest.noun
    if kind == "vectors" and noun == "image":
        raise UsageError(f"the model in {str(model.path)!r} takes images, not vectors; learn vectors in a new model.")
    if kind != "vectors" and noun == "vector":
        raise UsageError(f"the model in {str(model.path)!r} takes vectors: files of the kinds .npz, .npy and .parquet.")


# ---- sources ---------------------------------------------------------------------------------------------------------


def columns(kind: Kind, split: str | None, image: str | None, label: str | None, default: str = "train") -> dict[str, Any]:
    """Return the columns of sources. It is an error to choose some for folders or files, which have none."""
    if kind != "sources" and not (image is label is None and split in (None, "train", "test")):
        raise UsageError("--split, --image-column and --label-column need a source: wds:, parquet:, hf: or an address.")
    return {"split": split or default, "image_column": image, "label_column": label}


def source_shards(given: Sequence[str], chosen: dict[str, Any]) -> list[Shard]:
    return [shard for name in given for shard in open_source(name, chosen)]


def batches(shards: Sequence[Shard], labelled: bool = False) -> Iterator[tuple[list[Input], list[str]]]:
    """Yield the images of shards, some at a time, and their labels. With `labelled`, one without a label is an error."""
    from amgc.distributed.worker import chunks, inputs, label_of

    for shard in shards:
        for samples in chunks(shard):
            yield inputs(samples), [label_of(shard, sample) if labelled else sample.label for sample in samples]


def shards_of(
    given: Sequence[str], chosen: dict[str, Any], label: str | None, most: int | None
) -> tuple[list[Shard], list[str]]:
    """Return the shards of sources, folders or files of vectors, and what was left out."""
    kind = kind_of(given)
    if kind == "sources":
        if label is not None:
            raise UsageError("--label is for images and folders; a source has labels of its own.")
        return source_shards(given, chosen), []
    if kind == "vectors":
        return [VectorShard(path, "train", label) for path in given], []
    images, left_out = images_by_class(given) if label is None else images_of_class(label, given)
    return list(file_shards(images, most)), left_out
