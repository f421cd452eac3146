"""Files on this machine or at an address that fsspec reads (`s3://`, `gs://`, `memory://`): find, describe and open them."""

from __future__ import annotations

import glob
import importlib
import os
import re
from typing import Any, BinaryIO, cast

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
EXTRAS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "hf": "huggingface_hub"}  # what fsspec needs besides


def is_address(path: str) -> bool:
    return "://" in path


def file_system(path: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it. Raises ImportError that says what to install."""
    kind = path.partition("://")[0]
    try:
        fsspec = importlib.import_module("fsspec")
        found: tuple[Any, str] = fsspec.core.url_to_fs(path)
    except ImportError as error:
        needed = " ".join(["fsspec", *([EXTRAS[kind]] if kind in EXTRAS else [])])
        raise ImportError(f"reading {path!r} needs {needed}: pip install {needed} ({error}).") from error
    return found


def expand(pattern: str) -> list[str]:
    """Return the files of a pattern, sorted: `*` and `?` as in a shell, and ranges.

    >>> expand("memory://no/{008..010}.tar")
    ['memory://no/008.tar', 'memory://no/009.tar', 'memory://no/010.tar']
    """
    if found := RANGE.search(pattern):
        first, last = found.groups()
        numbers = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        return [path for number in numbers for path in expand(pattern[: found.start()] + number + pattern[found.end() :])]
    if not glob.has_magic(pattern):
        return [pattern]
    if not is_address(pattern):
        return sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
    system, inside = file_system(pattern)
    return sorted(str(system.unstrip_protocol(path)) for path in system.glob(inside))


def open_file(path: str) -> BinaryIO:
    """Open a file for reading."""
    if not is_address(path):
        return open(path, "rb")
    system, inside = file_system(path)
    return cast(BinaryIO, system.open(inside, "rb"))


def describe(path: str) -> tuple[int, str]:
    """Return the size of a file in bytes, and a text that changes when the file does."""
    if not is_address(path):
        status = os.stat(path)
        return status.st_size, f"{status.st_size} {status.st_mtime_ns}"
    system, inside = file_system(path)
    about = system.info(inside)
    changed = next((str(about[key]) for key in ("ETag", "etag", "mtime", "LastModified", "created") if about.get(key)), "")
    return int(about.get("size") or 0), f"{about.get('size')} {changed}"
