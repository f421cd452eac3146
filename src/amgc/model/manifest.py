"""The manifest of a model: its schema, the checks when it is read, and the names of classes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import amgc
from amgc import files
from amgc.core.accounting import check_settings
from amgc.model.earlier import TOKEN
from amgc.options import decode
from amgc.text import visible

MANIFEST = "manifest.json"
KIND, VERSION = "amgc model", 1
CLASSES = "model classes"  # the kind of the file of the classes
OURS = re.compile(r"(extractor|classes)-\d+\.safetensors|\..*\.partial")  # files that belong to a model
ROLES = ("extractor", "classes")
VECTORS, FUNCTION = "vectors", "function"  # names of features without an extractor
MOST = 10_000_000  # maximum number of features, and of pixels of a side; more means a damaged file


@dataclass(frozen=True)
class Entry:
    """A file of the folder, as listed in the manifest."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class _Privacy:
    """The contents of `Manifest.made["privacy"]`: settings of `amgc.core.privacy.Privacy`, without centre and background."""

    epsilon: float
    delta: float
    lessons: int
    clip: float | None
    directions: int


@dataclass(frozen=True)
class _Made:
    """The fields of `Manifest.made` that are checked."""

    by: str
    seed: int
    covariance: str | None
    classifier: dict[str, Any] | None = None
    privacy: _Privacy | None = None
    centre: tuple[float, ...] | None = None
    fewest: int = 1


@dataclass(frozen=True)
class Features:
    """The extractor of a model. name : "" until the first images choose it. given : what the user asked for.

    dim : number of features; None until it is known. why : why the first images chose it.
    """

    name: str
    options: dict[str, Any]
    given: str | None
    dim: int | None = None
    why: str | None = None


@dataclass(frozen=True)
class ImageSize:
    """Pixels. size : side of the cropped image; None until it is known. scale : shorter side before (None: the same)."""

    size: int | None
    scale: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json.

    made : how the model was created: by which command, from what, with which settings.
    classes : number of images of each class, in the order in which classes were learned.
    files : by role, "extractor" and "classes".
    generation : number of changes.
    undo : names the record of the state before the last change (`amgc.model.earlier`); "" if nothing can be undone.
    """

    made: dict[str, Any]
    features: Features
    image: ImageSize
    classes: dict[str, int] = field(default_factory=dict)
    files: dict[str, Entry] = field(default_factory=dict)
    generation: int = 0
    created: str = ""
    changed: str = ""
    amgc: str = amgc.__version__
    undo: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the contents of manifest.json, the last of which is a checksum of the others."""
        content = {"kind": KIND, "version": VERSION, **asdict(self)}
        return content | {"checksum": _checksum(content)}

    @property
    def noun(self) -> str:
        """What the model learns from: "image", or "vector"."""
        return "vector" if self.features.name == VECTORS else "image"

    @property
    def private(self) -> bool:
        """Whether the model has a privacy budget."""
        return self.made.get("privacy") is not None

    @property
    def identity(self) -> tuple[object, ...]:
        """A value that differs between any two states of a folder, also of two models with the same generation."""
        return self.generation, self.files, self.undo

    @property
    def file_sizes(self) -> dict[str, int]:
        """The files with their sizes."""
        return {entry.name: entry.bytes for entry in self.files.values()}

    @classmethod
    def from_json(cls, path: Path, content: Any) -> Manifest:
        try:
            if not isinstance(content, dict) or content.get("kind") != KIND:
                raise files.FileFormatError(f"{str(path)!r} is not a model's manifest.")
            if content.get("version") != VERSION:
                version = content.get("version")
                raise files.FileFormatError(f"{str(path)!r} has version {version}; this amgc reads version {VERSION}.")
            # Earlier versions listed the state before the last change here. It is deleted with the next change.
            found: Manifest = decode(cls, {name: value for name, value in content.items() if name != "previous"})
            found.check()
            others = {name: value for name, value in content.items() if name != "checksum"}
            if content.get("checksum") not in (None, _checksum(others)):  # models of earlier versions have none
                raise ValueError("its checksum does not match.")
            return found
        except files.FileFormatError:
            raise
        except ValueError as error:
            raise files.FileFormatError(f"{str(path)!r} is damaged: {error} Restore it from a backup.") from error

    def check(self) -> None:
        """Raise ValueError, which names the field, if values have the wrong type or do not fit together."""
        made: _Made = decode(_Made, self.made, "made")
        _check_made(made)
        features, image = self.features, self.image
        numbers = {"image.size": image.size, "image.scale": image.scale, "features.dim": features.dim}
        for name, number in numbers.items():
            if number is not None and not 1 <= number <= MOST:
                raise ValueError(f"{name} must be from 1 to {MOST:,}, not {number}.")
        if None not in (image.size, image.scale) and image.scale < image.size:  # type: ignore[operator]
            raise ValueError(f"image.scale must be at least image.size, {image.size}; not {image.scale}.")
        for name, number in self.classes.items():
            if number < 0:
                raise ValueError(f"classes.{name} must not be negative, but is {number}.")
        if self.undo and not TOKEN.fullmatch(self.undo):
            raise ValueError(f"undo must be 32 hexadecimal digits or empty, not {self.undo!r}.")
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


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def checked_name(label: Any) -> str:
    """Return the normalised name of a class; raise an error if it cannot be one."""
    if not isinstance(label, str):
        raise TypeError(f"the name of a class must be a string, not {label!r}.")
    try:
        label.encode()
    except UnicodeEncodeError:
        try:  # in a locale that is not UTF-8, Python does not decode names of files
            label = os.fsencode(label).decode()
        except UnicodeError:
            raise ValueError(f"the class name {label!r} is not valid Unicode; rename it.") from None
    if "\0" in label or not visible(label):
        raise ValueError(f"the class name {label!a} is empty, cannot be seen, or contains a null character; rename it.")
    return normal(label)


def normal(label: str) -> str:
    """Return a name in Unicode's composed form. macOS stores é in file names as two characters."""
    return unicodedata.normalize("NFC", label)
