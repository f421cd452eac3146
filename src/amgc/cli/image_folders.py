"""The images of each class in folders, and the files that are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from amgc.cli.errors import UsageError
from amgc.cli.output import shortened

NAMED = 50  # files of one reason that an error names
SPLITS = ("train", "test", "val", "valid", "validation")  # names of folders that contain folders of classes


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
    return [f"{counts[reason]}{shortened(names, most or len(names))} ({reason})" for reason, names in left.items()]


def _instead(left: Mapping[str, Sequence[str]]) -> str:
    return f" Left out: {'; '.join(as_lines(left, NAMED))}" if left else ""
