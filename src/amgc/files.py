"""Write files atomically, and read and write JSON. Free of torch and numpy."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class FileFormatError(ValueError):
    """The file is damaged, of another kind, or of a newer version."""


MISFITS = (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError)  # raised when contents do not fit


def misfit(path: str | os.PathLike[str], error: Exception) -> FileFormatError:
    """Return the error for a file whose checksum is right but whose contents do not fit together."""
    return FileFormatError(f"the contents of {os.fspath(path)!r} do not fit together ({error!r}).")


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` when the block ends, or is removed if the block fails.

    The new file is flushed to disk and has ordinary permissions. An interruption leaves the old file or the new one.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {os.fspath(target.parent)!r} to write {target.name!r} into; make it first."
        )
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".partial")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp creates private files
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_partial(folder: Path) -> None:
    """Remove the temporary files that a killed process left in `folder`."""
    for leftover in folder.glob(".*.partial"):
        leftover.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write JSON atomically, indented for people to read."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False))


def plain_json(value: Any) -> Any:
    """Return the value as JSON would return it: tuples become lists, numpy's numbers Python's."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    """Convert numpy's numbers and arrays for JSON."""
    if type(value).__module__ == "numpy":
        return value.tolist()
    raise TypeError(f"{value!r} cannot be written to a file; only numbers, strings and lists of them can.")
