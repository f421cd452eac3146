"""The state of a model before its last change, for undo.

It is kept outside of the model's folder, for the user who made the change, so that a copy of the folder has one state only.
The manifest names its record by a random token. Records that are older than a week are deleted with the next change.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from amgc import files

TOKEN = re.compile(r"[0-9a-f]{32}")
WEEK = 7 * 24 * 3600  # seconds
MANIFEST = "manifest.json"  # in a record; written last


def place() -> Path:
    """Return the folder of the records: `undo` in $AMGC_STATE, else in `amgc` in $XDG_STATE_HOME or ~/.local/state."""
    if own := os.environ.get("AMGC_STATE"):
        return Path(own, "undo")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "amgc", "undo")


def is_kept(token: str) -> bool:
    """Return whether there is a record."""
    with suppress(OSError, RuntimeError):  # no home
        return bool(token) and (place() / token / MANIFEST).is_file()
    return False


def keep(token: str, manifest: dict[str, Any], names: list[str], folder: Path) -> None:
    """Move files from a model's folder to a new record. If that is not possible, the change cannot be undone."""
    with suppress(OSError, RuntimeError):
        record = place() / token
        record.mkdir(mode=0o700, parents=True)
        for name in names:
            shutil.move(folder / name, record / name)
        files.write_json(record / MANIFEST, manifest)
        for other in record.parent.iterdir():
            if TOKEN.fullmatch(other.name) and other.stat().st_mtime < time.time() - WEEK:
                drop(other.name)


def read(token: str) -> Any:
    """Return the manifest of a record."""
    return files.read_json(place() / token / MANIFEST)


def fetch(token: str, name: str, folder: Path) -> None:
    """Copy a file of a record to a model's folder."""
    with files.open_regular(place() / token / name) as source, (folder / name).open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def drop(token: str) -> None:
    """Delete a record."""
    if TOKEN.fullmatch(token):
        with suppress(RuntimeError):
            shutil.rmtree(place() / token, ignore_errors=True)
