"""A model in memory at one moment, and how it is written to its folder and read from it. Never changed, only replaced."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from amgc import files, tensor_files
from amgc.estimator import AMGCClassifier
from amgc.features.extractor import Extractor
from amgc.features.weights import load_extractor, save_extractor
from amgc.model.fit import Fits
from amgc.model.folder import Folder, Manifest
from amgc.model.head import FixedHead
from amgc.model.pictures import Frame

KIND = "model classes"


@dataclass(frozen=True)
class Tempered:
    """How many times surer than right the classifier would be, as images said when they were learned: the mean logarithm, and
    from how many images.
    """

    images: int = 0
    log: float = 0.0

    def with_more(self, images: int, log: float) -> Tempered:
        total = self.images + images
        return Tempered(total, (self.images * self.log + images * log) / total) if total else self


@dataclass(frozen=True)
class State:
    """What answers. The extractor is None until there are images for it to be fitted on; the classifier until there are
    classes; the fits also where a classifier was taken over from elsewhere, without images.
    """

    manifest: Manifest
    extractor: Extractor | None = None
    classifier: AMGCClassifier | FixedHead | None = None
    fits: Fits | None = None
    tempered: Tempered = Tempered()

    @property
    def frame(self) -> Frame:
        """What pictures are made into before the extractor sees them."""
        assert self.extractor is not None
        channels, side, _ = self.extractor.image_shape
        return Frame(side, self.manifest.image.get("scale") or side, channels)

    @property
    def checksum(self) -> str:
        """The extractor's; "" while there is none."""
        entry = self.manifest.files.get("extractor")
        return entry.sha256 if entry else ""


def read(folder: Folder, before: State | None = None) -> State:
    """What the folder holds now; the extractor is taken from `before` if it is still the same."""

    def state(manifest: Manifest) -> State:
        entries = manifest.files
        extractor = None
        if "extractor" in entries:
            if before is not None and before.checksum == entries["extractor"].sha256:
                extractor = before.extractor
            else:
                extractor = load_extractor(folder.checked(entries["extractor"])).eval().requires_grad_(False)
        found = State(manifest, extractor)
        return _with_classes(found, folder.checked(entries["classes"])) if "classes" in entries else found

    return folder.read(state)


def write(folder: Folder, state: State) -> State:
    """Make this the folder's state, in one step; only for who holds the lock."""
    manifest, writers = state.manifest, {}
    classes = class_counts(state)
    features = dict(manifest.features)
    if state.extractor is not None:
        features["dim"] = state.extractor.dim
        if "extractor" not in manifest.files:
            extractor = state.extractor
            writers["extractor"] = lambda path: save_extractor(path, extractor)
    kept = dict(manifest.files)
    if state.classifier is None:
        kept.pop("classes", None)
    else:
        writers["classes"] = lambda path: _write_classes(path, state)
    written = folder.change(replace(manifest, classes=classes, features=features, files=kept), writers)
    return replace(state, manifest=written)


def class_counts(state: State) -> dict[str, int]:
    """Images learned from by class, in order of arrival."""
    if isinstance(state.classifier, FixedHead):
        return dict.fromkeys(state.classifier.classes, 0)
    if state.classifier is None:
        return {}
    statistics = state.classifier.statistics_
    return dict(zip(map(str, statistics.classes), statistics.count.tolist(), strict=True))


def _write_classes(path: Path, state: State) -> None:
    assert state.classifier is not None
    header, tensors = state.classifier.packed()
    about: dict[str, Any] = {"is": type(state.classifier).__name__, "classifier": header, "tempered": asdict(state.tempered)}
    parts = {f"classifier/{name}": tensor for name, tensor in tensors.items()}
    if state.fits is not None:
        about["fits"] = state.fits.header()
        parts |= {f"fits/{name}": tensor for name, tensor in state.fits.tensors().items()}
    tensor_files.write(path, KIND, about, parts)


def _with_classes(state: State, path: Path) -> State:
    header, tensors = tensor_files.read(path, KIND)
    try:
        kind = {"AMGCClassifier": AMGCClassifier, "FixedHead": FixedHead}[header["is"]]
        classifier: Any = kind.from_packed(header["classifier"], _under("classifier/", tensors))  # type: ignore[attr-defined]
        fits = Fits.from_file(header["fits"], _under("fits/", tensors)) if "fits" in header else None
        found = replace(state, classifier=classifier, fits=fits, tempered=Tempered(**header["tempered"]))
        if class_counts(found) != state.manifest.classes:
            raise ValueError("the manifest counts other classes")
        return found
    except files.MISFITS as error:
        raise files.misfit(path, error) from error


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
