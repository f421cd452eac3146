"""The folder of a model: a manifest, and the files that it lists.

A change writes new files under new names, replaces the manifest atomically, then deletes files that the manifest no longer
lists. So a reader sees the model either before or after a change, even if the writer is killed. The manifest also lists the
files of the state before the last change, so that replacing the manifest undoes the change.
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
from amgc.core.accounting import check_settings
from amgc.locking import LOCK, FolderBusyError, locked
from amgc.options import decode

MANIFEST = "manifest.json"
KIND, VERSION = "amgc model", 1
CLASSES = "model classes"  # the kind of the file of the classes
OURS = re.compile(r"(extractor|classes)-\d+\.safetensors|\..*\.partial")  # files that belong to a model
ROLES = ("extractor", "classes")
VECTORS, FUNCTION = "vectors", "function"  # names of features without an extractor
MOST = 10_000_000  # features, and pixels of a side: more are damage
TRIES = 20  # attempts to read a folder that other processes keep changing
PATIENCE = 10.0  # seconds that a writer waits for the lock
T = TypeVar("T")


class ModelError(ValueError):
    """The model cannot do what was requested."""


class ModelBusyError(RuntimeError):
    """Another process is changing the model."""


@dataclass(frozen=True)
class Entry:
    """A file of the folder, as listed in the manifest."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class _Privacy:
    """The contents of `Manifest.made["privacy"]`: the settings of `amgc.core.privacy.Privacy` except the centre."""

    epsilon: float
    delta: float
    lessons: int
    clip: float | None
    directions: int


@dataclass(frozen=True)
class _Made:
    """What `Manifest.made` has at least."""

    by: str
    seed: int
    covariance: str | None
    classifier: dict[str, Any] | None = None
    privacy: _Privacy | None = None
    centre: tuple[float, ...] | None = None
    fewest: int = 1


@dataclass(frozen=True)
class _Features:
    """What `Manifest.features` has at least."""

    name: str
    options: dict[str, Any]
    given: str | None
    dim: int | None
    why: str | None = None


@dataclass(frozen=True)
class _Image:
    """The contents of `Manifest.image`."""

    size: int | None
    scale: int | None


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json.

    made : how the model was created: by which command, from what, with which settings.
    features : name and options of the extractor, and its number of features once it is known.
    image : "size" is the side of the cropped image, "scale" the length of the shorter side before cropping (None: the same).
    classes : number of images of each class, in the order in which classes were learned.
    files : by role, "extractor" and "classes".
    generation : number of changes.
    previous : the manifest before the last change, as JSON and without its own `previous`; None if nothing can be undone.
    """

    made: dict[str, Any]
    features: dict[str, Any]
    image: dict[str, int | None]
    classes: dict[str, int] = field(default_factory=dict)
    files: dict[str, Entry] = field(default_factory=dict)
    generation: int = 0
    created: str = ""
    changed: str = ""
    amgc: str = amgc.__version__
    previous: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the contents of manifest.json, the last of which is a checksum of the others."""
        content = {"kind": KIND, "version": VERSION, **asdict(self)}
        return content | {"checksum": _checksum(content)}

    @property
    def noun(self) -> str:
        """What the model learns from: "image", or "vector"."""
        return "vector" if self.features["name"] == VECTORS else "image"

    @property
    def private(self) -> bool:
        """Whether the model has a privacy budget."""
        return self.made.get("privacy") is not None

    @property
    def file_names(self) -> set[str]:
        """The files of this state and of the previous one."""
        before = (self.previous or {}).get("files", {}).values()
        return {entry.name for entry in self.files.values()} | {entry["name"] for entry in before}

    @classmethod
    def from_json(cls, path: Path, content: Any) -> Manifest:
        try:
            if not isinstance(content, dict) or content.get("kind") != KIND:
                raise files.FileFormatError(f"{str(path)!r} is not a model's manifest.")
            if content.get("version") != VERSION:
                version = content.get("version")
                raise files.FileFormatError(f"{str(path)!r} has version {version}; this amgc reads version {VERSION}.")
            found: Manifest = decode(cls, content)
            found.check()
            others = {name: value for name, value in content.items() if name != "checksum"}
            if content.get("checksum") not in (None, _checksum(others)):  # models of earlier versions have none
                raise ValueError("its checksum does not match.")
            if found.previous is not None:
                if found.previous.get("previous") is not None:
                    raise ValueError("it has more than one previous state.")
                cls.from_json(path, found.previous)  # raises an error now, not when it is needed
            return found
        except files.FileFormatError:
            raise
        except ValueError as error:
            raise files.FileFormatError(f"{str(path)!r} is damaged: {error} Restore it from a backup.") from error

    def check(self) -> None:
        """Raise ValueError, which names the field, if values have the wrong type or do not fit together."""
        made: _Made = decode(_Made, self.made, "made")
        _check_made(made)
        features: _Features = decode(_Features, self.features, "features")
        image: _Image = decode(_Image, self.image, "image")
        numbers = {"image.size": image.size, "image.scale": image.scale, "features.dim": features.dim}
        for name, number in numbers.items():
            if number is not None and not 1 <= number <= MOST:
                raise ValueError(f"{name} must be from 1 to {MOST:,}, not {number}.")
        if None not in (image.size, image.scale) and image.scale < image.size:  # type: ignore[operator]
            raise ValueError(f"image.scale must be at least image.size, {image.size}; not {image.scale}.")
        for name, number in self.classes.items():
            if number < 0:
                raise ValueError(f"classes.{name} must not be negative, but is {number}.")
        if self.generation < 0:
            raise ValueError(f"generation must not be negative, but is {self.generation}.")
        for role, entry in self.files.items():
            if role not in ROLES or not OURS.fullmatch(entry.name) or entry.name.startswith(".") or entry.bytes < 0:
                raise ValueError(f"files.{role} is {entry.name!r} with {entry.bytes} bytes, which is not a file of a model.")
        if ("classes" in self.files) != bool(self.classes):
            raise ValueError("classes and files.classes must both be there, or neither.")
        if "classes" in self.files and ("extractor" in self.files) == (features.name in (VECTORS, FUNCTION)):
            raise ValueError(f"files.extractor does not fit features.name, {features.name!r}.")


def _check_made(made: _Made) -> None:
    """Raise ValueError if the settings of privacy are invalid, or not those of the classifier."""
    if made.fewest < 1:
        raise ValueError(f"made.fewest must be at least 1, not {made.fewest}.")
    settings = asdict(made.privacy) if made.privacy else {"epsilon": None}
    if made.privacy is not None:
        try:
            check_settings(**settings)
        except ValueError as error:
            raise ValueError(f"made.privacy does not fit: {error}") from error
    if made.classifier is not None:
        decode(tuple[float, ...] | None, made.classifier.get("centre"), "made.classifier.centre")
        for name, value in settings.items():
            if made.classifier.get(name) != value:
                raise ValueError(f"made.classifier.{name} must be that of made.privacy, {value!r}.")


class Folder:
    """Read and change a model's folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        return (self.path / MANIFEST).is_file()

    def check_free(self) -> None:
        """Raise an error if no model can be created here. Files of an interrupted creation are ignored."""
        path = str(self.path)
        if self.exists:
            raise FileExistsError(f"{path!r} already contains a model; open it or choose another folder.")
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"{path!r} is a file; choose a folder for the model.")
        if self.path.is_dir() and any(not (p.name.startswith(".") or OURS.fullmatch(p.name)) for p in self.path.iterdir()):
            raise FileExistsError(f"{path!r} is not empty and has no {MANIFEST}; choose another folder for the model.")

    def manifest(self) -> Manifest:
        """Read the manifest."""
        path = self.path / MANIFEST
        try:
            return Manifest.from_json(path, files.read_json(path))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there is no model in {str(self.path)!r}: it has no {MANIFEST}. Create one with `amgc learn` or Model.create."
            ) from None

    def read(self, read: Callable[[Manifest], T]) -> T:
        """Return `read(manifest)`. Try again if a file disappears because another process has changed the model."""
        manifest = self.manifest()
        for _ in range(TRIES):
            try:
                return read(manifest)
            except FileNotFoundError as error:
                before, manifest = manifest, self.manifest()
                if manifest.generation == before.generation:
                    raise files.FileFormatError(f"the model in {str(self.path)!r} is incomplete: {error}") from error
        raise ModelBusyError(f"the model in {str(self.path)!r} changes faster than it can be read; try again.")

    def checked(self, entry: Entry) -> Path:
        """Return the path of a file after verifying its checksum."""
        path = self.path / entry.name
        if not OURS.fullmatch(entry.name):
            raise files.FileFormatError(f"the manifest of {str(self.path)!r} names {entry.name!r}, which is not a model file.")
        files.check_regular(path)
        if path.stat().st_size != entry.bytes or digest(path) != entry.sha256:
            raise files.FileFormatError(f"{str(path)!r} is damaged: its checksum does not match. Restore it from a backup.")
        return path

    def change(self, manifest: Manifest, writers: Mapping[str, Callable[[Path], None]], undoable: bool) -> Manifest:
        """Write the files of some roles, then the manifest, which is returned. Call with the lock held.

        undoable : whether to store the state before the change, for `undo`. A private model never does: undoing would refund
            the budget.
        """
        generation, entries = manifest.generation + 1, dict(manifest.files)
        stored = self.exists and undoable and not manifest.private
        before = replace(self.manifest(), previous=None).to_json() if stored else None
        try:
            for role, write in writers.items():
                path = self.path / f"{role}-{generation:06d}.safetensors"
                write(path)
                entries[role] = Entry(path.name, digest(path), path.stat().st_size)
            return self._replace(replace(manifest, files=entries, generation=generation, previous=before))
        finally:  # after an error, the old manifest is still the valid one
            self.tidy()

    def undo(self) -> None:
        """Restore the state before the last change. Call with the lock held.

        The generation still increases, so that readers notice the change and no file name is used twice.
        """
        now = self.manifest()
        if now.private:
            raise ModelError("a private model cannot be undone: it stores no earlier state, so that no budget is refunded.")
        if now.previous is None:
            raise ModelError(
                "there is no change to undo: a model stores only the state before the last change, and none after `forget`."
            )
        before = Manifest.from_json(self.path / MANIFEST, now.previous)
        for entry in before.files.values():
            self.checked(entry)  # raises an error if a file is damaged
        self._replace(replace(before, generation=now.generation + 1))
        self.tidy()

    def drop_previous(self) -> None:
        """Delete the state before the last change. The change then cannot be undone. Call with the lock held."""
        self._replace(replace(self.manifest(), previous=None))
        self.tidy()

    def _replace(self, manifest: Manifest) -> Manifest:
        """Write the manifest, with the current time, and return it."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        written = replace(manifest, created=manifest.created or now, changed=now, amgc=amgc.__version__)
        files.write_json(self.path / MANIFEST, written.to_json())
        return written

    def remove(self) -> None:
        """Delete the model. Call with the lock held. The manifest is deleted first, so a partial deletion leaves no model."""
        (self.path / MANIFEST).unlink(missing_ok=True)
        self.tidy()
        with suppress(OSError):  # the folder is not empty, or Windows refuses to delete a lock that is held
            (self.path / LOCK).unlink(missing_ok=True)
            self.path.rmdir()

    def tidy(self) -> None:
        """Delete files that the manifest does not list: those of earlier states and of interrupted changes."""
        with suppress(OSError, files.FileFormatError):  # the next change tries again
            named = self.manifest().file_names if self.exists else set()
            for path in self.path.iterdir():
                if OURS.fullmatch(path.name) and path.name not in named:
                    path.unlink(missing_ok=True)

    @contextmanager
    def lock(self, patience: float = PATIENCE) -> Iterator[None]:
        """Hold the folder's lock. Only writers take it; readers do not wait."""
        try:
            with locked(self.path, patience):
                yield
        except FolderBusyError as error:
            raise ModelBusyError(f"the model in {str(self.path)!r} is being changed by {error}; try again later.") from None


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        found = hashlib.sha256()
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()
