"""Compute the features of a frozen network once, and cache them in a folder.

**Privacy.** A cache file contains the features of each image, which an exemplar-free method must not keep. It is temporary
storage for the images of the current task, which are available anyway. Call `clear` at the end of a task to delete it.
Nothing else in amgc saves the features of single images.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from amgc import files, tensor_files
from amgc.features.extractor import Extractor, ImageSource, Preprocess, evaluating

KIND = "features"


def cached_features(
    extractor: Extractor,
    images: ImageSource,
    *,
    preprocess: Preprocess,
    directory: str | os.PathLike[str],
    batch_size: int = 256,
) -> Tensor:
    """Return the features (n, dim) of all images, float32 on the CPU, from `directory` if they were computed before.

    The name of a file is a hash of everything that determines its content: the extractor's class, options and weights, the
    labels, and the preprocessed images. Hashing needs a pass over the images, which is cheap compared with a pass through a
    ResNet, and is correct for any deterministic `preprocess`. If a file is damaged, it is computed again, with a warning.
    """
    key = _key(extractor, images, preprocess, batch_size)
    path = Path(directory) / f"features-{key[:32]}.safetensors"
    shape = (len(images.labels), extractor.dim)
    if path.exists():
        try:
            header, tensors = tensor_files.read(path, KIND)
            if header.get("key") == key and tensors["features"].shape == shape:
                return tensors["features"]
            reason = "its content is not what its name says"
        except (files.FileFormatError, KeyError) as error:
            reason = str(error)
        warnings.warn(f"cached features are computed again: {reason}", stacklevel=2)
    features = extract_features(extractor, images, preprocess=preprocess, batch_size=batch_size)
    if not len(features):
        return features
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        tensor_files.write(path, KIND, {"key": key, "extractor": extractor.name}, {"features": features})
    except OSError as error:  # for example a full disk; the features can still be returned
        warnings.warn(f"features could not be cached in {os.fspath(directory)!r}: {error}", stacklevel=2)
    return features


def extract_features(extractor: Extractor, images: ImageSource, *, preprocess: Preprocess, batch_size: int = 256) -> Tensor:
    """Return the features (n, dim) of all images, float32 on the CPU, in evaluation mode, one batch at a time."""
    features = torch.empty(len(images.labels), extractor.dim)  # not an inference tensor: a head may be trained on it
    with evaluating(extractor):
        for start, batch in _batches(images, preprocess, batch_size):
            features[start : start + len(batch)] = extractor(batch.to(extractor.device)).float().cpu()
    return features


def clear(directory: str | os.PathLike[str]) -> int:
    """Delete the cached features in `directory`, including incomplete files, and nothing else. Return the number of files."""
    found = [*Path(directory).glob("features-*.safetensors"), *Path(directory).glob(".features-*.partial")]
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def _batches(images: ImageSource, preprocess: Preprocess, batch_size: int) -> Iterator[tuple[int, Tensor]]:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}.")
    count = len(images.labels)
    for start in range(0, count, batch_size):
        yield start, preprocess(images.take(torch.arange(start, min(start + batch_size, count))))


def _key(extractor: Extractor, images: ImageSource, preprocess: Preprocess, batch_size: int) -> str:
    """Return a hash of everything that determines the features exactly, including the device and torch's version."""
    device = extractor.device.type
    kind = f"{type(extractor).__module__}.{type(extractor).__qualname__}"
    options = dataclasses.replace(extractor.options, weights=None)  # the weights are hashed below; their file does not matter
    digest = hashlib.sha256(f"{kind} {extractor.name} {options} {device} {torch.__version__}".encode())
    for name, tensor in sorted(extractor.state_dict().items()):
        _add(digest, name, tensor)
    _add(digest, "labels", torch.as_tensor(images.labels))
    for start, batch in _batches(images, preprocess, batch_size):
        if start == 0 and not torch.equal(batch, preprocess(images.take(torch.arange(len(batch))))):
            raise ValueError("preprocess returns different results for the same images, so their features cannot be cached.")
        _add(digest, "images", batch)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
