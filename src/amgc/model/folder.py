"""The folder of a model: a manifest, and the files that it lists. It can be packed into one zip file.

Importing this module does not import torch, so `amgc forget`, `rename` and `undo` need not wait for it.

A change writes new files under new names, replaces the manifest atomically, then deletes files that the manifest no longer
lists. So a reader sees the model either before or after a change, even if the writer is killed. The state before the last
change is kept elsewhere (`amgc.model.earlier`), so that a copy of the folder does not contain it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias, TypeVar

import amgc
from amgc import files, tensor_files
from amgc.core import packed
from amgc.locking import LOCK, FolderBusyError, locked
from amgc.model import earlier
from amgc.model.manifest import CLASSES, MANIFEST, OURS, Entry, Manifest
from amgc.text import byte_size, listing

TRIES = 20  # attempts to read a folder that other processes keep changing
PATIENCE = 10.0  # seconds that a writer waits for the lock
# Of zip files:
MOST_BYTES = 1 << 31  # of an unpacked model
MAX_FILES = 8  # a model has at most three
MAX_ENTRIES = 1000  # signatures of entries; weights contain some by accident. A million entries take gigabytes to list.
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
UNREADABLE = (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error)
T = TypeVar("T")
Edit: TypeAlias = Callable[[packed.Header, packed.Arrays], tuple[packed.Header, packed.Arrays]]


class ModelError(ValueError):
    """The model cannot do what was requested."""


class ModelBusyError(RuntimeError):
    """Another process is changing the model."""


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

    def prepare(self) -> None:
        """Create the folder of a new model. Raise an error if no model can be created here."""
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)

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
        """Return `read(manifest)`. Retry if a file disappears because another process has changed the model."""
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

        undoable : whether to keep the state before the change, for `undo`. That of a private model is never kept: undoing would
            refund the budget.
        """
        generation, entries = manifest.generation + 1, dict(manifest.files)
        before = self.manifest() if self.exists else None
        token = secrets.token_hex(16) if before and undoable and not manifest.private else ""
        try:
            for role, write in writers.items():
                path = self.path / f"{role}-{generation:06d}.safetensors"
                write(path)
                entries[role] = Entry(path.name, digest(path), path.stat().st_size)
            if before and not token:  # before the change, so that no state stays behind if the process is killed
                earlier.drop(before.undo)
            changed = self._replace(replace(manifest, files=entries, generation=generation, undo=token))
            if before and token:
                old = {entry.name for entry in before.files.values()} - {entry.name for entry in entries.values()}
                earlier.keep(token, replace(before, undo="").to_json(), sorted(old), self.path)
                earlier.drop(before.undo)
            return changed
        finally:  # after an error, the old manifest is still the valid one
            self.tidy()

    def undo(self) -> None:
        """Restore the state before the last change. Call with the lock held.

        The generation still increases, so that readers notice the change and no file name is used twice.
        """
        now = self.manifest()
        if now.private:
            raise ModelError("a private model cannot be undone: it stores no earlier state, so that no budget is refunded.")
        if not earlier.is_kept(now.undo):
            raise ModelError(
                "there is no change to undo: only the state before the last change is kept, for a week, outside of the folder, "
                "for the user who made the change, and none after `forget`."
            )
        try:
            before = Manifest.from_json(earlier.place() / now.undo / MANIFEST, earlier.read(now.undo))
            for entry in before.files.values():
                if entry.name not in {kept.name for kept in now.files.values()}:
                    earlier.fetch(now.undo, entry.name, self.path)
                self.checked(entry)  # raises an error if a file is damaged
            self._replace(replace(before, generation=now.generation + 1, undo=""))
            earlier.drop(now.undo)
        finally:
            self.tidy()

    def drop_previous(self) -> None:
        """Delete the state before the last change. The change then cannot be undone. Call with the lock held."""
        now = self.manifest()
        earlier.drop(now.undo)
        self._replace(replace(now, undo=""))
        self.tidy()

    def forget(self, label: str) -> Manifest:
        """Delete a class, and every earlier state. Call with the lock held. Returns the new manifest.

        The new file has no classifier: it follows from the statistics, and is solved and stored when the model is next opened.
        """
        manifest = self.manifest()
        check_known(manifest, label)
        assert not manifest.private, "its statistics follow from noisy sums: `Model.forget` computes them"
        left = {name: count for name, count in manifest.classes.items() if name != label}
        if not left:
            kept = {role: entry for role, entry in manifest.files.items() if role != "classes"}
            return self.change(replace(manifest, classes={}, files=kept), {}, undoable=False)
        return self._edit(manifest, left, lambda header, arrays: packed.forget(header, arrays, label), undoable=False)

    def rename(self, label: str, new: str) -> Manifest:
        """Give a class a name that no other class has. Call with the lock held. Returns the new manifest."""
        manifest = self.manifest()
        check_new_name(manifest, label, new)
        renamed = {new if name == label else name: count for name, count in manifest.classes.items()}
        return self._edit(manifest, renamed, lambda header, arrays: (packed.rename(header, label, new), arrays), undoable=True)

    def _edit(self, manifest: Manifest, classes: dict[str, int], edit: Edit, undoable: bool) -> Manifest:
        """Edit the file of the classes."""
        path = self.checked(manifest.files["classes"])
        about, arrays = tensor_files.read_arrays(path, CLASSES)
        try:
            header, edited = edit(about["classifier"], tensor_files.without("classifier/", arrays))
        except files.MISFITS as error:
            raise files.misfit(path, error) from error

        def write(to: Path) -> None:
            content = tensor_files.prefixed("classifier/", edited)
            tensor_files.write_arrays(to, CLASSES, about | {"classifier": header}, content)

        return self.change(replace(manifest, classes=classes), {"classes": write}, undoable)

    def _replace(self, manifest: Manifest) -> Manifest:
        """Write the manifest, with the current time, and return it."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        written = replace(manifest, created=manifest.created or now, changed=now, amgc=amgc.__version__)
        files.write_json(self.path / MANIFEST, written.to_json())
        return written

    def remove_if_empty(self) -> None:
        """Delete a model without classes, and its folder if nothing else is in it."""
        with self.lock():
            if self.manifest().classes:
                return
            earlier.drop(self.manifest().undo)
            (self.path / MANIFEST).unlink()  # first, so that a partial deletion leaves no model
            self.tidy()
            with suppress(OSError):  # the folder is not empty, or Windows refuses to delete a lock that is held
                (self.path / LOCK).unlink(missing_ok=True)
                self.path.rmdir()

    def tidy(self) -> None:
        """Delete files that the manifest does not list: those of earlier states and of interrupted changes."""
        with suppress(OSError, files.FileFormatError):  # the next change tries again
            named = self.manifest().file_sizes if self.exists else {}
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


def check_known(manifest: Manifest, label: str) -> None:
    """Raise an error if the model has no such class."""
    if label not in manifest.classes:
        raise ModelError(f"the model has no class {label!r}; its classes are {listing(list(manifest.classes))}.")


def check_new_name(manifest: Manifest, label: str, new: str) -> None:
    """Raise an error if a class cannot have a new name."""
    check_known(manifest, label)
    if label == new:
        raise ModelError(f"the class is already called {label!r}.")
    if new in manifest.classes:
        raise ModelError(f"the model already has a class {new!r}. To make one class of both, join them: join=True, or --join.")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        found = hashlib.sha256()
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


# ---- zip files -------------------------------------------------------------------------------------------------------


def pack(folder: Folder) -> bytes:
    """Return the folder as a zip file. Paths in the manifest are reduced to names."""

    def read(manifest: Manifest) -> bytes:
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:  # compression does not make weights smaller
            made = manifest.made | ({"from": last_part(str(manifest.made["from"]))} if "from" in manifest.made else {})
            features = replace(manifest.features, given=last_part(manifest.features.given))
            shared = replace(manifest, made=made, features=features, undo="")
            archive.writestr(MANIFEST, json.dumps(shared.to_json(), ensure_ascii=False, indent=1))
            for entry in manifest.files.values():
                archive.writestr(entry.name, folder.checked(entry).read_bytes())
        return written.getvalue()

    return folder.read(read)


def unpack(content: bytes, into: Path, most_bytes: int) -> None:
    """Write the files of a zip file to the new folder `into`. Only names of a model's files are accepted, and no sub-folders.

    most_bytes : maximum size of all files together. Bytes are counted while reading, because the sizes that a zip file states
        may be false.
    """
    Folder(into).prepare()
    if content.count(b"PK\1\2") > MAX_ENTRIES:
        raise files.FileFormatError("the zip file contains more files than a model has.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [one for one in archive.infolist() if not one.is_dir()]
            names = [one.filename for one in members]
            if MANIFEST not in names:
                raise files.FileFormatError(f"the zip file has no {MANIFEST} at its top, so it is not a model of amgc.")
            for name in names:
                if name != MANIFEST and (not OURS.fullmatch(name) or name.startswith(".")):
                    raise files.FileFormatError(f"the zip file contains {name!r}, which is not a file of a model.")
            if any(one.compress_type not in PLAIN for one in members):
                raise files.FileFormatError("the zip file is not compressed with deflate; create it again with deflate.")
            if len(names) > MAX_FILES or len(set(names)) < len(names):
                raise files.FileFormatError("the zip file contains more files than a model has, or two of the same name.")
            left = most_bytes
            for one in members:
                with archive.open(one) as file, (into / one.filename).open("wb") as written:
                    while part := file.read(1 << 20):  # not all at once: a small zip file may unpack to gigabytes
                        left -= len(part)
                        if left < 0:
                            raise files.FileFormatError(f"the files in the zip file are larger than {byte_size(most_bytes)}.")
                        written.write(part)
    except files.FileFormatError:
        raise
    except UNREADABLE as error:
        raise files.FileFormatError(f"the file is not a readable zip file ({error}).") from error


def last_part(text: str | None) -> str | None:
    """Return the name of a file instead of its path; other texts unchanged.

    >>> last_part("/home/ann/weights.pt"), last_part("C:\\\\weights.pt"), last_part("lite0")
    ('weights.pt', 'weights.pt', 'lite0')
    """
    if text is None or not ("/" in text or "\\" in text):
        return text
    return (PureWindowsPath if "\\" in text else PurePosixPath)(text).name
