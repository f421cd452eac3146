"""`Model`: a folder that learns classes from images, predicts, forgets and merges, and keeps none of the images."""

from __future__ import annotations

import os
import threading
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from amgc.core.statistics import Form
from amgc.model import extractors, lesson, state
from amgc.model.about import describe
from amgc.model.answering import answers
from amgc.model.evaluation import Evaluation, evaluated
from amgc.model.folder import MANIFEST, PATIENCE, Folder, Manifest
from amgc.model.lesson import Progress
from amgc.model.pictures import Picture, PictureError, pictures
from amgc.model.results import Info, Learned, ModelError, Prediction
from amgc.model.state import State

if TYPE_CHECKING:
    from amgc.model.export import Exported

OnCorrupt = Literal["error", "skip"]
LARGEST_SIDE = 2048  # pixels that pictures may be scaled to; a batch of 16 is then 0.8 GB


class Model:
    """A classifier of images that lives in a folder. `Model.create` makes one, `Model.open` opens it again.

    Images may be paths, PIL images, arrays (h, w, c), tensors (c, h, w), encoded bytes, or sequences and batches of these. A
    change is written to the folder before it is seen in memory; both change in one step. Threads may predict while another
    learns. `refresh` takes over what another process has written.

    >>> import tempfile
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> def draw(level: int) -> np.ndarray:
    ...     return rng.integers(level, level + 60, (20, 16, 16, 3), dtype=np.uint8)
    >>> folder = tempfile.mkdtemp()
    >>> model = Model.create(f"{folder}/model", filters=8)
    >>> _ = model.learn(draw(0), "night"), model.learn(draw(190), "day")
    >>> [answer.label for answer in model.predict([draw(0)[0], draw(190)[0]])]
    ['night', 'day']
    >>> model.forget("night").classes
    {'day': 20}
    >>> Model.open(f"{folder}/model").info().images
    20
    """

    def __init__(self, folder: Folder, now: State, patience: float = PATIENCE) -> None:
        self._folder, self._state = folder, now
        self._writing = threading.RLock()  # of this object's threads; other processes are kept out by the folder's lock
        self.patience = patience  # seconds that a change waits for another process

    # ---- making and opening ------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        features: str | os.PathLike[str] = "patches",
        size: int | None = None,
        seed: int = 0,
        covariance: Form | None = None,
        **options: Any,
    ) -> Model:
        """A new model in the folder `path`, which is made, and must not hold anything yet.

        features : "patches" (no training, fitted on the first images), "resnet18", "resnet32", "convnet", "timm:NAME"; a file:
            an extractor that amgc saved, or the weights of a ResNet-18; or the folder of another model, for its extractor.
        size : side of the images in pixels. By default the extractor's; for patches that of the first images, at most 64.
        covariance : what is kept of classes' spread; by default "shared" for patches, else "full" up to 256 features, "lowrank"
            beyond.
        options : of the extractor: `filters=1600` for patches, `weights=FILE` for a network.
        """
        name, chosen = extractors.wanted(features, options)
        if size is not None and not 8 <= size <= LARGEST_SIDE:
            raise ValueError(f"size must be from 8 to {LARGEST_SIDE} pixels, not {size}.")
        extractor = None
        if name != "patches":
            extractor = extractors.make(name, chosen, size, seed)
            name = extractor.name
        made: dict[str, Any] = {"by": "create", "seed": seed, "covariance": covariance}
        about = {"name": name, "options": chosen, "given": os.fspath(features), "dim": None}
        image = {"size": size, "scale": extractors.scale_of(features)}
        return cls.begin(path, _settled(State(Manifest(made, about, image), extractor), covariance))

    @classmethod
    def begin(cls, path: str | os.PathLike[str], first: State) -> Model:
        """A new folder with this state."""
        folder = Folder(path)
        if folder.path.exists() and not folder.path.is_dir():
            raise FileExistsError(f"{str(path)!r} is a file; name a folder for the model.")
        if folder.exists:
            raise FileExistsError(f"{str(path)!r} holds a model already; open it, or choose another folder.")
        if folder.path.is_dir() and folder.foreign():
            raise FileExistsError(f"{str(path)!r} is not empty and holds no {MANIFEST}; choose another folder for the model.")
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.lock():
            if folder.exists:
                raise FileExistsError(f"{str(path)!r} holds a model already; open it, or choose another folder.")
            return cls(folder, state.write(folder, first))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Model:
        """The model in a folder, as it is now."""
        folder = Folder(path)
        return cls(folder, state.read(folder))

    def refresh(self) -> bool:
        """Take over what another process has written; whether there was anything."""
        with self._writing:
            before, now = self._state, self._folder.manifest()
            if (now.generation, now.files) != (before.manifest.generation, before.manifest.files):  # or another model's folder
                self._state = state.read(self._folder, before)
            return self._state is not before

    # ---- changing ----------------------------------------------------------------------------------------------------

    def learn(self, images: Any, label: str, **how: Any) -> Learned:
        """Learn a class from images, or more about one that is known; as `learn_all` with one class."""
        return self.learn_all({label: images}, **how)

    def learn_all(
        self, images: Mapping[str, Any], *, progress: Progress | None = None, on_corrupt: OnCorrupt = "error"
    ) -> Learned:
        """Learn several classes: one pass over their images, one solve. The first call fits patches on its images.

        Images of a class that is known are added to its statistics. progress : called with pictures done and pictures in all.
        on_corrupt : "skip" leaves pictures out that cannot be used, unless that is all of them.
        """
        if on_corrupt not in ("error", "skip"):
            raise ValueError(f"on_corrupt must be 'error' or 'skip', not {on_corrupt!r}.")
        start = time.monotonic()
        given: dict[str, list[Picture]] = {}
        for label, own in images.items():  # two spellings of one name are one class
            if found := pictures(own):
                given.setdefault(checked_name(label), []).extend(found)
        if not given:
            raise ModelError("there is nothing to learn from: no pictures were given.")
        with self._writing:
            taught, seen_by = None, ""
            if self._state.extractor is not None:  # most of the work, while other processes may change the model
                taught, seen_by = lesson.take(self._state, given, progress, on_corrupt), self._state.checksum
            with self._latest() as now:
                if taught is None or seen_by != now.checksum:
                    now = self._fitted(now, [picture for own in given.values() for picture in own])
                    taught = lesson.take(now, given, progress, on_corrupt)
                again = tuple(label for label in taught.added if label in now.manifest.classes)
                self._state = state.write(self._folder, lesson.joined(now, taught))
        skipped = tuple((error.path, error.reason) for error in taught.skipped)
        return Learned(taught.added, again, skipped, tuple(taught.animated), time.monotonic() - start)

    def forget(self, label: str) -> Model:
        """Forget a class. Its count, mean and fit are gone; with a shared covariance its part of that stays (see `info`)."""
        with self._writing, self._latest() as now:
            self._state = state.write(self._folder, lesson.without(now, normal(label)))
        return self

    def merge(self, other: Model) -> Model:
        """Add all that another model knows, as if its images had been learned here; both must have the same extractor."""
        with self._writing, self._latest() as now:
            self._state = state.write(self._folder, lesson.merged(now, other._state))
        return self

    @classmethod
    def merged(cls, models: Sequence[Model], path: str | os.PathLike[str]) -> Model:
        """A new model in the folder `path` that knows what several know; these stay as they are."""
        joined, *others = [model._state for model in models]
        for other in others:
            joined = lesson.merged(joined, other)
        made = joined.manifest.made | {"by": "merge"}
        return cls.begin(
            path, replace(joined, manifest=replace(joined.manifest, made=made, files={}, generation=0, created=""))
        )

    def remove_if_empty(self) -> None:
        """Delete the model's files if it knows no class by now, whoever taught it, and the folder if nothing else is in it."""
        with self._writing, self._latest() as now:
            if not now.manifest.classes:
                self._folder.remove()

    @contextmanager
    def _latest(self) -> Iterator[State]:
        """Alone with the folder, and what it holds now."""
        with self._folder.lock(self.patience):
            self.refresh()
            yield self._state

    def _fitted(self, now: State, first: Sequence[Picture]) -> State:
        """With an extractor, made for these pictures if there is none yet."""
        if now.extractor is not None:
            return now
        manifest = now.manifest
        options, size = extractors.suited(manifest.features["options"], manifest.image["size"], first)
        seed = int(manifest.made["seed"])
        made = extractors.make("patches", options, size, seed)
        ready = _settled(replace(now, extractor=made), manifest.made["covariance"])
        extractors.fit(made, ready.frame, first, seed)
        return ready

    # ---- answering ---------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def classes(self) -> dict[str, int]:
        """The images that each class was learned from, classes in order of arrival."""
        return dict(self._state.manifest.classes)

    def predict(self, images: Any, top: int = 1, reject: float | None = None) -> list[Prediction]:
        """The `top` most likely classes of each image; with `reject`, those whose fit is below it are marked as rejected."""
        found = []
        for one in self.predict_each(images, top, reject):
            if isinstance(one, PictureError):
                raise one
            found.append(one)
        return found

    def predict_each(self, images: Any, top: int = 1, reject: float | None = None) -> Iterator[Prediction | PictureError]:
        """The same one after another, a batch in memory at a time; for a picture that cannot be used, its error."""
        return answers(self._state, pictures(images), top, reject)

    def evaluate(
        self, images: Any, labels: Sequence[str], *, reject: float | None = None, progress: Progress | None = None
    ) -> Evaluation:
        """Accuracy, confusion and calibration on labelled images; labels that the model does not know count as unseen."""
        given = pictures(images)
        if len(given) != len(labels):
            raise ValueError(f"{len(given)} pictures but {len(labels)} labels.")
        return evaluated(self._state, given, [normal(label) for label in labels], reject, progress)

    def info(self) -> Info:
        """What the model is, and what it keeps."""
        return describe(self.path, self._state)

    def export_onnx(self, path: str | os.PathLike[str]) -> Exported:
        """Write the model as one ONNX file, checked with onnxruntime; see `amgc.model.export`. Needs the extra `onnx`."""
        from amgc.model.export import export_onnx

        return export_onnx(self._state, path)


def _settled(now: State, covariance: Form | None) -> State:
    """With the classifier's parameters, which depend on the extractor."""
    if now.extractor is None:
        return now
    form = covariance or extractors.form_for(now.extractor)
    manifest = now.manifest
    image: dict[str, int | None] = {**manifest.image, "size": now.extractor.image_shape[1]}
    return replace(now, manifest=replace(manifest, image=image, made=manifest.made | {"classifier": {"covariance": form}}))


def checked_name(label: Any) -> str:
    """A class's name: any string that can be written to a file."""
    if not isinstance(label, str):
        raise TypeError(f"a class's name is a string, not {label!r}.")
    try:
        label.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the class name {label!r} is not valid Unicode; rename it.") from None
    if not label.strip() or "\0" in label:
        raise ValueError(f"the class name {label!r} is empty, or has a zero character in it.")
    return normal(label)


def normal(label: str) -> str:
    """What looks the same is the same, wherever the folder's name comes from: macOS spells é as two characters."""
    return unicodedata.normalize("NFC", label)
