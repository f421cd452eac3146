"""Pack a model's folder into one zip file, and unpack it."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from amgc.files import FileFormatError
from amgc.model.folder import Folder
from amgc.model.manifest import MANIFEST, OURS, Manifest

MOST_BYTES = 1 << 31  # of an unpacked model
MAX_FILES = 8  # a model has at most three
MAX_ENTRIES = 1000  # signatures of entries; weights contain some by accident. A million entries take gigabytes to list.
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
UNREADABLE = (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error)


def pack(folder: Folder) -> bytes:
    """Return the folder as a zip file, without the state before the last change. Paths in the manifest are reduced to names."""

    def read(manifest: Manifest) -> bytes:
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:  # compression does not make weights smaller
            made, features = _without_paths(manifest.made), _without_paths(manifest.features)
            shared = replace(manifest, made=made, features=features, previous=None)
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
        raise FileFormatError("the zip file contains more files than a model has.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [one for one in archive.infolist() if not one.is_dir()]
            names = [one.filename for one in members]
            if MANIFEST not in names:
                raise FileFormatError(f"the zip file has no {MANIFEST} at its top, so it is not a model of amgc.")
            for name in names:
                if name != MANIFEST and (not OURS.fullmatch(name) or name.startswith(".")):
                    raise FileFormatError(f"the zip file contains {name!r}, which is not a file of a model.")
            if any(one.compress_type not in PLAIN for one in members):
                raise FileFormatError("the zip file is not compressed with deflate; create it again with deflate.")
            if len(names) > MAX_FILES or len(set(names)) < len(names):
                raise FileFormatError("the zip file contains more files than a model has, or two of the same name.")
            left = most_bytes
            for one in members:
                with archive.open(one) as file, (into / one.filename).open("wb") as written:
                    while part := file.read(1 << 20):  # not all at once: a small zip file may unpack to gigabytes
                        left -= len(part)
                        if left < 0:
                            raise FileFormatError(f"the files in the zip file are larger than {most_bytes / 1e6:.0f} MB.")
                        written.write(part)
    except FileFormatError:
        raise
    except UNREADABLE as error:
        raise FileFormatError(f"the file is not a readable zip file ({error}).") from error


def _without_paths(about: dict[str, Any]) -> dict[str, Any]:
    """Return the dictionary with the names of files instead of their paths.

    >>> _without_paths({"given": "/home/ann/weights.pt", "by": "create", "seed": 0})
    {'given': 'weights.pt', 'by': 'create', 'seed': 0}
    """
    return {name: _last(value) if name in ("given", "from") else value for name, value in about.items()}


def _last(value: Any) -> Any:
    if not isinstance(value, str) or not ("/" in value or "\\" in value):
        return value
    return (PureWindowsPath if "\\" in value else PurePosixPath)(value).name
