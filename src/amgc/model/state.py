"""The state of a model in memory: create it, give it an extractor, read it from the model's folder and write it there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from amgc import files, tensor_files
from amgc.core.incremental import IncrementalClassifier
from amgc.core.linear import softmax
from amgc.core.parameters import DeviceError, check_parameters
from amgc.core.privacy import Privacy
from amgc.core.statistics import Form
from amgc.core.typical import TYPICAL
from amgc.features.extractor import Extractor
from amgc.features.lite_arrays import can_compute
from amgc.features.weights import load_extractor, save_extractor
from amgc.model import extractors
from amgc.model.folder import Folder, ModelBusyError
from amgc.model.info import Contents
from amgc.model.inputs import Frame, Function, ImageError, Input, Vectors
from amgc.model.manifest import CLASSES, FUNCTION, MANIFEST, VECTORS, Features, ImageSize, Manifest

FULL, LOWRANK = 768, 4096  # dimensions up to which a class stores its full covariance, or a low-rank one
LARGEST_SIDE = 2048  # maximum image size in pixels; a batch of 16 such images takes 0.8 GB


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
        return softmax(features @ self.weight.T + self.bias)

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
    function : the user's function that computes the features; it is not stored.
    """

    manifest: Manifest
    extractor: Extractor | Vectors | None = None
    classifier: IncrementalClassifier | FixedHead | None = None
    function: Function | None = None

    def solved(self) -> State:
        """Return the state after solving for its classifier, so that the first prediction need not wait."""
        if isinstance(self.classifier, IncrementalClassifier):
            _ = self.classifier.head_
        return self

    def stored(self, folder: Folder) -> State:
        """Solve for the classifier if the file has none, because `amgc forget` does not, and write it for later readers.

        A reader that may not write, or finds the folder locked or changed, goes on without writing.
        """
        if isinstance(self.classifier, IncrementalClassifier) and not self.classifier.is_solved:
            self.solved()
            with suppress(OSError, ModelBusyError), folder.lock(0):
                if folder.manifest().identity == self.manifest.identity:
                    return self.write(folder, undoable=False)
        return self

    @property
    def frame(self) -> Frame:
        """The image size and channels that the extractor expects."""
        assert isinstance(self.extractor, Extractor)
        channels, side, _ = self.extractor.image_shape
        return Frame(side, self.manifest.image.scale or side, channels)

    @property
    def fixed(self) -> bool:
        """Whether the classifier is a trained head, which has no class statistics and cannot learn."""
        return isinstance(self.classifier, FixedHead)

    def fits(self, features: NDArray[Any]) -> NDArray[np.float64] | None:
        """Return how typical features (n, d) are of their most likely classes, (n,); None if nothing is known."""
        far = self.extractor.far if isinstance(self.extractor, Extractor) else None
        if not isinstance(self.classifier, IncrementalClassifier) or self.classifier.typical(far) is None:
            return None
        return self.classifier.typicality(features, far=far)

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
        name = extractor.name if isinstance(extractor, Extractor) else ""
        return Contents(form, margins, fixed, name, fragments == "patches", {str(label): loss for label, loss in spent.items()})

    def encoded(self, images: Sequence[Input]) -> Iterator[tuple[list[int], Tensor, list[tuple[int, ImageError]]]]:
        """Yield the features of images batch by batch; see `amgc.model.extractors.encode_batches`."""
        assert self.extractor is not None
        reader = self.extractor if isinstance(self.extractor, Vectors) else self.frame
        return extractors.encode_batches(self.extractor, reader, images)

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
    def read(
        cls, folder: Folder, previous: State | None = None, function: Function | None = None, *, classes: bool = True
    ) -> State:
        """Read a folder. The extractor of `previous` is reused if it has not changed, and its function.

        classes : False leaves out the classifier, which may take gigabytes.
        """
        function = function or (previous.function if previous else None)

        def read(manifest: Manifest) -> State:
            entries, features = manifest.files, manifest.features
            extractor: Extractor | Vectors | None = None
            if features.name in (VECTORS, FUNCTION):
                extractor = Vectors(features.name, features.dim, function) if features.dim else None
            elif "extractor" in entries:
                if previous is not None and previous.checksum == entries["extractor"].sha256:
                    extractor = previous.extractor
                else:
                    extractor = load_extractor(folder.checked(entries["extractor"])).eval().requires_grad_(False)
            state = cls(manifest, extractor, function=function)
            _check_parameters(folder.path / MANIFEST, manifest)
            return _read_classes(state, folder.checked(entries["classes"])) if classes and "classes" in entries else state

        return folder.read(read)

    def write(self, folder: Folder, undoable: bool = True) -> State:
        """Replace the folder's contents in one step and return the state with its new manifest. Call with the lock held.

        undoable : whether to store the state before the change, for `undo`.
        """
        manifest, writers = self.manifest, {}
        features, kept = manifest.features, dict(manifest.files)
        if (extractor := self.extractor) is not None:
            features = replace(features, dim=extractor.dim)
            if isinstance(extractor, Extractor) and "extractor" not in kept:
                writers["extractor"] = lambda path: save_extractor(path, extractor)
        if self.classifier is None:
            kept.pop("classes", None)
        else:
            writers["classes"] = lambda path: _write_classes(path, self)
        changed = replace(manifest, classes=self.class_counts, features=features, files=kept)
        classifier = self.classifier
        if isinstance(classifier, IncrementalClassifier) and classifier.statistics_.form == "lowrank":
            classifier = IncrementalClassifier.from_packed(*_packed(self))  # rounded, as in the file
        return replace(self, manifest=folder.change(changed, writers, undoable), classifier=classifier)


def new_state(
    features: str | os.PathLike[str] | Function | None,
    size: int | None,
    seed: int,
    covariance: Form | None,
    privacy: Privacy | None,
    fewest: int,
    options: dict[str, Any],
) -> State:
    """Check the arguments of `Model.create` and return the state of a model without classes."""
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be a whole number of at most 64 bits, not {seed}.")
    if not fewest >= 1 or (fewest > 1 and privacy is not None):
        raise ValueError(f"fewest must be at least 1, and 1 for private models, which need no more; not {fewest}.")
    if privacy is not None:
        features, covariance = extractors.private_choice(features, covariance, options)
    function, given = None, None
    if isinstance(features, str | os.PathLike) or features is None:
        given = None if features is None else os.fspath(features)
        name, chosen, scale = extractors.resolve(features, options)
    else:
        function, name, chosen, scale = features, FUNCTION, options, None
        given = f"{getattr(features, '__module__', '')}.{getattr(features, '__qualname__', type(features).__qualname__)}"
    if name in (VECTORS, FUNCTION) and (chosen or size is not None):
        settings = ", ".join([*chosen, *(["size"] if size is not None else [])])
        raise ValueError(f"amgc does not compute these features, so it has no {settings} for them.")
    if size is not None and not 8 <= size <= LARGEST_SIDE:
        raise ValueError(f"size must be from 8 to {LARGEST_SIDE} pixels, not {size}.")
    extractor = None
    if name not in ("", "patches", VECTORS, FUNCTION):
        extractor = extractors.create(name, chosen, size, seed)
        name = extractor.name
    made: dict[str, Any] = {"by": "create", "seed": seed, "covariance": covariance}
    if privacy is not None:
        made["privacy"] = {name: value for name, value in asdict(privacy).items() if name not in ("centre", "background")}
        made["centre"] = privacy.centre
    if fewest > 1:
        made["fewest"] = fewest
    state = State(Manifest(made, Features(name, chosen, given), ImageSize(size, scale)), function=function)
    return state if extractor is None else with_extractor(state, extractor)


def fitted(state: State, first: Sequence[Input]) -> State:
    """Return the state with an extractor. If there is none yet, it is chosen for these images or fitted on them."""
    if state.extractor is not None:
        return state
    features, size, seed = state.manifest.features, state.manifest.image.size, int(state.manifest.made["seed"])
    if features.name in (VECTORS, FUNCTION):
        return with_extractor(state, Vectors.measure(features.name, state.function, first))
    name, options, seen = features.name, features.options, extractors.look(first)
    if not name:
        name, why = extractors.choose(seen, size)
        options = extractors.defaults(name)
        chosen = replace(features, name=name, options=options, why=why)
        state = replace(state, manifest=replace(state.manifest, features=chosen))
    if name == "patches":
        options, size = extractors.adapt(options, size, seen)
    extractor = extractors.create(name, options, size, seed)
    ready = with_extractor(state, extractor)
    if extractor.needs_fit:
        extractors.fit(extractor, ready.frame, first, seed)
    return ready


def with_extractor(state: State, extractor: Extractor | Vectors) -> State:
    """Return the state with an extractor, and the image size and classifier parameters that follow from it."""
    manifest = state.manifest
    form = manifest.made["covariance"]
    if form is None and (extractor.name == "patches" or extractor.dim > LOWRANK):
        form = "shared"
    elif form is None:
        form = "full" if extractor.dim <= FULL else "lowrank"
    size = extractor.image_shape[1] if isinstance(extractor, Extractor) else None
    made = manifest.made | {"classifier": {"covariance": form}}
    known = extractors.background_of(extractor)
    if privacy := made.get("privacy"):
        centre = made.pop("centre")
        if centre is None and known is None and isinstance(extractor, Extractor):
            centre = extractors.public_centre(extractor)
        made["classifier"] |= privacy | {"centre": centre}
    if known:
        made["classifier"]["background"] = known
    return replace(state, extractor=extractor, manifest=replace(manifest, image=replace(manifest.image, size=size), made=made))


def _packed(state: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return header and tensors of the classifier, and what is typical of the classes if no torch is needed for predictions."""
    assert state.classifier is not None
    header, tensors = state.classifier.packed()
    extractor, typical = state.extractor, None
    if isinstance(state.classifier, IncrementalClassifier) and isinstance(extractor, Extractor) and not state.manifest.private:
        typical = state.classifier.typical(extractor.far) if can_compute(extractor.name, extractor.options) else None
    if typical is not None and typical.directions is None:
        arrays = {name: torch.from_numpy(array) for name, array in typical.arrays().items()}
        tensors |= tensor_files.prefixed(TYPICAL, arrays)
    return header, tensors


def _write_classes(path: Path, state: State) -> None:
    header, tensors = _packed(state)
    about = {"is": "FixedHead" if isinstance(state.classifier, FixedHead) else "AMGCClassifier", "classifier": header}
    tensor_files.write(path, CLASSES, about, tensor_files.prefixed("classifier/", tensors))


def _check_parameters(path: Path, manifest: Manifest) -> None:
    """Raise FileFormatError if the manifest has parameters for new classes that no classifier has."""
    chosen, dim = manifest.made.get("classifier") or {}, manifest.features.dim
    try:
        check_parameters(**IncrementalClassifier(**chosen).parameters())
        if dim is not None and chosen.get("centre") is not None and len(chosen["centre"]) != dim:
            raise ValueError(f"the centre has {len(chosen['centre'])} numbers for {dim} features")
    except DeviceError:
        pass  # a device of another machine; `learn` reports it
    except files.MISFITS as error:
        raise files.FileFormatError(f"{str(path)!r} is damaged: made.classifier does not fit ({error}).") from error


def _read_classes(state: State, path: Path) -> State:
    header, tensors = tensor_files.read(path, CLASSES)
    try:
        kind = {"AMGCClassifier": IncrementalClassifier, "FixedHead": FixedHead}[header["is"]]
        classifier: Any = kind.from_packed(header["classifier"], tensor_files.without("classifier/", tensors))  # type: ignore[attr-defined]
        found = replace(state, classifier=classifier)
        dim = classifier.weight.shape[1] if isinstance(classifier, FixedHead) else classifier.n_features_in_
        if state.extractor is not None and dim != state.extractor.dim:
            raise ValueError(f"it has {dim} features, the extractor {state.extractor.dim}")
        if state.manifest.private != (isinstance(classifier, IncrementalClassifier) and classifier.privacy_ is not None):
            raise ValueError("it has a privacy budget and the manifest has none, or vice versa")
        if found.class_counts != state.manifest.classes:
            raise ValueError("its classes are not those of the manifest")
        return found
    except files.MISFITS as error:
        raise files.misfit(path, error) from error
