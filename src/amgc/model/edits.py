"""Forget and rename classes in a model's folder. Importing this module does not import torch, which takes over a second.

Both change rows and names of the stored file only. After `forget` the file has no classifier: it follows from the statistics,
and is solved and stored when the model is next opened. Only `forget` in a private model, whose statistics all follow from noisy
sums, imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amgc import files, tensor_files
from amgc.core.accounting import gaussian_epsilon
from amgc.model.folder import Folder, ModelError
from amgc.model.manifest import CLASSES, Manifest
from amgc.text import listing

if TYPE_CHECKING:
    from numpy.typing import NDArray

Header = dict[str, Any]
Arrays = dict[str, "NDArray[Any]"]
SOLVED = ("temperature", "expected", "certificate")  # what a header says about the classifier
PREFIX = "classifier/"


def forget(folder: Folder, label: str) -> Manifest:
    """Delete a class, and every earlier state. Call with the lock held. Returns the new manifest."""
    manifest = folder.manifest()
    check_known(manifest, label)
    left = {name: count for name, count in manifest.classes.items() if name != label}
    if manifest.private and not left:
        raise ModelError(
            "the last class of a private model cannot be forgotten, because the record of its budget would be lost. "
            "Delete the folder instead."
        )
    if manifest.private:  # all of its statistics follow from noisy sums
        from amgc.core.incremental import IncrementalClassifier  # imports torch
        from amgc.model.state import State

        state = State.read(folder)
        assert isinstance(state.classifier, IncrementalClassifier)
        state.classifier.forget(label)
        return state.solved().write(folder, undoable=False).manifest
    if not left:
        kept = {role: entry for role, entry in manifest.files.items() if role != "classes"}
        return folder.change(replace(manifest, classes={}, files=kept), {}, undoable=False)
    return _change(folder, manifest, left, lambda header, arrays: _without(header, arrays, label), undoable=False)


def rename(folder: Folder, label: str, new: str) -> Manifest:
    """Give a class a name that no other class has. Call with the lock held. Returns the new manifest."""
    manifest = folder.manifest()
    check_known(manifest, label)
    if label == new:
        raise ModelError(f"the class is already called {label!r}.")
    if new in manifest.classes:
        raise ModelError(f"the model already has a class {new!r}. To make one class of both, join them: join=True, or --join.")
    renamed = {new if name == label else name: count for name, count in manifest.classes.items()}
    return _change(folder, manifest, renamed, lambda header, arrays: (_renamed(header, label, new), arrays), undoable=True)


def check_known(manifest: Manifest, label: str) -> None:
    """Raise an error if the model has no such class."""
    if label not in manifest.classes:
        raise ModelError(f"the model has no class {label!r}; its classes are {listing(list(manifest.classes))}.")


def _change(
    folder: Folder,
    manifest: Manifest,
    classes: dict[str, int],
    edit: Callable[[Header, Arrays], tuple[Header, Arrays]],
    undoable: bool,
) -> Manifest:
    """Edit the file of the classes."""
    path = folder.checked(manifest.files["classes"])
    about, arrays = tensor_files.read_arrays(path, CLASSES)
    try:
        header, edited = edit(about["classifier"], arrays)
    except files.MISFITS as error:
        raise files.misfit(path, error) from error

    def write(to: Path) -> None:
        tensor_files.write_arrays(to, CLASSES, about | {"classifier": header}, edited)

    return folder.change(replace(manifest, classes=classes), {"classes": write}, undoable)


def _renamed(header: Header, label: str, new: str) -> Header:
    if "statistics" in header:
        private = {"private": _renamed_budget(header["private"], label, new)} if "private" in header else {}
        return header | {"statistics": _renamed(header["statistics"], label, new)} | private
    return header | {"classes": [new if name == label else name for name in header["classes"]]}


def _renamed_budget(private: Header, label: str, new: str) -> Header:
    """Rename a class in the header of `amgc.core.privacy.Sums`. If a forgotten class had the name, their losses add up."""
    losses = {name: loss for name, loss, _ in private["spent"]}
    losses[new] = losses.get(new, 0.0) + losses.pop(label)
    delta = private["settings"]["delta"]
    spent = [[name, loss, gaussian_epsilon(loss, delta)] for name, loss in losses.items()]
    return _renamed(private, label, new) | {"spent": spent}


def _without(header: Header, arrays: Arrays, label: str) -> tuple[Header, Arrays]:
    """Return the file without a class: a trained head, or statistics as `ClassStatistics.remove` leaves them."""
    import numpy as np

    if "statistics" not in header:
        gone = header["classes"].index(label)
        rows = {name: np.delete(array, gone, axis=0) for name, array in arrays.items()}
        return header | {"classes": _dropped(header["classes"], gone)}, rows
    statistics = dict(header["statistics"])
    gone = statistics["classes"].index(label)
    count = int(arrays[f"{PREFIX}statistics.count"][gone])
    statistics["classes"] = _dropped(statistics["classes"], gone)
    kept = {name: array for name, array in arrays.items() if name.startswith(f"{PREFIX}statistics.")}
    scatter = kept.pop(f"{PREFIX}statistics.scatter", None)
    edited = {name: np.delete(array, gone, axis=0) for name, array in kept.items()}
    if scatter is not None:
        freedom = statistics["freedom"]
        statistics["freedom"] = freedom - count + 1
        edited[f"{PREFIX}statistics.scatter"] = scatter * (statistics["freedom"] / max(freedom, 1))
    about = {name: value for name, value in header.items() if name not in SOLVED}
    return about | {"statistics": statistics, "latest": _dropped(header["latest"], gone)}, edited


def _dropped(values: list[Any], gone: int) -> list[Any]:
    return [*values[:gone], *values[gone + 1 :]]
