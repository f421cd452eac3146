"""One process at a time changes a folder: a run or a model."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
UNKNOWN = "a process that has not said its name"


class FolderBusyError(RuntimeError):
    """Another process holds the folder's lock; the message says which one, where that is known."""


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of `folder`; wait for it for `patience` seconds at most.

    The operating system releases the lock when the process ends, however it ends. The file stays, and names the holder.
    """
    path = folder / LOCK
    lock = FileLock(path, mode=0o666)
    try:
        lock.acquire(timeout=patience, poll_interval=0.05)
    except Timeout:
        raise FolderBusyError(_holder(path)) from None
    try:
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with suppress(OSError):  # a full disk; on Windows, where nobody else may read a locked file either
            path.write_text(f"process {os.getpid()} on {socket.gethostname()} (since {when})", encoding="utf-8")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace") or UNKNOWN
    return UNKNOWN
