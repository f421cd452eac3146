"""Decoded images on disk: one uint8 array, so that image files are decoded once and not in every run.

A cache is a folder with `manifest.json` and one `pixels-*.npy` (n, 3, size, size). Its name is a hash of the image folder,
the size and the set of files: two lists of classes in one folder have a cache each. The manifest has the fingerprint of
the files (paths, sizes, modification times), of Pillow and of this format, and a checksum per block of rows. It is
written last and renamed into place: an interrupted or full-disk write leaves the former cache or none. If anything does not
match, the images are decoded again, and a message says why.

**Privacy.** A cache holds a decoded copy of every image, and it stays when the images are deleted. It is in `images` in
$AMGC_CACHE, or else in `amgc` in the user's cache folder ($XDG_CACHE_HOME or ~/.cache), with the permissions that the
umask gives. `load(…, cache=False)` writes none; `clear(root)` removes those of one image folder, `clear()` all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray

from amgc.data.decode import CorruptImageError
from amgc.data.image_files import Files
from amgc.data.images import InMemory, Mapped, Pixels, size_in_bytes
from amgc.files import atomic, check_regular, read_json, write_text
from amgc.text import byte_size

VERSION = 1  # of the format and of how pixels are made from files; a change makes old caches stale
BLOCK = 1024  # rows per checksum
HASH = re.compile("[0-9a-f]{16}")  # what the folders of a cache are called
SPARE = 1 << 30  # bytes of the disk that a cache leaves free
log = logging.getLogger("amgc.data")


class StaleCacheError(Exception):
    """The cache is missing, belongs to other files, or is damaged; the message says which."""


class _ReadError(Exception):
    """An image file that cannot be read from the disk, as opposed to an error in writing the cache."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def default_folder() -> Path:
    """Return $AMGC_CACHE, else `amgc` in the user's cache folder."""
    if os.environ.get("AMGC_CACHE"):
        return Path(os.environ["AMGC_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amgc"


def clear(
    root: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> int:
    """Remove the decoded copies of the images in or below `root`, or all of them. Returns how many caches were removed.

    cache : the folder that `load` was given as its cache; the default one without it. Nothing else in it is touched.
    """
    images = (default_folder() if cache is None else Path(cache)) / "images"
    count = 0
    for home in sorted(images.glob("*/*")):
        if not (HASH.fullmatch(home.parent.name) and HASH.fullmatch(home.name) and home.is_dir()):
            continue  # not a cache: the folder may contain other files
        if root is not None and not _is_of(home, Path(root).resolve()):
            continue
        for path in [home / "manifest.json", *home.glob("pixels-*.npy"), *home.glob(".*.partial")]:
            path.unlink(missing_ok=True)
        count += 1
        for folder in (home, home.parent):
            with contextlib.suppress(OSError):  # there is more in it
                folder.rmdir()
    return count


def _is_of(home: Path, root: Path) -> bool:
    """Return whether a cache is of images in `root`, by its place, or below it, by its manifest."""
    if home.parent.name == _place(root):
        return True
    try:
        return root in Path(read_json(home / "manifest.json")["root"]).parents
    except (OSError, ValueError, TypeError, KeyError):
        return False


def read_files(
    root: Path,
    files: Files,
    *,
    cache: bool | str | os.PathLike[str] = True,
    on_corrupt: str = "error",
    memory: int,
) -> tuple[Pixels, list[int], list[CorruptImageError]]:
    """Return the files as pixels, the rows of files that cannot be read, whose pixels are undefined, and their errors.

    cache : True for the default folder, a path for another, False for none. Without a cache, images that exceed `memory`
        bytes are decoded each time that they are needed.
    """
    if on_corrupt not in ("error", "skip"):
        raise ValueError(f'on_corrupt must be "error" or "skip", not {on_corrupt!r}.')
    mapped: tuple[Mapped, list[CorruptImageError], list[int]] | None = None
    if cache is not False:
        folder = Path(cache) if not isinstance(cache, bool) else default_folder()
        mapped = _cached(root, files, folder, memory)
    if mapped is not None:
        pixels: Pixels = mapped[0]
        errors, bad = mapped[1], mapped[2]
    elif size_in_bytes(files) <= memory or on_corrupt == "skip":
        pixels, errors, bad = _decode_once(files, keep=size_in_bytes(files) <= memory)
    else:
        return files, [], []  # an unreadable file is named when it is asked for
    if errors and on_corrupt == "error":
        more = "" if len(errors) == 1 else f"; {len(errors)} of {len(files)} files cannot be read, and this is the first"
        raise CorruptImageError(errors[0].path, errors[0].reason + more)
    if errors:
        first = f"{errors[0].path!r} ({errors[0].reason})"
        log.warning("%d of %d files cannot be read and are left out; the first: %s", len(errors), len(files), first)
    return pixels, bad, errors


def _decode_once(files: Files, keep: bool) -> tuple[Pixels, list[CorruptImageError], list[int]]:
    """Decode every file and keep the pixels in memory, or only the errors."""
    samples = torch.zeros((len(files) if keep else 0, *files.shape), dtype=torch.uint8)
    errors, bad = [], []
    for row, pixels in enumerate(files.each(range(len(files)))):
        if isinstance(pixels, CorruptImageError):
            errors.append(pixels)
            bad.append(row)
        elif keep:
            samples[row] = torch.from_numpy(pixels)
    return (InMemory(samples) if keep else files), errors, bad


def _cached(root: Path, files: Files, folder: Path, memory: int) -> tuple[Mapped, list[CorruptImageError], list[int]] | None:
    """Return the cache of these files, written first if needed; None if it cannot be written."""
    names = _names(root, files)
    root = root.resolve()
    chosen = hashlib.sha256(b"\0".join([str(files.size).encode(), *names]))
    home = folder / "images" / _place(root) / chosen.hexdigest()[:16]
    fingerprint = _fingerprint(root, names, files)
    try:
        manifest = _read_manifest(home, fingerprint, files)
        array = _open(home, manifest, check_all=size_in_bytes(files) <= memory)
    except StaleCacheError as reason:
        if home.exists():
            log.warning("the cache of %s is rebuilt: %s", root, reason)
        try:
            manifest = _write(home, root, files, fingerprint)
            array = _open(home, manifest, check_all=False)
        except _ReadError as wrapped:
            raise wrapped.error from None
        except (OSError, StaleCacheError) as error:
            log.warning("images of %s are not cached and have to be decoded in every run: %s", root, error)
            return None
    errors = [CorruptImageError(files.paths[bad["row"]], bad["reason"]) for bad in manifest["corrupt"]]
    return Mapped(array), errors, [bad["row"] for bad in manifest["corrupt"]]


def _place(root: Path) -> str:
    """Return the name of the folder with all caches of an image folder."""
    return hashlib.sha256(os.fsencode(root)).hexdigest()[:16]


def _names(root: Path, files: Files) -> list[bytes]:
    """Return the paths below `root` as the file system has them: bytes, which need not be UTF-8."""
    start = os.path.join(root, "")
    return [os.fsencode(path.removeprefix(start)) for path in files.paths]


def _fingerprint(root: Path, names: Sequence[bytes], files: Files) -> str:
    digest = hashlib.sha256(f"{VERSION} {PIL.__version__} {files.size} ".encode() + os.fsencode(root) + b"\n")
    for name, path in zip(names, files.paths, strict=True):
        try:
            status = os.stat(path)
        except OSError:  # a link to a missing file: decoding reports it
            digest.update(name + b"\0gone\n")
            continue
        closed = "" if os.access(path, os.R_OK) else "closed"  # changed permissions leave the time as it is
        digest.update(name + f"\0{status.st_size}\0{status.st_mtime_ns}{closed}\n".encode())
    return digest.hexdigest()


def _read_manifest(home: Path, fingerprint: str, files: Files) -> dict[str, Any]:
    try:
        manifest = read_json(home / "manifest.json")
        if manifest["version"] != VERSION:
            raise StaleCacheError(f"it has version {manifest['version']!r}, not {VERSION}")
        if manifest["pillow"] != PIL.__version__:
            raise StaleCacheError(f"it was decoded by Pillow {manifest['pillow']}, and this is {PIL.__version__}")
        if manifest["fingerprint"] != fingerprint:
            raise StaleCacheError("files were changed")
        whole = manifest["shape"] == [len(files), *files.shape] and len(manifest["crc32"]) == -(-len(files) // BLOCK)
        sound = all(0 <= bad["row"] < len(files) and isinstance(bad["reason"], str) for bad in manifest["corrupt"])
        if not (whole and sound and Path(manifest["pixels"]).name == manifest["pixels"]):
            raise StaleCacheError("its manifest is damaged")
    except FileNotFoundError:
        raise StaleCacheError("it has no manifest") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StaleCacheError(f"its manifest is damaged ({error})") from error
    return dict(manifest)


def _open(home: Path, manifest: dict[str, Any], check_all: bool) -> NDArray[np.uint8]:
    """Return the pixels after checking their blocks: all of them if they will be read anyway, else sixteen."""
    try:
        check_regular(home / manifest["pixels"])
        array = np.load(home / manifest["pixels"], mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises different errors for a damaged file
        raise StaleCacheError(f"its pixels cannot be read ({error})") from error
    if list(array.shape) != manifest["shape"] or array.dtype != np.uint8:
        raise StaleCacheError(f"its pixels have shape {array.shape}")
    crc = manifest["crc32"]
    blocks = range(len(crc)) if check_all else np.unique(np.linspace(0, len(crc) - 1, min(16, len(crc))).astype(int))
    for block in blocks:
        if zlib.crc32(np.ascontiguousarray(array[block * BLOCK : (block + 1) * BLOCK]).data) != crc[block]:
            raise StaleCacheError(f"its pixels are damaged (rows from {block * BLOCK} on)")
    return np.asarray(array)


def _write(home: Path, root: Path, files: Files, fingerprint: str) -> dict[str, Any]:
    """Decode all files into a new cache. It is written, not memory-mapped, so that a full disk is an error and not a crash."""
    needed = size_in_bytes(files)
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    if needed + SPARE > free:
        raise OSError(f"the cache needs {byte_size(needed)} and {home} has {byte_size(free)} free")
    if others := sum(path.parent != home for path in home.parent.glob("*/manifest.json")):
        log.warning("%s has other caches (%d), of other sizes or files; amgc.data.cache.clear removes them", root, others)
    log.info("decoding %d images of %s into %s (%s, once)", len(files), root, home, byte_size(needed))
    manifest: dict[str, Any] = {
        "version": VERSION,
        "pillow": PIL.__version__,
        "root": str(root),
        "fingerprint": fingerprint,
        "shape": [len(files), *files.shape],
        "pixels": f"pixels-{fingerprint[:16]}.npy",
        "corrupt": [],
        "crc32": [],
    }
    for left in home.parent.glob("*/.*.partial"):  # of a process that was killed: a live one has just written to its own
        if time.time() - left.stat().st_mtime > 3600:
            left.unlink(missing_ok=True)
    with atomic(home / manifest["pixels"]) as temporary, temporary.open("wb") as file:
        shape = (len(files), *files.shape)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        nothing = np.zeros(files.shape, dtype=np.uint8)
        crc = 0
        for row, pixels in enumerate(_decoded(files)):
            if isinstance(pixels, CorruptImageError):
                manifest["corrupt"].append({"row": row, "reason": pixels.reason})
                pixels = nothing
            crc = zlib.crc32(pixels.data, crc)
            file.write(pixels.data)
            if (row + 1) % BLOCK == 0 or row + 1 == len(files):
                manifest["crc32"].append(crc)
                crc = 0
    write_text(home / "manifest.json", json.dumps(manifest))
    for old in home.glob("pixels-*.npy"):
        if old.name != manifest["pixels"]:
            old.unlink(missing_ok=True)
    return manifest


def _decoded(files: Files) -> Iterator[NDArray[np.uint8] | CorruptImageError]:
    try:
        yield from files.each(range(len(files)))
    except OSError as error:
        raise _ReadError(error) from error
