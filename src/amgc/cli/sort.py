"""`amgc sort`: put photos into a folder for each class, and into `unsure` or `unknown` if the class is not clear."""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from amgc.cli.errors import FAILED, UsageError
from amgc.cli.moving import How, Mover, is_there, numbered, undo
from amgc.cli.output import show, show_table
from amgc.cli.tyro_flags import several
from amgc.text import DASH, percent, plural

if TYPE_CHECKING:
    from amgc.model import ImageError, Prediction

REJECT, UNSURE = 0.01, 0.5  # a class that is not more likely than all others together is unsure
UNKNOWN_PILE, UNSURE_PILE = "unknown", "unsure"
LONGEST = 200  # bytes of a folder's name; file systems allow 255
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}  # on Windows
DONE = {"copy": "Copied", "move": "Moved", "link": "Linked"}
SKIP = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENAMETOOLONG, errno.EINVAL)  # errors of one file, not of the disk


def sort(
    model: Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model", help_behavior_hint="(required)")] = "",
    folders: Annotated[Positional[tuple[str, ...]], several("FOLDER", "folders of photos, or photos")] = (),
    into: Annotated[
        str | None,
        arg(metavar="DIR", help="destination folder; created if it does not exist", help_behavior_hint="(required)"),
    ] = None,
    copy: Annotated[bool, arg(help="copy the photos (the default)")] = False,
    move: Annotated[bool, arg(help="move the photos")] = False,
    link: Annotated[bool, arg(help="make symbolic links to the photos")] = False,
    reject: Annotated[
        float | None,
        arg(
            metavar="SHARE",
            help="put photos into `unknown` if they are less typical than this share of known ones; 0: none",
            help_behavior_hint=f"(default: {REJECT})",
        ),
    ] = None,
    unsure: Annotated[float, arg(metavar="P", help="put photos into `unsure` if the class is less probable; 0: none")] = UNSURE,
    dry_run: Annotated[bool, arg(help="print what would happen, and change nothing")] = False,
    undo: Annotated[
        str | None,
        arg(metavar="DIR", help="undo the last sort into DIR; takes no other arguments", help_behavior_hint=""),
    ] = None,
) -> int:
    """Sort photos into a folder for each class, as a model recognises them: amgc sort MODEL FOLDER --into DIR.

    Nothing is overwritten: photos of the same name get numbers. DIR/amgc-sort.jsonl records what was done, and
    `amgc sort --undo DIR` undoes it.
    """
    if undo is not None:
        if model or folders or into:
            raise UsageError("--undo takes only the folder that was sorted into: amgc sort --undo DIR")
        return undo_sort(Path(undo))
    if not model or not folders or into is None:
        raise UsageError("specify a model, a folder of photos and where to sort them: amgc sort MODEL FOLDER --into DIR")
    if copy + move + link > 1:
        raise UsageError("choose one of --copy, --move and --link.")
    if not 0 <= unsure <= 1:
        raise UsageError(f"--unsure must be from 0 to 1, not {unsure:g}.")
    how: How = "move" if move else "link" if link else "copy"
    photos, left = list_photos(folders, Path(into))

    from amgc.model import Model

    opened = Model.open(model)
    if reject is None and opened.info().changeable:  # a model from a trained head cannot estimate it
        reject = REJECT
    piles = folder_names(opened.classes)
    answers = opened.predict_each(photos, reject=reject or None)  # raises an error before any folder is created
    job = Sorting(photos, answers, Path(into), how, unsure, piles, left)
    return show_plan(job) if dry_run else sort_photos(job)


@dataclass
class Sorting:
    """Photos with the model's answers, and where they go.

    piles : the name of the folder of each class. left : files that stay where they are, with the reason. failed : how many of
    them should have been sorted.
    """

    photos: Sequence[Path]
    answers: Iterable[Prediction | ImageError]
    into: Path
    how: How
    unsure: float
    piles: dict[str, str]
    left: list[tuple[str, str]]
    failed: int = 0

    def each(self, progress: Callable[[int, int], None]) -> Iterator[tuple[Path, str, Prediction]]:
        """Yield each readable photo, the name of the folder for it, and the answer."""
        from amgc.model import ImageError

        for number, (photo, answer) in enumerate(zip(self.photos, self.answers, strict=True), start=1):
            if isinstance(answer, ImageError):
                self.fail(photo, answer.reason)
            else:
                yield photo, pile_of(answer, self.unsure, self.piles), answer
            progress(number, len(self.photos))

    def fail(self, photo: Path, reason: str) -> None:
        self.left.append((str(photo), reason))
        self.failed += 1


def sort_photos(job: Sorting) -> int:
    """Sort the photos and print a summary. Returns the exit code."""
    from amgc.cli.progress import bar, console

    counts: Counter[str] = Counter()
    there = 0
    with bar(console(), "sorting") as progress, Mover(job.into, job.how) as mover:
        for photo, pile, _ in job.each(progress):
            try:
                if mover.put(photo, pile) is None:
                    there += 1
                else:
                    counts[pile] += 1
            except OSError as error:
                if error.errno not in SKIP:
                    raise
                job.fail(photo, error.strerror or str(error))
    again = f" {there:,} were there already." if there else ""
    show(f"{DONE[job.how]} {plural(counts.total(), 'photo')} into {job.into}.{again}")
    summarise(counts, job)
    if counts:
        show(f"`amgc sort --undo {job.into}` takes this back.")
    return FAILED if job.failed else 0


def show_plan(job: Sorting) -> int:
    """Print where each photo would go. Returns the exit code."""
    from amgc.cli.progress import bar, console

    counts: Counter[str] = Counter()
    taken: set[Path] = set()
    rows: list[list[str]] = []
    with bar(console(), "classifying") as progress:
        for photo, pile, answer in job.each(progress):
            target = planned(job.how, photo, job.into / pile, taken)
            fit = DASH if answer.fit is None else f"{answer.fit:.3f}"
            rows.append([str(photo), answer.label, percent(answer.probabilities[0]), fit, target or "is there already"])
            counts[pile] += target is not None
    show_table(["photo", "class", "probability, %", "fit", f"would {job.how} to"], rows, left=(0, 1, 4))
    show("")
    summarise(counts, job)
    show("This was a dry run: nothing has changed.")
    return FAILED if job.failed else 0


def planned(how: How, photo: Path, home: Path, taken: set[Path]) -> str | None:
    """Return the path that a photo would get; None if it is there already. `taken` are paths of photos before it."""
    source = Path(os.path.abspath(photo))
    for name in numbered(photo.name):
        target = home / name
        if os.path.lexists(target):
            if is_there(how, source, target):
                return None
        elif target not in taken:
            taken.add(target)
            return str(target)
    raise AssertionError("names are numbered without end")


def undo_sort(folder: Path) -> int:
    """Undo the last sort into a folder."""
    undone = undo(folder)
    show(f"Took back {plural(undone.files, 'photo')} of the last sorting into {folder}.")
    for path, reason in undone.kept:
        show(f"Left in place: {path}: {reason}.")
    return FAILED if undone.kept else 0


def summarise(counts: Counter[str], job: Sorting) -> None:
    """Print the number of photos in each folder, and every file that was left out."""
    names = {pile: label for label, pile in job.piles.items() if label != pile}
    if counts:
        rows = [[pile + (f" (class {names[pile]})" if pile in names else ""), f"{counts[pile]:,}"] for pile in sorted(counts)]
        show_table(["folder", "photos"], rows)
    if job.left:
        show(f"Left where they are, {plural(len(job.left), 'file')}:", *(f"  {path}: {reason}" for path, reason in job.left))


def pile_of(answer: Prediction, unsure: float, piles: dict[str, str]) -> str:
    """Return the name of the folder for a photo."""
    if answer.rejected:
        return UNKNOWN_PILE
    return UNSURE_PILE if answer.probabilities[0] < unsure else piles[answer.label]


def list_photos(folders: Sequence[str], into: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """Return the photos of folders except those below `into`, and files that are left out with the reason."""
    from amgc.data.image_files import list_files

    home = into.resolve()
    found: dict[str, Path] = {}
    left: list[tuple[str, str]] = []
    for given in map(Path, folders):
        if given.is_dir():
            if given.resolve() == home:
                raise UsageError(f"{str(given)!r} cannot be sorted into itself; choose another folder for --into.")
            listing = list_files(given)
            photos = [path for path in listing.images if not _below(path, home, given)]
            others = ((path, reason) for reason, paths in listing.left_out.items() for path in paths)
            left += [(str(path), reason) for path, reason in others if not _below(path, home, given)]
        elif given.exists():
            photos = [given]
        else:
            raise UsageError(f"there is no folder or photo {str(given)!r}.")
        found |= {os.path.abspath(photo): photo for photo in photos}  # each once
    return list(found.values()), left


def _below(path: Path, home: Path, given: Path) -> bool:
    """Return whether a file of the folder `given` is in the folder `home`, which is a part of `given`."""
    return home.is_relative_to(given.resolve()) and path.parent.resolve().is_relative_to(home)


# ---- names -----------------------------------------------------------------------------------------------------------------


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """Return the name of a folder for each class: the class's own name if it is valid and not `unknown` or `unsure`.

    Names differ also where upper and lower case are the same.

    >>> folder_names(["cat", "AC/DC", "AC_DC", "unknown", "Cat", "..", "con"])
    {'cat': 'cat', 'AC/DC': 'AC_DC-2', 'AC_DC': 'AC_DC', 'unknown': 'unknown-2', 'Cat': 'Cat-2', '..': '__', 'con': 'con_'}
    """
    taken = {UNKNOWN_PILE, UNSURE_PILE}
    names: dict[str, str] = {}
    for label in sorted(labels := list(labels), key=lambda label: safe_name(label) != label):  # valid names first
        safe = safe_name(label)
        number, name = 1, safe
        while name.casefold() in taken:
            number += 1
            name = f"{safe}-{number}"
        taken.add(name.casefold())
        names[label] = name
    return {label: names[label] for label in labels}


def safe_name(label: str) -> str:
    """Return a name that every file system accepts, as similar to the label as possible.

    >>> [safe_name(name) for name in ("кошка", "a/b:c", "../..", ".hidden", "end. ", "NUL.txt", "")]
    ['кошка', 'a_b_c', '_____', '_hidden', 'end__', 'NUL_.txt', '_']
    """
    name = re.sub(r'[<>:"/\\|?*]', "_", unicodedata.normalize("NFC", label))
    name = "".join("_" if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") else letter for letter in name)
    name = name.encode()[:LONGEST].decode(errors="ignore")
    start, end = len(name) - len(name.lstrip(". ")), len(name.rstrip(". "))
    name = "_" * len(name) if start >= end else "_" * start + name[start:end] + "_" * (len(name) - end)
    stem, dot, rest = name.partition(".")
    return f"{stem}_{dot}{rest}" if stem.casefold() in RESERVED else name or "_"
