"""Write files atomically, and read and write JSON. Does not import torch or numpy."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from amgc.text import byte_size

MOST_JSON = 256 << 20  # bytes of a JSON file: 1,000 times those of a large run


class FileFormatError(ValueError):
    """The file is damaged, of another kind, or of a newer version."""


# Raised when contents do not fit together.
MISFITS = (
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,
    IndexError,
    AttributeError,
    ArithmeticError,
)


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
            f"there is no folder {os.fspath(target.parent)!r} to write {target.name!r} into; create it first."
        )
    if target.exists() and not target.is_symlink() and not target.is_file():
        raise FileExistsError(f"{os.fspath(target)!r} is not a regular file and is not replaced; choose another name.")
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


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raise FileFormatError for anything else."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size <= most else b""  # room for that much is reserved
    if max(size, len(content)) > most:
        raise FileFormatError(f"{os.fspath(path)!r} is larger than {byte_size(most)}; it is not a file of amgc, or damaged.")
    return content


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; raise FileFormatError for anything else.

    A pipe or a device in the place of a file would be read forever. It is opened without waiting for a writer.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = open(handle, "rb")  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise FileFormatError(f"{os.fspath(path)!r} is not a regular file; remove it.")
    return file


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise FileFormatError if something is at `path` that is not a regular file, for readers that open it themselves."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileFormatError(f"{os.fspath(path)!r} is not a regular file; remove it.")


def check_own(path: Path) -> None:
    """Raise FileFormatError if `path` is a link, a pipe or a device, which would redirect what is written to it.

    A folder may come from anyone. Files that are replaced atomically need no check: the link itself is replaced.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise FileFormatError(f"{os.fspath(path)!r} is not a regular file, so nothing is written to it; remove it.")


def parse_json(content: bytes | str, *, finite: bool = False) -> Any:
    """Return the value of a JSON text; raise ValueError if it is invalid. `finite` rejects NaN and infinity."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
        return json.loads(text, parse_constant=_reject, parse_float=_finite) if finite else json.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def read_json(path: str | os.PathLike[str], *, finite: bool = False) -> Any:
    """Return the value of a JSON file; raise FileFormatError if it is not a regular file of JSON."""
    content = read_bytes(path, MOST_JSON)
    try:
        return parse_json(content, finite=finite)
    except ValueError as error:
        raise FileFormatError(f"{os.fspath(path)!r} is damaged ({error}); restore it from a copy.") from error


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")


def _finite(text: str) -> float:
    """Return a number; 1e400 is as infinite as Infinity."""
    value = float(text)
    return value if math.isfinite(value) else _reject(text)


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
