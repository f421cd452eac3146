"""Read and write tensors: safetensors files with a JSON header, written atomically and checked when they are read.

No pickle. The metadata of a file holds a JSON text (key `amgc`) with its kind, version, header and the SHA-256 of header and
tensors. A truncated, damaged or foreign file is rejected before its contents are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError, safe_open

from amgc.files import FileFormatError, atomic, parse_json, plain_json

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

VERSION = 1
TRIES = 20  # attempts to read a file that another process keeps replacing
T = TypeVar("T")


def write(path: str | os.PathLike[str], kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write `tensors` and `header` to `path` atomically."""
    from safetensors.torch import save_file  # imports torch, which the functions for arrays do not need

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    _write(path, kind, header, lambda header: _digest(header, tensors), lambda *to: save_file(tensors, *to))


def to_bytes(kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """Return the content of the file that `write` makes, to be sent to another process."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    header = plain_json(header)
    content: bytes = save(tensors, {"amgc": _about(kind, header, _digest(header, tensors))})
    return content


def _about(kind: str, header: dict[str, Any], digest: str) -> str:
    return json.dumps({"kind": kind, "version": VERSION, "sha256": digest, "header": header})


def write_arrays(path: str | os.PathLike[str], kind: str, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Write the same file as `write` does, from numpy arrays. Does not import torch."""
    import numpy as np
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    _write(path, kind, header, lambda header: _digest_of_arrays(header, arrays), lambda *to: save_file(arrays, *to))


def _write(
    path: str | os.PathLike[str],
    kind: str,
    header: dict[str, Any],
    digest: Callable[[dict[str, Any]], str],
    save: Callable[[Path, dict[str, str]], None],
) -> None:
    header = plain_json(header)
    text = _about(kind, header, digest(header))
    with atomic(path) as temporary:
        try:
            save(temporary, {"amgc": text})
        except SafetensorError as error:  # a full disk is reported only as a number in the text
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), os.fspath(path)) from error


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors of a file that `write` made with the same `kind`."""
    return _unless_replaced(path, lambda: _read_verified(path, kind))


def _read_verified(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    about, tensors = _read(path, kind, "pt", _copies)
    return _verified(path, about, _digest(about["header"], tensors)), tensors


def _unless_replaced(path: str | os.PathLike[str], read: Callable[[], T]) -> T:
    """Return `read()`. Try again if it fails and another process has replaced the file meanwhile.

    For torch, safetensors opens a file twice: header and tensors may then be of different files.
    """
    for _ in range(TRIES):
        before = _version(path)
        try:
            return read()
        except FileFormatError:
            if _version(path) == before:
                raise
    return read()


def _version(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Return numbers that change if a file is replaced; None if there is none."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None


def read_arrays(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the same as `read` with numpy arrays. Does not import torch."""
    about, arrays = _read(path, kind, "np", lambda file: {name: file.get_tensor(name) for name in sorted(file.keys())})
    return _verified(path, about, _digest_of_arrays(about["header"], arrays)), arrays


def _verified(path: str | os.PathLike[str], about: dict[str, Any], digest: str) -> dict[str, Any]:
    """Return the header of a file whose contents have this digest."""
    if about.get("sha256") != digest:
        raise FileFormatError(f"{os.fspath(path)!r} is damaged: its checksum does not match. Restore it from a copy.")
    header: dict[str, Any] = about["header"]
    return header


def read_header(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Return the header only, without verifying the checksum of the tensors. Does not import torch."""
    header: dict[str, Any] = _read(path, kind, "np", lambda _: {})[0]["header"]
    return header


def _read(
    path: str | os.PathLike[str], kind: str, framework: str, contents: Callable[[Any], dict[str, T]]
) -> tuple[dict[str, Any], dict[str, T]]:
    """Return the metadata and the tensors of a file, after checking that `write` made it with the same `kind`.

    `contents` reads the tensors from the open file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {os.fspath(path)!r}.")
    try:
        with safe_open(path, framework=framework) as file:
            text = (file.metadata() or {}).get("amgc")
            about = parse_json(text) if text else None
            tensors = contents(file) if text else {}
    except RuntimeError:  # it could not be opened: deleted since, or no permission
        Path(path).open("rb").close()  # raises the error that says which
        raise
    except (SafetensorError, ValueError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is damaged or not a model file ({error}); restore it from a copy."
        ) from error
    return _checked(path, about, kind), tensors


def _checked(path: str | os.PathLike[str], about: Any, kind: str) -> dict[str, Any]:
    """Return the metadata of a file if `write` made it with the same `kind`."""
    if not isinstance(about, dict) or not isinstance(about.get("header"), dict):
        raise FileFormatError(f"{os.fspath(path)!r} was not written by amgc.")
    if about.get("kind") != kind:
        raise FileFormatError(f"{os.fspath(path)!r} holds a {about.get('kind')!r}, not a {kind!r}.")
    if about.get("version") != VERSION:
        raise FileFormatError(
            f"{os.fspath(path)!r} has file version {about.get('version')}; this amgc reads version {VERSION}."
        )
    return about


def from_bytes(content: bytes, kind: str, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors of what `to_bytes` made with the same `kind`. `name` is for errors."""
    import safetensors.torch

    try:
        tensors = {each: tensor.clone() for each, tensor in sorted(safetensors.torch.load(content).items())}
        length = int.from_bytes(content[:8], "little")
        text = parse_json(content[8 : 8 + length].decode()).get("__metadata__", {}).get("amgc")
        about = parse_json(text) if text else None
    except (SafetensorError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{name!r} is damaged ({error}).") from error
    about = _checked(name, about, kind)
    return _verified(name, about, _digest(about["header"], tensors)), tensors


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of any safetensors file; files made by `write` have the key `amgc`."""
    with safe_open(path, framework="np") as file:
        return file.metadata() or {}


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of any safetensors file, sorted by name."""
    with safe_open(path, framework="pt") as file:
        return _copies(file)


def _copies(file: Any) -> dict[str, Tensor]:
    """Return the tensors of an open file, each copied into memory that torch allocated.

    safetensors returns views of the file's buffer, aligned to 8 bytes; torch aligns its memory to 64 bytes. On some CPUs MKL
    sums in another order if the alignment differs, and a resumed run would then differ from an uninterrupted one.
    """
    return {name: file.get_tensor(name).clone() for name in sorted(file.keys())}


def read_array(path: str | os.PathLike[str], name: str) -> list[float]:
    """Return one small tensor (n,) of a safetensors file. Does not import torch."""
    with safe_open(path, framework="np") as file:
        values: list[float] = file.get_tensor(name).tolist()
    return values


def prefixed(prefix: str, tensors: dict[str, T]) -> dict[str, T]:
    """Return the tensors with a prefix before their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def without(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the tensors whose names have the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _digest(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    import torch

    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _digest_of_arrays(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    """Return the same as `_digest`. Types have torch's names, which are numpy's after a prefix."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in arrays.items():
        digest.update(f"{name} torch.{array.dtype} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view("uint8").data)
    return digest.hexdigest()
