"""Files on this machine or at an address that fsspec reads (`s3://`, `gs://`, `memory://`): find, describe and open them."""

from __future__ import annotations

import glob
import importlib
import os
import re
import zipfile
from typing import Any, BinaryIO, cast

from amgc import files
from amgc.text import byte_size

LARGE, RATIO = 500_000_000, 100  # unpacked bytes, and times the size of the file: more is a decompression bomb
MOST_FILES = 1_000_000  # of a range
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
        if int(last) - int(first) >= MOST_FILES:
            raise ValueError(f"{pattern!r} names more than {MOST_FILES:,} files; give a shorter range.")
        numbers = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        return [path for number in numbers for path in expand(pattern[: found.start()] + number + pattern[found.end() :])]
    if not glob.has_magic(pattern):
        return [pattern]
    if not is_address(pattern):
        return sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
    system, inside = file_system(pattern)
    return sorted(str(system.unstrip_protocol(path)) for path in system.glob(inside))


def open_file(path: str) -> BinaryIO:
    """Open a file for reading. Raises FileFormatError for a pipe or a device on this machine."""
    local = path.removeprefix("file://")
    if not is_address(local):
        return files.open_regular(local)
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


def check_unpacked(packed: int, unpacked: int) -> None:
    """Raise ValueError if a small file unpacks to gigabytes."""
    if unpacked > LARGE and unpacked > RATIO * packed:
        raise ValueError(
            f"it has {byte_size(packed)} and would unpack to {byte_size(unpacked)}, which no images or features do; save "
            "such arrays without compression"
        )


def check_zip(path: str | os.PathLike[str]) -> None:
    """Raise ValueError if a small zip file unpacks to gigabytes. zipfile reads no more than the sizes that it lists."""
    with zipfile.ZipFile(path) as archive:
        check_unpacked(os.path.getsize(path), sum(member.file_size for member in archive.infolist()))
