"""`amgc learn MODEL FOLDER [FOLDER …]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError

if TYPE_CHECKING:
    from amgc.model import Learned

NEW = ("features", "size", "filters", "draw", "weights", "seed")  # what is decided when a model is made
SHOWN = 5


@dataclass(frozen=True)
class Learn:
    """Teach a model classes: each sub-folder of FOLDER is one, named as the sub-folder. The first call makes the model.

    A class that is known learns from the further pictures too. No picture is kept.
    """

    model: Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
    folders: Annotated[
        Positional[tuple[str, ...]], arg(metavar="FOLDER [FOLDER …]", help="folders with a sub-folder per class")
    ]
    features: Annotated[
        str | None,
        arg(
            metavar="NAME|FILE",
            help="for a new model: patches (the default), resnet18, timm:NAME, a file, or another model, for its extractor",
        ),
    ] = None
    size: Annotated[int | None, arg(metavar="INT", help="for a new model: side of the pictures in pixels")] = None
    filters: Annotated[int | None, arg(metavar="INT", help="for new patches: more are better and slower (default: 400)")] = None
    draw: Annotated[
        Literal["gaussian", "patches"] | None,
        arg(help="for new patches: filters drawn at random (default: gaussian), or fragments of the first pictures"),
    ] = None
    weights: Annotated[str | None, arg(metavar="FILE", help="for a new network: its weights")] = None
    seed: Annotated[int | None, arg(metavar="INT", help="for a new model: decides its chance (default: 0)")] = None
    quiet: Annotated[bool, arg(help="say nothing but errors")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Learn, args=list(arguments), prog="amgc learn")
    if not given.folders:
        raise UsageError("name at least one folder with pictures: amgc learn MODEL FOLDER")
    pictures, empty = by_class(given.folders)

    from amgc.cli.bars import bar
    from amgc.cli.progress import console
    from amgc.model import Model

    chosen: dict[str, Any] = {name: getattr(given, name) for name in NEW if getattr(given, name) is not None}
    if (Path(given.model) / "manifest.json").is_file():
        if chosen:
            flags = ", ".join(f"--{name}" for name in chosen)
            raise UsageError(f"{given.model!r} is a model already; {flags} can only be chosen for a new one.")
        model = Model.open(given.model)
    else:
        model = Model.create(given.model, **chosen)
    screen = console()
    with bar(screen, "learning", given.quiet) as progress:
        learned = model.learn_all(pictures, progress=progress, on_corrupt="skip")
    if not given.quiet:
        for line in said(learned, empty, len(model.classes)):
            screen.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def by_class(folders: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The files of each class, and folders without any."""
    from amgc.data.decode import list_folders, list_images

    found: dict[str, list[str]] = {}
    empty: list[str] = []
    for root in map(Path, folders):
        if not root.is_dir():
            raise UsageError(f"there is no folder {str(root)!r}.")
        inside = list_folders(root)
        if not inside:
            raise UsageError(f"{str(root)!r} has no sub-folders; pictures belong into one sub-folder per class.")
        for folder in inside:
            files = list_images(folder)
            if files:
                found.setdefault(folder.name, []).extend(map(str, files))
            else:
                empty.append(str(folder))
    if not found:
        raise UsageError(f"there are no pictures in the sub-folders of {' and '.join(map(repr, folders))}.")
    return found, empty


def said(learned: Learned, empty: Sequence[str], known: int) -> list[str]:
    """What was learned, and what was not."""
    from amgc.cli.bars import plural
    from amgc.report.table import printable

    rate = learned.images / max(learned.seconds, 1e-9)
    lines = [
        f"Learned {plural(len(learned.added), 'class', 'classes')} from {plural(learned.images, 'picture')} in "
        f"{learned.seconds:.1f} s ({rate:.0f} pictures/s); {plural(known, 'class', 'classes')} known. No picture was kept."
    ]
    if learned.again:
        lines.append(f"Known before, and now from more pictures: {_listed(learned.again)}")
    single = [name for name, count in learned.added.items() if count == 1 and name not in learned.again]
    if single:
        lines.append(f"From one picture only, whose features are then the class's mean: {_listed(single)}")
    if learned.animated:
        lines.append(
            f"Of {plural(len(learned.animated), 'animated picture')} the first frame was taken: {_listed(learned.animated)}"
        )
    if learned.skipped:
        lines.append(f"{plural(len(learned.skipped), 'picture')} could not be used:")
        lines += [f"  {path}: {reason}" for path, reason in learned.skipped[:SHOWN]]
        if len(learned.skipped) > SHOWN:
            lines.append(f"  and {len(learned.skipped) - SHOWN:,} more")
    if empty:
        lines.append(f"Without pictures: {_listed(empty)}")
    return [printable(line) for line in lines]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
