"""Copy, move or link files into folders, with a journal for `undo`. No file is overwritten or lost.

Each operation is first written to the journal and flushed to the disk, then executed. A process that is killed therefore leaves
at most one unfinished operation, that of the last line. The next call finishes or ignores it.

A name is claimed by creating an empty file, which fails if the name is taken. A file that moves within a file system then
replaces its claim in one step, so it is at one of the two places at any moment. Between file systems it is copied under a
temporary name, flushed, put in place, compared, and then deleted at the old place: a kill in between leaves it at both.
"""

from __future__ import annotations

import errno
import filecmp
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO, Literal

from amgc import files
from amgc.locking import LOCK, FolderBusyError, locked

JOURNAL = "amgc-sort.jsonl"
How = Literal["copy", "move", "link"]
PARTIAL = (".amgc-", ".partial")  # first and last part of the name of a copy that is not finished


@dataclass(frozen=True)
class Entry:
    """A line of the journal: a file of `size` bytes is about to get from `source` to `target`, both absolute paths."""

    how: How
    source: str
    target: str
    size: int


@dataclass(frozen=True)
class Sort:
    """The operations of one call, in order, and the folders that it created. ended : whether the call was completed."""

    entries: list[Entry] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True)
class Undone:
    """The result of `undo`: the number of files put back, and files that were not, each with the reason."""

    files: int
    kept: list[tuple[str, str]]


class Mover:
    """Put files into sub-folders of a folder, as a context: the folder is locked and the journal open within it."""

    def __init__(self, folder: Path, how: How) -> None:
        self.folder, self.how = Path(os.path.abspath(folder)), how
        self._journal: BinaryIO | None = None
        self._open = ExitStack()

    def __enter__(self) -> Mover:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._open.enter_context(_locked(self.folder))
        try:
            if sorts := read_journal(self.folder):
                finish(sorts[-1])
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with self._open:
            if error is None and self._journal is not None:
                self._note({"end": True})

    def put(self, source: Path, pile: str) -> Path | None:
        """Put a file into the sub-folder `pile`, under its name or a numbered one. Returns the path, or None if it is there.

        A copy or link is there if a file of that name has the same content or links to it.
        """
        source = Path(os.path.abspath(source))
        if self.how == "move" and source.is_symlink():
            raise LinkError(errno.EINVAL, "it is a link, which may not work at another place; copy or link it", str(source))
        size = source.stat().st_size
        home = self.folder / pile
        if not home.is_dir():
            self._note({"made": pile})
            home.mkdir()
        for name in numbered(source.name):
            target = home / name
            if os.path.lexists(target):
                if is_there(self.how, source, target):
                    return None
                continue
            self._note({"how": self.how, "from": str(source), "to": f"{pile}/{name}", "size": size})
            try:
                transfer(self.how, source, target)
                return target
            except FileExistsError:  # another program was faster
                self._note({"taken": f"{pile}/{name}"})
        raise AssertionError("names are numbered without end")

    def _note(self, line: dict[str, Any]) -> None:
        """Append a line to the journal, on the disk."""
        if self._journal is None:
            files.check_own(self.folder / JOURNAL)
            self._journal = self._open.enter_context((self.folder / JOURNAL).open("ab"))
            self._note({"sort": datetime.now(timezone.utc).isoformat(timespec="seconds")})
        self._journal.write(json.dumps(line).encode() + b"\n")  # names that are not UTF-8 are escaped
        self._journal.flush()
        os.fsync(self._journal.fileno())


class LinkError(OSError):
    """A symbolic link cannot be moved."""


def numbered(name: str) -> Iterator[str]:
    """Yield a file name and its numbered variants.

    >>> names = numbered("cat.jpg")
    >>> next(names), next(names), next(names)
    ('cat.jpg', 'cat-2.jpg', 'cat-3.jpg')
    """
    yield name
    stem, suffix = os.path.splitext(name)
    yield from (f"{stem}-{number}{suffix}" for number in itertools.count(2))


def is_there(how: How, source: Path, target: Path) -> bool:
    """Return whether the target is the source, also through a linked folder, or a copy of it, or a link to it."""
    if source.name == target.name and os.path.samefile(source.parent, target.parent):
        return True
    if how == "link":
        return target.is_symlink() and os.readlink(target) == str(source)
    return how == "copy" and target.is_file() and filecmp.cmp(source, target, shallow=False)


def transfer(how: How, source: Path, target: Path) -> None:
    """Copy, move or link a file. Raises FileExistsError if the target exists."""
    if how == "link":
        os.symlink(source, target)
        return
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # claim the name
    try:
        if how == "move":
            try:
                os.replace(source, target)
                return
            except OSError as error:
                if error.errno != errno.EXDEV:  # else they are on different file systems
                    raise
        _copy(source, target)
        if how == "move":
            if not filecmp.cmp(source, target, shallow=False):
                raise OSError(errno.EIO, "the copy differs from the file, which stays where it is", str(target))
            os.unlink(source)
    except BaseException:
        with suppress(OSError):
            if os.path.getsize(target) == 0:
                os.unlink(target)
        raise


def _copy(source: Path, target: Path) -> None:
    """Replace the claim `target` by a copy that has been flushed to the disk."""
    handle, name = tempfile.mkstemp(PARTIAL[1], PARTIAL[0], target.parent)
    try:
        with open(handle, "wb") as copied, open(source, "rb") as file:
            shutil.copyfileobj(file, copied)
            copied.flush()
            os.fsync(copied.fileno())
        with suppress(OSError):  # times and permissions, where the file system has them
            shutil.copystat(source, name)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    if os.name == "posix":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# ---- the journal -----------------------------------------------------------------------------------------------------------


def read_journal(folder: Path) -> list[Sort]:
    """Return what was sorted into a folder, the last call last. An unfinished last line is cut off."""
    path = folder / JOURNAL
    if not path.exists():
        return []
    content = files.read_bytes(path, files.MOST_JSON)
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:  # killed while it wrote: nothing was done yet
        os.truncate(path, len(whole))
    sorts: list[Sort] = []
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            line = files.parse_json(text)
            if "sort" in line:
                sorts.append(Sort())
            elif "end" in line:
                sorts[-1] = replace(sorts[-1], ended=True)
            elif "made" in line:
                sorts[-1].folders.append(_inside(folder, line["made"]))
            elif "taken" in line:
                sorts[-1].entries.pop()
            else:
                entry = Entry(line["how"], line["from"], _inside(folder, line["to"]), int(line["size"]))
                if entry.how not in ("copy", "move", "link") or not os.path.isabs(entry.source):
                    raise ValueError(text)
                sorts[-1].entries.append(entry)
        except files.MISFITS as error:
            raise files.FileFormatError(f"line {number} of {str(path)!r} is damaged; restore it from a backup.") from error
    return sorts


def _inside(folder: Path, name: str) -> str:
    """Return the path of a name in the journal, which may not lead out of the folder, not even by a link."""
    path = os.path.join(os.path.abspath(folder), name)
    if os.path.isabs(name) or ".." in Path(name).parts or os.path.islink(os.path.dirname(path)):
        raise ValueError(name)
    return path


def finish(sort: Sort) -> None:
    """Finish or remove what a killed call has left of its last operation."""
    if sort.ended or not sort.entries:
        return
    entry = sort.entries[-1]
    remove_partial(os.path.dirname(entry.target))
    if os.path.islink(entry.target) or not os.path.isfile(entry.target) or not os.path.isfile(entry.source):
        return
    if not _is_photo(entry.source):
        return
    if _is_claim(entry.target, entry):
        os.unlink(entry.target)
    elif entry.how == "move" and filecmp.cmp(entry.source, entry.target, shallow=False):  # between file systems
        os.unlink(entry.source)


def remove_partial(folder: str) -> None:
    """Remove unfinished copies from a folder."""
    for path in Path(folder).glob(f"{PARTIAL[0]}*{PARTIAL[1]}"):
        path.unlink(missing_ok=True)


def _is_claim(path: str, entry: Entry) -> bool:
    """Return whether the file at the path is only a claimed name: it is empty, and the file that would follow is not."""
    return os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) == 0 < entry.size


def undo(folder: Path) -> Undone:
    """Undo the last sort into a folder. If it is interrupted, the next call continues."""
    if not (folder / JOURNAL).exists():
        raise FileNotFoundError(f"there is no {JOURNAL} in {str(folder)!r}, so nothing was sorted into it.")
    with _locked(folder):
        *earlier, last = read_journal(folder) or [Sort()]
        done, kept = 0, []
        for entry in reversed(last.entries):
            reason = _undo(entry)
            done += reason is None
            if reason:
                kept.append((entry.target, reason))
        for made in reversed(last.folders):
            with suppress(OSError):  # it is not empty, or gone
                os.rmdir(made)
        _forget_last(folder, earlier)
    with suppress(OSError):  # other files are in it
        if not earlier and {path.name for path in folder.iterdir()} <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
    return Undone(done, kept)


def _undo(entry: Entry) -> str | None:
    """Undo one operation. Returns None, "" if there was nothing to undo, or why it was not."""
    source, target = entry.source, entry.target
    if entry.how == "move" and not _is_photo(source):
        return f"{source} is not the name of an image, and the journal may come from anyone; move it back yourself"
    remove_partial(os.path.dirname(target))
    if entry.how == "move":
        remove_partial(os.path.dirname(source))
    if _is_claim(target, entry) and os.path.lexists(source):
        os.unlink(target)
    if not os.path.lexists(target):
        return "" if os.path.lexists(source) else "it is gone: moved or deleted since"
    if entry.how == "link":
        if not os.path.islink(target) or os.readlink(target) != source:
            return "it is no longer the link that was made"
        os.unlink(target)
        return None
    if _is_claim(source, entry):  # left by an interrupted undo; an empty file is not a photo
        os.unlink(source)
    exists = os.path.isfile(source)
    if exists and filecmp.cmp(source, target, shallow=False):
        os.unlink(target)
        return None
    if entry.how == "copy":
        return f"it differs from {source}" if exists else f"the original {source} is gone, so this is the only copy"
    if os.path.lexists(source):
        return f"there is another file {source} now"
    os.makedirs(os.path.dirname(source), exist_ok=True)
    transfer("move", Path(target), Path(source))
    return None


def _is_photo(path: str) -> bool:
    """Return whether a file has the name of an image. Otherwise, a manipulated journal could put a program anywhere."""
    from PIL import Image

    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1].lower()
    return not name.startswith(".") and (suffix in Image.registered_extensions() or suffix in (".heic", ".heif", ".hif"))


def _forget_last(folder: Path, earlier: Sequence[Sort]) -> None:
    """Remove the last call from the journal."""
    path = folder / JOURNAL
    if not earlier:
        path.unlink()
        return
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "sort" in json.loads(line))
    with files.atomic(path) as temporary:
        temporary.write_bytes(b"".join(lines[:last]))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        with locked(folder):
            yield
    except FolderBusyError as error:
        raise FileExistsError(f"{str(folder)!r} is being filled by {error}; try again later.") from None
