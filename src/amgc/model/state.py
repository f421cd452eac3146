"""The state of a model in memory, and how it is read from and written to the model's folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc import files, tensor_files
from amgc.core.incremental import IncrementalClassifier
from amgc.features.extractor import Extractor
from amgc.features.weights import load_extractor, save_extractor
from amgc.model.folder import Folder, Manifest
from amgc.model.info import Contents
from amgc.model.pictures import Frame

KIND = "model classes"


class ModelError(ValueError):
    """The model cannot do what was requested."""


@dataclass(frozen=True)
class FixedHead:
    """A trained linear classifier without class statistics. It can predict and forget classes, but cannot learn.

    weight (K, d), bias (K,) : one row for each of `classes`.
    """

    classes: tuple[str, ...]
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    @property
    def classes_(self) -> NDArray[Any]:
        return np.array(self.classes)

    def predict_proba(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the softmax of the scores, (n, K)."""
        scores = features @ self.weight.T + self.bias
        shares: NDArray[np.float64] = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        return shares

    def without(self, label: str) -> FixedHead:
        """Return the classifier without one class."""
        keep = [row for row, name in enumerate(self.classes) if name != label]
        return FixedHead(tuple(self.classes[row] for row in keep), self.weight[keep], self.bias[keep])

    def renamed(self, label: str, new: str) -> FixedHead:
        """Return the classifier with one class renamed."""
        return FixedHead(tuple(new if name == label else name for name in self.classes), self.weight, self.bias)

    def packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return header and tensors for a file, as `AMGCClassifier.packed` does."""
        return {"classes": list(self.classes)}, {"weight": torch.from_numpy(self.weight), "bias": torch.from_numpy(self.bias)}

    @classmethod
    def from_packed(cls, header: dict[str, Any], tensors: dict[str, Tensor]) -> FixedHead:
        made = cls(tuple(header["classes"]), tensors["weight"].numpy(), tensors["bias"].numpy())
        if not len(made.classes) == len(made.weight) == len(made.bias) == len(set(made.classes)):
            raise ValueError("the number of weights differs from the number of classes")
        return made


@dataclass(frozen=True)
class State:
    """Everything that a prediction needs. A state is never modified: each change creates a new one.

    extractor : None until the first images have been learned, if it is fitted on them.
    classifier : None while there are no classes.
    """

    manifest: Manifest
    extractor: Extractor | None = None
    classifier: IncrementalClassifier | FixedHead | None = None

    @property
    def frame(self) -> Frame:
        """The image size and channels that the extractor expects."""
        assert self.extractor is not None
        channels, side, _ = self.extractor.image_shape
        return Frame(side, self.manifest.image.get("scale") or side, channels)

    @property
    def private(self) -> bool:
        """Whether the model has a privacy budget."""
        return bool(self.manifest.made.get("privacy"))

    @property
    def checksum(self) -> str:
        """The checksum of the extractor's file; "" while there is none."""
        entry = self.manifest.files.get("extractor")
        return entry.sha256 if entry else ""

    @property
    def contents(self) -> Contents:
        """The contents of the files, for `Model.info`."""
        form, margins, extractor = None, {}, self.extractor
        if isinstance(self.classifier, IncrementalClassifier):
            form, names = self.classifier.statistics_.form, map(str, self.classifier.classes_.tolist())
            margins = dict(zip(names, self.classifier.margins_.tolist(), strict=True))
        spent = self.classifier.spent_ if isinstance(self.classifier, IncrementalClassifier) else {}
        fixed, fragments = isinstance(self.classifier, FixedHead), getattr(getattr(extractor, "options", None), "draw", "")
        name = extractor.name if extractor else ""
        return Contents(form, margins, fixed, name, fragments == "patches", {str(label): loss for label, loss in spent.items()})

    @property
    def class_counts(self) -> dict[str, int]:
        """The number of images of each class, in the order in which classes were learned."""
        if self.classifier is None:
            return {}
        if isinstance(self.classifier, FixedHead):
            return dict.fromkeys(self.classifier.classes, 0)
        statistics = self.classifier.statistics_
        return dict(zip(map(str, statistics.classes), statistics.count.tolist(), strict=True))

    @classmethod
    def read(cls, folder: Folder, previous: State | None = None) -> State:
        """Read a folder. The extractor of `previous` is reused if it has not changed."""

        def read(manifest: Manifest) -> State:
            entries = manifest.files
            extractor = None
            if "extractor" in entries:
                if previous is not None and previous.checksum == entries["extractor"].sha256:
                    extractor = previous.extractor
                else:
                    extractor = load_extractor(folder.checked(entries["extractor"])).eval().requires_grad_(False)
            state = cls(manifest, extractor)
            return _read_classes(state, folder.checked(entries["classes"])) if "classes" in entries else state

        return folder.read(read)

    def write(self, folder: Folder, undoable: bool = True) -> State:
        """Replace the folder's contents in one step and return the state with its new manifest. Call with the lock held.

        undoable : whether to store the state before the change, for `undo`. A private model never does: undoing would refund
            the budget.
        """
        manifest, writers = self.manifest, {}
        features, kept = dict(manifest.features), dict(manifest.files)
        if (extractor := self.extractor) is not None:
            features["dim"] = extractor.dim
            if "extractor" not in kept:
                writers["extractor"] = lambda path: save_extractor(path, extractor)
        if self.classifier is None:
            kept.pop("classes", None)
        else:
            writers["classes"] = lambda path: _write_classes(path, self)
        changed = replace(manifest, classes=self.class_counts, features=features, files=kept)
        return replace(self, manifest=folder.change(changed, writers, undoable and not self.private))


def _write_classes(path: Path, state: State) -> None:
    assert state.classifier is not None
    header, tensors = state.classifier.packed()
    about = {"is": "FixedHead" if isinstance(state.classifier, FixedHead) else "AMGCClassifier", "classifier": header}
    tensor_files.write(path, KIND, about, {f"classifier/{name}": tensor for name, tensor in tensors.items()})


def _read_classes(state: State, path: Path) -> State:
    header, tensors = tensor_files.read(path, KIND)
    try:
        kind = {"AMGCClassifier": IncrementalClassifier, "FixedHead": FixedHead}[header["is"]]
        classifier: Any = kind.from_packed(header["classifier"], _under("classifier/", tensors))  # type: ignore[attr-defined]
        found = replace(state, classifier=classifier)
        if found.class_counts != state.manifest.classes:
            raise ValueError("its classes are not those of the manifest")
        return found
    except files.MISFITS as error:
        raise files.misfit(path, error) from error


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
