"""Read and write the weights of extractors, our own and published ones. Pickles are read with torch's restricted reader only.

A file must fit the extractor completely. Otherwise an error lists what does not fit, because a network with some weights left
random could still be trained, and only the accuracy would show the mistake.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amgc import files, tensor_files
from amgc.features.extractor import Extractor
from amgc.features.registry import KIND, blank, extractors
from amgc.text import first_few

PLAIN = re.compile(r"[A-Za-z0-9_.]*")  # names of timm; not hf-hub:OWNER/NAME or local-dir:PATH
WRAPPERS = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights in their checkpoints


def save_extractor(path: str | os.PathLike[str], extractor: Extractor) -> None:
    """Write an extractor that `build` made: its weights and what is needed to build it again."""
    if not extractor.name:
        raise ValueError(f"this {type(extractor).__name__} was not created by build(), so it cannot be saved.")
    options = dataclasses.asdict(extractor.options) | {"weights": None}  # a path is useless on another machine
    made = {"extractor": extractor.name, "image_shape": list(extractor.image_shape), "options": options}
    header = {**made, "mean": extractor.mean, "std": extractor.std}
    tensor_files.write(path, KIND, header, extractor.network.state_dict())


def checksum(extractor: Extractor) -> str:
    """Return the SHA-256 of the weights of an extractor, without its options."""
    found = hashlib.sha256()
    for name, tensor in sorted(extractor.network.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def load_extractor(path: str | os.PathLike[str]) -> Extractor:
    """Return the extractor that `save_extractor` wrote.

    The file need not be trusted. It can refer only to registered extractors and to models of the installed timm; nothing is
    downloaded.
    """
    header, tensors = tensor_files.read(path, KIND)
    try:
        name, image_shape, options = header["extractor"], header["image_shape"], header["options"]
        model = options.get("model", "")
        if ":" in name or not PLAIN.fullmatch(model):
            raise files.FileFormatError(
                f"{os.fspath(path)!r} refers to the model {name}:{model}, which is not a plain name of timm and might be "
                f"downloaded. If you trust it, build it yourself: build('timm:…', …, weights={os.fspath(path)!r})."
            )
        if name not in extractors():  # this also excludes .py files: a weights file must not run code
            raise files.FileFormatError(
                f"{os.fspath(path)!r} needs the extractor {name!r}, which amgc does not have. If a Python file of yours "
                "registers it, import that file first."
            )
        extractor = blank(name, image_shape=image_shape, **options)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise files.FileFormatError(f"{os.fspath(path)!r} was written by another version of amgc: {error}") from error
    _set(extractor, path, header, tensors)
    return extractor


def load_weights(extractor: Extractor, path: str | os.PathLike[str]) -> None:
    """Load the weights of a file (see `read_weights`) into `extractor`. Weights of a classifier are ignored.

    A file of amgc also contains the normalisation of images, which replaces the extractor's `mean` and `std`.
    """
    _set(extractor, path, *_read(path))


def _set(extractor: Extractor, path: str | os.PathLike[str], header: dict[str, Any], given: dict[str, Tensor]) -> None:
    expected = extractor.network.state_dict()
    if not any(name in expected for name in given) and all(name.startswith("module.") for name in given):
        given = {name.removeprefix("module."): tensor for name, tensor in given.items()}  # saved from DataParallel
    counters = {name for name in expected if name.endswith("num_batches_tracked")}  # files before torch 0.4.1 lack them
    missing = [name for name in expected if name not in given and name not in counters]
    unexpected = [name for name in given if name not in expected and not name.startswith(extractor.classifier)]
    misshapen = [
        f"{name} is {tuple(given[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in given and given[name].shape != expected[name].shape
    ]
    faults = [("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen)]
    if any(names for _, names in faults):
        listed = "; ".join(f"{len(names)} {fault} ({first_few(names, 3)})" for fault, names in faults if names)
        raise ValueError(
            f"the weights in {os.fspath(path)!r} do not fit {extractor.name or type(extractor).__name__} with "
            f"{extractor.options}: {listed}. Choose the options that they were trained with, or another file."
        )
    mean, std = _normalisation(path, header) if "mean" in header else (extractor.mean, extractor.std)
    extractor.network.load_state_dict({name: given.get(name, expected[name]) for name in expected})
    extractor.mean, extractor.std = mean, std


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors by name of a .safetensors file (verified, if amgc wrote it) or of a torch file (.pth, .pt, .bin).

    A torch file is a pickle, which could run any code; `weights_only` accepts tensors and plain containers only.
    """
    return _read(path)[1]


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header, if amgc wrote the file, and the tensors by name."""
    shown = os.fspath(path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no weights file {shown!r}.")
    with open(path, "rb") as file:
        start = file.read(9)  # safetensors: the length of the header in 8 bytes, then the header, a JSON object
    if not start:
        raise files.FileFormatError(f"the weights file {shown!r} is empty.")
    try:
        if start[8:] == b"{" or shown.endswith(".safetensors"):
            if "amgc" in tensor_files.metadata(path):
                return tensor_files.read(path, KIND)
            content: Any = tensor_files.read_tensors(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except files.FileFormatError:
        raise
    except Exception as error:  # for foreign bytes the readers raise errors of any type
        if "weights_only" in str(error):  # torch then explains how to switch its protection off
            raise files.FileFormatError(
                f"{shown!r} cannot be read as weights: it is damaged, or a pickle with more than tensors, and is not run. "
                "Save its state dict alone with torch.save or safetensors."
            ) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise files.FileFormatError(
            f"{shown!r} cannot be read as weights: it is truncated, damaged, or contains more than tensors ({reason}). "
            "Get it again, or save its state dict alone with torch.save or safetensors."
        ) from error
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    named = content.items() if isinstance(content, dict) else ()
    tensors = {name: value for name, value in named if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        raise files.FileFormatError(f"{shown!r} contains no state dict, but a {type(content).__name__} without tensors.")
    return {}, tensors


def _normalisation(
    path: str | os.PathLike[str], header: dict[str, Any]
) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """Return mean and std of a file's header, if it has them."""
    if header["mean"] is None:
        return None, None
    try:
        mean, std = (tuple(float(value) for value in header[name]) for name in ("mean", "std"))
    except files.MISFITS as error:
        raise files.misfit(path, error) from error
    if not mean or len(mean) != len(std) or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
        raise files.misfit(path, ValueError(f"mean {mean} and std {std} are not a valid normalisation"))
    return mean, std
