"""Create expensive files once, even if pytest runs in several processes: the first creates them, the others wait."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of that name, filled by `make`. Tests must not change its contents."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # what all processes share
    folder, made = root / name, root / f"{name}.made"
    with FileLock(root / f"{name}.lock"):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # another has tried, and failed
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
