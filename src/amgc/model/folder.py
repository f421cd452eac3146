"""A model's folder: a manifest that names the current files, and those files.

The manifest is replaced in one step, after the files that it names have been written under new names and before the old ones
are removed. Whoever opens the folder finds what was there before a change or after it, at whatever moment a writer was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import amgc
from amgc import files
from amgc.locking import LOCK, FolderBusyError, locked

MANIFEST = "manifest.json"
KIND, VERSION = "amgc model", 1
OURS = re.compile(r"(extractor|classes)-\d+\.safetensors|\..*\.partial")  # what may be removed when nothing names it
TRIES = 20  # readings of a folder that others change all the while
PATIENCE = 10.0  # seconds that a writer waits for another
T = TypeVar("T")


class ModelBusyError(RuntimeError):
    """Another process is changing the model."""


@dataclass(frozen=True)
class Entry:
    """A file of the folder."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says. `generation` counts the changes; `files` are by role: "extractor", "classes"."""

    made: dict[str, Any]  # by what, from what, with which settings
    features: dict[str, Any]  # the extractor as it was asked for, and its number of features once that is known
    image: dict[str, int | None]  # channels, the side that pictures are cut to, and the one that they are scaled to first
    classes: dict[str, int] = field(default_factory=dict)  # in order of arrival; how many images each was learned from
    files: dict[str, Entry] = field(default_factory=dict)
    generation: int = 0
    created: str = ""
    changed: str = ""
    amgc: str = amgc.__version__

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, path: Path, content: Any) -> Manifest:
        try:
            if content["kind"] != KIND:
                raise files.FileFormatError(f"{str(path)!r} is not the manifest of a model.")
            if content["version"] != VERSION:
                raise files.FileFormatError(
                    f"{str(path)!r} has version {content['version']}; this amgc reads version {VERSION}."
                )
            values = {name: content[name] for name in cls.__dataclass_fields__}
            values["files"] = {role: Entry(**entry) for role, entry in values["files"].items()}
            return cls(**values)
        except files.FileFormatError:
            raise
        except files.MISFITS as error:
            raise files.misfit(path, error) from error


class Folder:
    """Reading and changing a model's folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        return (self.path / MANIFEST).is_file()

    def foreign(self) -> bool:
        """Whether there is anything that no model, nor one whose making was cut short, would leave there."""
        return any(not (one.name.startswith(".") or OURS.fullmatch(one.name)) for one in self.path.iterdir())

    def manifest(self) -> Manifest:
        """As it is now."""
        path = self.path / MANIFEST
        try:
            return Manifest.from_json(path, json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there is no model in {str(self.path)!r}: it has no {MANIFEST}. `amgc learn` or Model.create makes one."
            ) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise files.FileFormatError(f"{str(path)!r} is damaged ({error}); restore it from a copy.") from error

    def read(self, read: Callable[[Manifest], T]) -> T:
        """`read` of the manifest, and again of the next one if a file went away because the model was changed meanwhile."""
        manifest = self.manifest()
        for _ in range(TRIES):
            try:
                return read(manifest)
            except FileNotFoundError as error:
                before, manifest = manifest, self.manifest()
                if manifest.generation == before.generation:
                    raise files.FileFormatError(f"the model in {str(self.path)!r} lacks a file: {error}") from error
        raise ModelBusyError(f"the model in {str(self.path)!r} is changed faster than it can be read; try again.")

    def checked(self, entry: Entry) -> Path:
        """The path of a file whose checksum is the manifest's."""
        path = self.path / entry.name
        if not OURS.fullmatch(entry.name):
            raise files.FileFormatError(
                f"the manifest of {str(self.path)!r} names {entry.name!r}, which is no file of a model."
            )
        if digest(path) != entry.sha256:
            raise files.FileFormatError(f"{str(path)!r} is damaged: its checksum does not match. Restore it from a copy.")
        return path

    def change(self, manifest: Manifest, writers: Mapping[str, Callable[[Path], None]]) -> Manifest:
        """Write the files of some roles, then the manifest; only for who holds the lock. Returns the manifest as written."""
        generation, now = manifest.generation + 1, datetime.now(timezone.utc).isoformat(timespec="seconds")
        entries = dict(manifest.files)
        written = manifest
        try:
            for role, write in writers.items():
                path = self.path / f"{role}-{generation:06d}.safetensors"
                write(path)
                entries[role] = Entry(path.name, digest(path), path.stat().st_size)
            written = replace(
                manifest,
                files=entries,
                generation=generation,
                created=manifest.created or now,
                changed=now,
                amgc=amgc.__version__,
            )
            with files.atomic(self.path / MANIFEST) as temporary:
                text = json.dumps(written.to_json(), indent=1, ensure_ascii=False)
                temporary.write_text(text, encoding="utf-8")
        finally:  # of what is on the disk now: the old manifest may still be the one that counts
            self.tidy()
        return written

    def remove(self) -> None:
        """All of the model; only for who holds the lock. First what makes it one."""
        (self.path / MANIFEST).unlink(missing_ok=True)
        self.tidy()
        with suppress(OSError):  # there is something else in it; Windows does not remove a lock that is held
            (self.path / LOCK).unlink(missing_ok=True)
            self.path.rmdir()

    def tidy(self) -> None:
        """Remove what nothing names: files of before, or of a writer that did not get to its end."""
        with suppress(OSError, files.FileFormatError):  # the next change tries again
            named = {entry.name for entry in self.manifest().files.values()} if self.exists else set()
            for path in self.path.iterdir():
                if OURS.fullmatch(path.name) and path.name not in named:
                    path.unlink(missing_ok=True)

    @contextmanager
    def lock(self, patience: float = PATIENCE) -> Iterator[None]:
        """One writer at a time; readers do not wait."""
        try:
            with locked(self.path, patience):
                yield
        except FolderBusyError as error:
            raise ModelBusyError(
                f"the model in {str(self.path)!r} is being changed by {error}; try again when that is done."
            ) from None


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        found = hashlib.sha256()
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()
