"""Model files: safetensors with a JSON header, written whole or not at all, and checked when they are read.

No pickle. A file is one safetensors file whose metadata holds a JSON text (`amgc`) with its kind, version, header and the
SHA-256 of header and tensors, so that a truncated, damaged or foreign file is told apart before anything is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

VERSION = 1


class FileFormatError(ValueError):
    """The file is damaged, of another kind, or of a newer version."""


MISFITS = (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError)  # what wrong contents lead to


def misfit(path: str | os.PathLike[str], error: Exception) -> FileFormatError:
    """The error for a file whose checksum is right but whose contents do not fit together."""
    return FileFormatError(f"the contents of {os.fspath(path)!r} do not fit together ({error!r}).")


def write(path: str | os.PathLike[str], kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write `tensors` and `header` to `path`; an interruption at any moment leaves the old file or the new one."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    header = plain_json(header)
    text = json.dumps({"kind": kind, "version": VERSION, "sha256": _digest(header, tensors), "header": header})
    with atomic(path) as temporary:
        try:
            safetensors.torch.save_file(tensors, temporary, metadata={"amgc": text})
        except SafetensorError as error:  # its only word of a full disk is the system's number, in the text
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), os.fspath(path)) from error


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path`, to be written in the block; it takes the place of `path` at the end, on the disk
    and with ordinary permissions, or it is removed if the block fails.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {os.fspath(target.parent)!r} to write {target.name!r} into; make it first."
        )
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".partial")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes private files; a model file is an ordinary one
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file that `write` made with the same `kind`."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {os.fspath(path)!r}.")
    try:
        text = metadata(path).get("amgc")
        about = json.loads(text) if text else None
        tensors = read_tensors(path) if text else {}
    except RuntimeError:  # it could not be opened: gone by now, or forbidden, which is in the text only
        Path(path).open("rb").close()  # says which
        raise
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is damaged or not a model file ({error}); restore it from a copy."
        ) from error
    if not isinstance(about, dict) or not isinstance(about.get("header"), dict):
        raise FileFormatError(f"{os.fspath(path)!r} was not written by amgc.")
    if about.get("kind") != kind:
        raise FileFormatError(f"{os.fspath(path)!r} holds a {about.get('kind')!r}, not a {kind!r}.")
    if about.get("version") != VERSION:
        raise FileFormatError(
            f"{os.fspath(path)!r} has file version {about.get('version')}; this amgc reads version {VERSION}."
        )
    if about.get("sha256") != _digest(about["header"], tensors):
        raise FileFormatError(f"{os.fspath(path)!r} is damaged: its checksum does not match. Restore it from a copy.")
    return about["header"], tensors


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of any safetensors file; files of `write` have the key `amgc`."""
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of any safetensors file, sorted by name, each copied into memory that torch allocated.

    What safetensors returns lies in the file's own buffer, at any multiple of 8 bytes; torch aligns its memory to 64 bytes. On
    some CPUs MKL adds up in another order when an operand is aligned differently, so a resumed run would end elsewhere than
    an uninterrupted one.
    """
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name).clone() for name in sorted(file.keys())}


def plain_json(value: Any) -> Any:
    """The value as it comes back from JSON: tuples are lists, numpy's numbers Python's."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's, for JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} cannot be written to a file; only numbers, strings and lists of them can.")


def _digest(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
