"""Shared parts of the commands for models of your own images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError

if TYPE_CHECKING:
    from amgc.model import Model

ModelFolder: TypeAlias = Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
NewModelFolder: TypeAlias = Annotated[str, arg(aliases=["-o"], metavar="MODEL", help="folder of the new model")]
ClassFolders: TypeAlias = Annotated[
    Positional[tuple[str, ...]], arg(metavar="FOLDER [FOLDER …]", help="folders with one sub-folder per class")
]
SPLITS = ("train", "test", "val", "valid", "validation")  # names of folders that contain folders of classes
SHOWN = 5  # names in a list


def open_or_create(path: str, options: dict[str, Any]) -> tuple[Model, bool]:
    """Open a model, or create it with the options that are not None. Returns the model and whether it was created."""
    from amgc.model import Model

    chosen = {name: value for name, value in options.items() if value is not None}
    if not (Path(path) / "manifest.json").is_file():
        return Model.create(path, **chosen), True
    model = Model.open(path)
    if chosen:
        flags = ", ".join(f"--{name}" for name in chosen)
        hint = "" if model.classes else " It has no classes yet: delete the folder to start again."
        raise UsageError(f"{path!r} is an existing model; {flags} can only be chosen for a new one.{hint}")
    return model, False


def images_by_class(folders: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """List the image files of each class. Returns also what was left out: empty folders, and images outside sub-folders."""
    from amgc.data.decode import list_folders, list_images

    if not folders:
        raise UsageError("specify at least one folder of images.")
    found: dict[str, list[str]] = {}
    left_out: list[str] = []
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
        loose = [path for path in list_images(root) if path.parent == root]
        if loose:
            left_out.append(f"{root} ({count_text(len(loose), 'image')} outside sub-folders)")
        for folder in inside:
            files = list_images(folder)
            if files:
                found.setdefault(folder.name, []).extend(map(str, files))
            else:
                left_out.append(f"{folder} (no images)")
    if not found:
        raise UsageError(f"there are no images in the sub-folders of {' and '.join(map(repr, folders))}.")
    return found, left_out


def show(text: str = "") -> None:
    """Print a line, with control characters replaced."""
    from amgc.cli.progress import console
    from amgc.text import printable

    console().print(printable(text), markup=False, highlight=False, soft_wrap=True)


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> None:
    """Print a table; `left` are the columns that are aligned to the left."""
    from amgc.cli.progress import console
    from amgc.report.table import grid

    console().print(grid(header, rows, left=left))


def count_text(count: int, noun: str) -> str:
    """Format a number of images or classes.

    >>> count_text(1, "image"), count_text(2, "known class")
    ('1 image', '2 known classes')
    """
    from amgc.text import plural

    return plural(count, noun, f"{noun}es" if noun.endswith("s") else "")


def shortened(names: Sequence[str]) -> str:
    """Join the first names of a list.

    >>> shortened(list("abcdefg"))
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
