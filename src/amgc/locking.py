"""Lock a folder, so that only one process at a time changes a run or a model."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

from amgc.files import check_own

LOCK = ".lock"
UNKNOWN = "an unknown process"


class FolderBusyError(RuntimeError):
    """Another process holds the folder's lock; the message says which one, if known."""


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of `folder`; wait at most `patience` seconds for it.

    The operating system releases the lock when the process ends, even if it crashes. The file stays and names the last holder.
    """
    path = folder / LOCK
    check_own(path)
    lock = FileLock(path, mode=0o666)
    try:
        lock.acquire(timeout=patience, poll_interval=0.05)
    except Timeout:
        raise FolderBusyError(_holder(path)) from None
    try:
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with suppress(OSError):  # a full disk
            path.write_text(f"process {os.getpid()} on {socket.gethostname()} (since {when})", encoding="utf-8")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace") or UNKNOWN
    return UNKNOWN
