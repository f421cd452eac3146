"""`amgc learn MODEL FOLDER [FOLDER …]`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
SPLITS = ("train", "test", "val", "valid", "validation")  # folders of classes, not classes


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
    pictures, left_out = by_class(given.folders)

    from amgc.cli.progress import bar, console
    from amgc.model import Model
    from amgc.model.model import normal
    from amgc.text import printable

    chosen: dict[str, Any] = {name: getattr(given, name) for name in NEW if getattr(given, name) is not None}
    known_before = (Path(given.model) / "manifest.json").is_file()
    if known_before:
        model = Model.open(given.model)
        if chosen:
            flags = ", ".join(f"--{name}" for name in chosen)
            hint = "" if model.classes else " It knows no class yet: remove the folder to begin anew."
            raise UsageError(f"{given.model!r} is a model already; {flags} can only be chosen for a new one.{hint}")
    else:
        model = Model.create(given.model, **chosen)
    screen = console()
    try:
        with bar(screen, "learning", given.quiet) as progress:
            learned = model.learn_all(pictures, progress=progress, on_corrupt="skip")
    except BaseException:
        if not known_before:  # the same command can be given again
            with suppress(Exception):  # the first error is the one to tell
                model.remove_if_empty()
        raise
    if not given.quiet:
        lines = said(learned, left_out, len(model.classes))
        unusable = [label for label in pictures if normal(label) not in learned.added]
        if unusable:
            lines.append(f"Not learned, as none of its pictures could be used: {_listed(unusable)}")
        if given.features in ("resnet18", "resnet32", "convnet") and given.weights is None:
            lines.append(
                f"The weights of {given.features} are random, which is of little use: name trained ones with --weights."
            )
        for line in lines:
            screen.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    return 0


def by_class(folders: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The files of each class, and what was left out: folders without pictures, and pictures beside the folders."""
    from amgc.data.decode import list_folders, list_images

    found: dict[str, list[str]] = {}
    left_out: list[str] = []
    for root in map(Path, folders):
        if not root.is_dir():
            raise UsageError(f"there is no folder {str(root)!r}.")
        inside = list_folders(root)
        if not inside:
            raise UsageError(f"{str(root)!r} has no sub-folders; pictures belong into one sub-folder per class.")
        splits = [folder for folder in inside if folder.name.lower() in SPLITS and list_folders(folder)]
        splits.sort(key=lambda folder: SPLITS.index(folder.name.lower()))
        if len(splits) == len(inside):
            raise UsageError(
                f"in {str(root)!r} are {' and '.join(folder.name for folder in splits)}, which are no classes but have some; "
                f"name one of them, such as {str(splits[0])!r}."
            )
        loose = [path for path in list_images(root) if path.parent == root]
        if loose:
            left_out.append(f"{root} ({len(loose):,} pictures beside the sub-folders)")
        for folder in inside:
            files = list_images(folder)
            if files:
                found.setdefault(folder.name, []).extend(map(str, files))
            else:
                left_out.append(f"{folder} (no pictures)")
    if not found:
        raise UsageError(f"there are no pictures in the sub-folders of {' and '.join(map(repr, folders))}.")
    return found, left_out


def said(learned: Learned, left_out: Sequence[str], known: int) -> list[str]:
    """What was learned, and what was not."""
    from amgc.text import plural

    rate = learned.images / max(learned.seconds, 1e-9)
    lines = [
        f"Learned {plural(len(learned.added), 'class', 'classes')} from {plural(learned.images, 'picture')} in "
        f"{learned.seconds:.1f} s ({rate:.0f} pictures/s); {plural(known, 'class', 'classes')} known. No picture was kept."
    ]
    if learned.again:
        lines.append(f"Known before, and now from more pictures: {_listed(learned.again)}")
    few = [name for name, count in learned.added.items() if count <= 2 and name not in learned.again]
    if few:
        lines.append(f"From one or two pictures only, whose features can be told from the class's statistics: {_listed(few)}")
    if learned.animated:
        lines.append(
            f"Of {plural(len(learned.animated), 'animated picture')} the first frame was taken: {_listed(learned.animated)}"
        )
    if learned.skipped:
        lines.append(f"{plural(len(learned.skipped), 'picture')} could not be used:")
        lines += [f"  {path}: {reason}" for path, reason in learned.skipped[:SHOWN]]
        if len(learned.skipped) > SHOWN:
            lines.append(f"  and {len(learned.skipped) - SHOWN:,} more")
    if left_out:
        lines.append(f"Left out: {_listed(left_out)}")
    return lines


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
