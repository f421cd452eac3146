"""`Model`: a folder that learns classes from images, predicts, forgets and merges, without storing any image."""

from __future__ import annotations

import html
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from amgc.core.expected import ExpectedAccuracy
from amgc.core.incremental import IncrementalClassifier
from amgc.core.privacy import Privacy
from amgc.core.statistics import Form
from amgc.data.vectors import Split
from amgc.features.extractor import Extractor
from amgc.model import changes, edits, extractors
from amgc.model.archive import pack, unpack
from amgc.model.changes import Learned, Progress
from amgc.model.choice import choose, look, private_choice
from amgc.model.folder import FUNCTION, PATIENCE, VECTORS, Folder, Manifest, ModelBusyError, ModelError
from amgc.model.info import Info, describe
from amgc.model.names import checked_name, normal
from amgc.model.pictures import Given, Picture, PictureError, pictures
from amgc.model.predict import Evaluation, Prediction, evaluate, predict
from amgc.model.state import State
from amgc.model.vectors import Function, Vectors, measured, name_of, vectors
from amgc.text import plural

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from amgc.model.export import Exported
    from amgc.model.extractors import ExtractorOptions

OnCorrupt = Literal["error", "skip"]
MOST_BYTES = 1 << 31  # of a model in a zip file
ROWS = 20  # classes that a notebook shows
LARGEST_SIDE = 2048  # maximum image size in pixels; a batch of 16 such images takes 0.8 GB


class Model:
    """An image classifier that is stored in a folder. `Model.create` creates one, `Model.open` opens it again.

    Images may be paths, PIL images, arrays (h, w, c), tensors (c, h, w), encoded bytes, or sequences and batches of these.

    A change is first written to the folder, then becomes visible in memory, each in one step. Threads may predict while another
    thread learns. `refresh` loads changes made by other processes.

    patience : seconds that a change waits while another process changes the model.

    >>> import tempfile
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> def draw(level: int) -> np.ndarray:
    ...     return rng.integers(level, level + 60, (20, 16, 16, 3), dtype=np.uint8)
    >>> folder = tempfile.mkdtemp()
    >>> model = Model.create(f"{folder}/model", filters=8)
    >>> _ = model.learn(draw(0), "night"), model.learn(draw(190), "day")
    >>> [prediction.label for prediction in model.predict([draw(0)[0], draw(190)[0]])]
    ['night', 'day']
    >>> model.forget("night").classes
    {'day': 20}
    >>> Model.open(f"{folder}/model").info().images
    20
    """

    def __init__(self, folder: Folder, state: State, patience: float = PATIENCE) -> None:
        self._folder, self._state = folder, state
        self._writing = threading.RLock()  # between threads of this object; the folder's lock is between processes
        self.patience = patience
        self._held: tuple[str, changes.Lesson] | None = None  # too few images, until there are enough; and their extractor

    # ---- create and open ---------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        features: str | os.PathLike[str] | Function | None = None,
        size: int | None = None,
        seed: int = 0,
        covariance: Form | None = None,
        filters: int | None = None,
        draw: Literal["gaussian", "patches"] | None = None,
        weights: str | os.PathLike[str] | None = None,
        privacy: Privacy | None = None,
        fewest: int = 1,
        **options: Unpack[ExtractorOptions],
    ) -> Model:
        """Create a model in the folder `path`, which must be empty or not exist.

        features : "lite0" (EfficientNet-Lite0, trained on ImageNet; "lite1" and "lite2" are larger), "patches" (not trained,
            fitted on the first images), "resnet18", "resnet32", "convnet" or "timm:NAME"; a file with an extractor saved by
            amgc or the weights of a ResNet-18; or the folder of another model, to use its extractor. "vectors": the model takes
            vectors (n, d) of your own instead of images. A function: it gets a list of PIL images in RGB and returns their
            features (n, d); it is not stored, so `open` needs it again. None: the first call of `learn` chooses, and `info`
            says why: lite0 for photographs in colour if it is installed (the extra `photos`), otherwise patches.
        size : side of the images in pixels. Default: that of the extractor; for patches that of the first images, at most 64.
        covariance : form of the stored covariance. Default: "shared" for patches; for others "full" up to 768 features,
            "lowrank" up to 4,096, "shared" above.
        filters, draw : of patches: their number (default 400), and whether they are random or fragments of the first images.
        weights : file of a network's weights.
        privacy : budget of differential privacy. Sums over images are then stored with noise, and `learn` refuses what exceeds
            the budget. It needs features that are not fitted on the images (default: lite0).
        fewest : number of images below which `learn` does not add images to a class. If a single image is added, its features
            are the difference of the models before and after.
        options : further options of the extractor, as for `amgc run`: `amgc run --features NAME --help` documents them.
        """
        common = {"filters": filters, "draw": draw, "weights": None if weights is None else os.fspath(weights)}
        extra: dict[str, Any] = {**options, **{option: value for option, value in common.items() if value is not None}}
        if not fewest >= 1 or (fewest > 1 and privacy is not None):
            raise ValueError(f"fewest must be at least 1, and 1 for private models, which need no more; not {fewest}.")
        if privacy is not None:
            features, covariance = private_choice(features, covariance, extra)
        if isinstance(features, str | os.PathLike) or features is None:
            function, given, scale = None, None if features is None else os.fspath(features), extractors.scale_of(features)
            name, chosen = extractors.resolve(features, extra)
        else:
            function, given, scale = features, name_of(features), None
            name, chosen = FUNCTION, extra
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
            made["privacy"] = {field: value for field, value in asdict(privacy).items() if field != "centre"}
            made["centre"] = privacy.centre
        if fewest > 1:
            made["fewest"] = fewest
        about = {"name": name, "options": chosen, "given": given, "dim": None}
        image = {"size": size, "scale": scale}
        state = State(Manifest(made, about, image), function=function)
        return cls.begin(path, state if extractor is None else _with_extractor(state, extractor))

    @classmethod
    def begin(cls, path: str | os.PathLike[str], state: State) -> Model:
        """Create a model with the given state."""
        folder = Folder(path)
        folder.check_free()
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.lock():
            folder.check_free()  # another process may have created a model meanwhile
            return cls(folder, state.write(folder))

    @classmethod
    def open(cls, path: str | os.PathLike[str], features: Function | None = None) -> Model:
        """Open the model in a folder.

        features : the function that computes the features, if the model was created with one. Without it the model can be
            described, changed and exported, but not learn from images or predict.
        """
        folder = Folder(path)
        name = folder.manifest().features["name"]
        if features is not None and name != FUNCTION:
            raise ValueError(f"the features of the model in {str(folder.path)!r} are {name or 'not chosen'}, not a function.")
        model = cls(folder, State.read(folder, function=features))
        model._store_classifier()
        return model

    def refresh(self) -> bool:
        """Load changes made by other processes. Returns whether there were any."""
        with self._writing:
            before, manifest = self._state, self._folder.manifest()
            if _identity(manifest) != _identity(before.manifest):
                self._state = State.read(self._folder, before)
            return self._state is not before

    # ---- change ------------------------------------------------------------------------------------------------------

    def learn(
        self,
        images: Given,
        label: str,
        *,
        progress: Progress | None = None,
        on_corrupt: OnCorrupt = "error",
        hold: bool = False,
    ) -> Learned:
        """Learn one class from images; see `learn_all`."""
        return self.learn_all({label: images}, progress=progress, on_corrupt=on_corrupt, hold=hold)

    def learn_all(
        self,
        images: Mapping[str, Given],
        *,
        progress: Progress | None = None,
        on_corrupt: OnCorrupt = "error",
        hold: bool = False,
    ) -> Learned:
        """Learn classes from images, given by class, in one pass over the images.

        Images of a known class are added to its statistics. The first call chooses features by its images, and fits patches on
        them. Images of a class with the same pixels count once.

        progress : called with the number of images done and of all images.
        on_corrupt : "skip" skips unreadable images; it is an error if no image is readable.
        hold : if a class has fewer than `fewest` images, hold the statistics of this call in memory and add them together with
            those of the next calls, once there are enough. They are lost if the process ends before. Otherwise it is an error.
        """
        if on_corrupt not in ("error", "skip"):
            raise ValueError(f"on_corrupt must be 'error' or 'skip', not {on_corrupt!r}.")
        start = time.monotonic()
        given: dict[str, list[Picture]] = {}
        for label, own in images.items():
            if found := self._given(own, "train"):
                given.setdefault(checked_name(label), []).extend(found)  # two spellings of a name are one class
        if not given:
            raise ModelError(f"there are no {self._state.manifest.noun}s to learn from.")
        with self._writing:
            lesson, used = None, ""
            if self._state.extractor is not None:  # encode before taking the folder's lock: this is most of the work
                lesson, used = changes.collect(self._state, given, progress, on_corrupt), self._state.checksum
            with self._latest() as state:
                if lesson is None or used != state.checksum:
                    state = self._fitted(state, [picture for own in given.values() for picture in own])
                    lesson = changes.collect(state, given, progress, on_corrupt)
                lesson, held = self._enough(state, lesson, hold)
                again = tuple(label for label in lesson.added if label in state.manifest.classes)
                if lesson.added:
                    self._state = changes.learn(state, lesson).write(self._folder)
        skipped = tuple((error.path, error.reason) for error in lesson.skipped)
        seconds = time.monotonic() - start
        repeated, before = tuple(lesson.repeated), tuple(lesson.learned_before)
        return Learned(lesson.added, again, skipped, tuple(lesson.animated), seconds, repeated, held, before)

    def _enough(self, state: State, lesson: changes.Lesson, hold: bool) -> tuple[changes.Lesson, dict[str, int]]:
        """Return what can be learned now, and the number of images by class that are held instead."""
        fewest = int(state.manifest.made.get("fewest", 1))
        joined = self._held[1].joined(lesson) if self._held and self._held[0] == state.checksum else lesson
        few = {label: count for label, count in joined.added.items() if count < fewest}
        if not few:
            self._held = None
            return joined, {}
        if not hold or self._state.extractor is None:  # features of an extractor that is not stored are worth nothing
            name, count = next(iter(few.items()))
            raise ModelError(
                f"this model learns at least {fewest} {state.manifest.noun}s of a class at a time, and there are {count} of "
                f"{name!r}. Collect more, or hold them in memory: hold=True, in Python, after the first lesson."
            )
        self._held = state.checksum, joined
        return replace(lesson, added={}), joined.added

    def forget(self, label: str) -> Model:
        """Forget a class: delete its count, mean and covariance. Its part of a shared covariance remains.

        This cannot be undone: no earlier state stays in the folder.
        """
        with self._writing, self._latest() as state:
            edits.forget(self._folder, normal(label))
            self._state = _solved(State.read(self._folder, state))
            with suppress(OSError):  # the class is forgotten; whoever opens the model tries again
                self._state = self._state.write(self._folder, undoable=False)
        return self

    def rename(self, label: str, new: str, *, join: bool = False) -> Model:
        """Rename a class. If another class has the name, `join` makes one class of both, as if learned as one."""
        old, name = normal(label), checked_name(new)
        with self._writing, self._latest() as state:
            if join and name != old and name in state.manifest.classes:
                edits.check_known(state.manifest, old)
                self._state = changes.join(state, old, name).write(self._folder)
            else:
                edits.rename(self._folder, old, name)
                self._state = State.read(self._folder, state)
        return self

    def undo(self) -> Model:
        """Take back the last change (learn, rename, join or merge): the state before it is restored to the bit.

        The folder stores one earlier state, so two changes in a row cannot be taken back.
        """
        with self._writing, self._latest():
            self._folder.undo()
            self.refresh()
        return self

    def drop_previous(self) -> Model:
        """Delete the state before the last change from the folder. The change can then not be undone."""
        with self._writing, self._latest():
            self._folder.drop_previous()
            self.refresh()
        return self

    def merge(self, other: Model) -> Model:
        """Add the classes of another model, as if its images had been learned here. Both need the same extractor."""
        with self._writing, self._latest() as state:
            self._state = changes.merge(state, other._state).write(self._folder)
        return self

    @classmethod
    def merged(cls, models: Sequence[Model], path: str | os.PathLike[str]) -> Model:
        """Create a model in the folder `path` with the classes of several models, which do not change."""
        state, *others = [model._state for model in models]
        for other in others:
            state = changes.merge(state, other)
        made = state.manifest.made | {"by": "merge"}
        manifest = replace(state.manifest, made=made, files={}, generation=0, created="", previous=None)
        return cls.begin(path, replace(state, manifest=manifest))

    @property
    def state(self) -> State:
        """What the model is now. It never changes; `restore` returns to it."""
        return self._state

    def restore(self, state: State) -> Model:
        """Make the model what `state` says: an earlier state of this model, or that of another one."""
        with self._writing, self._latest() as now:
            same = {"extractor"} if state.checksum and state.checksum == now.checksum else set()
            kept = {role: entry for role, entry in now.manifest.files.items() if role in same}
            manifest = replace(state.manifest, files=kept, generation=now.manifest.generation)
            self._state = state.with_function(state.function or now.function, manifest).write(self._folder)
        return self

    def remove_if_empty(self) -> None:
        """Delete the model if it has no classes, and its folder if nothing else is in it."""
        with self._writing, self._latest() as state:
            if not state.manifest.classes:
                self._folder.remove()

    def _store_classifier(self) -> None:
        """Solve for the classifier if the file has none, because `amgc forget` needs no torch, and store it for later readers.

        A reader that may not write, or finds the folder locked or changed, goes on without.
        """
        state = self._state
        if not isinstance(state.classifier, IncrementalClassifier) or state.classifier.is_solved:
            return
        _solved(state)
        with suppress(OSError, ModelBusyError), self._folder.lock(0):
            if _identity(self._folder.manifest()) == _identity(state.manifest):
                self._state = state.write(self._folder, undoable=False)

    @contextmanager
    def _latest(self) -> Iterator[State]:
        """Hold the folder's lock and give its current state."""
        with self._folder.lock(self.patience):
            self.refresh()
            yield self._state

    def _fitted(self, state: State, first: Sequence[Picture]) -> State:
        """Return the state with an extractor. If there is none yet, it is chosen for these images or fitted on them."""
        if state.extractor is not None:
            return state
        features, size, seed = state.manifest.features, state.manifest.image["size"], int(state.manifest.made["seed"])
        if features["name"] in (VECTORS, FUNCTION):
            return _with_extractor(state, measured(features["name"], state.function, first))
        name, options, seen = features["name"], features["options"], look(first)
        if not name:
            name, why = choose(seen, size)
            options = extractors.defaults(name)
            chosen = features | {"name": name, "options": options, "why": why}
            state = replace(state, manifest=replace(state.manifest, features=chosen))
        if name == "patches":
            options, size = extractors.adapt(options, size, seen)
        extractor = extractors.create(name, options, size, seed)
        ready = _with_extractor(state, extractor)
        if extractor.needs_fit:
            extractors.fit(extractor, ready.frame, first, seed)
        return ready

    def _given(self, given: Given, split: Split = "test") -> list[Picture]:
        """Return a list of images, or of vectors if the model takes these."""
        return vectors(given, split) if self._state.manifest.noun == "vector" else pictures(given)

    # ---- read --------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def classes(self) -> dict[str, int]:
        """The number of images of each class, in the order in which classes were learned."""
        return dict(self._state.manifest.classes)

    def __repr__(self) -> str:
        return f"Model({str(self.path)!r}, {_summary(self._state)})"

    def _repr_html_(self) -> str:
        """Return a table of the classes for notebooks."""
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{count:,}</td></tr>" for name, count in list(self.classes.items())[:ROWS]
        )
        more = len(self.classes) - ROWS
        rest = f"<tr><td>and {more:,} more</td><td></td></tr>" if more > 0 else ""
        head = f"<p>Model in <code>{html.escape(str(self.path))}</code>: {html.escape(_summary(self._state))}</p>"
        columns = f"<tr><th>class</th><th>{self._state.manifest.noun}s</th></tr>"
        return f"{head}<table>{columns}{rows}{rest}</table>" if rows else head

    def predict(self, images: Given, top: int = 1, reject: float | None = None) -> list[Prediction]:
        """Return the `top` most likely classes of each image; images whose fit is below `reject` are marked as rejected."""
        found = []
        for one in self.predict_each(images, top, reject):
            if isinstance(one, PictureError):
                raise one
            found.append(one)
        return found

    def predict_each(self, images: Given, top: int = 1, reject: float | None = None) -> Iterator[Prediction | PictureError]:
        """Yield predictions in order, or the error of an unreadable image. Only one batch is in memory at a time."""
        return predict(self._state, self._given(images), top, reject)

    def evaluate(
        self,
        images: Given | Mapping[str, Given],
        labels: Sequence[str] | None = None,
        *,
        reject: float | None = None,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Compute accuracy, confusion and calibration on labelled images. Classes unknown to the model count as unseen.

        images : by class, as for `learn_all`, or in any other form with one of the `labels` for each.
        """
        if isinstance(images, Mapping):
            if labels is not None:
                raise ValueError("images are given by class, so there must be no labels.")
            by_class = {label: self._given(own) for label, own in images.items()}
            labels = [label for label, own in by_class.items() for _ in own]
            given = [picture for own in by_class.values() for picture in own]
        elif labels is None:
            raise ValueError("evaluate needs the labels of the images, or images by class as for learn_all.")
        else:
            given = self._given(images)
        if len(given) != len(labels):
            raise ValueError(f"there are {len(given)} images but {len(labels)} labels.")
        return evaluate(self._state, given, [normal(label) for label in labels], reject, progress)

    def info(self) -> Info:
        """Describe the model: classes, stored statistics and what is never stored."""
        return describe(self.path, self._state.manifest, self._state.contents)

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """Return the accuracy to expect for new images; None if there are too few to say, or no class statistics."""
        classifier = self._state.classifier
        return classifier.expected_accuracy() if isinstance(classifier, IncrementalClassifier) else None

    def packed(self) -> bytes:
        """Return the folder as a zip file, which `unpacked` opens. The state before the last change is not in it."""
        return pack(self._folder)

    @classmethod
    def unpacked(cls, content: bytes, path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Model:
        """Create a model in the folder `path` from a zip file that `packed` made."""
        folder = Folder(path)
        folder.check_free()
        folder.path.mkdir(parents=True, exist_ok=True)
        return cls.open(unpack(content, folder.path, most_bytes).path)

    def export_onnx(self, path: str | os.PathLike[str]) -> Exported:
        """Write the model as one ONNX file, verified with onnxruntime; see `amgc.model.export`. Needs the extra `onnx`."""
        from amgc.model.export import export_onnx

        return export_onnx(self._state, path)


def _summary(state: State) -> str:
    """Describe a state in a few words."""
    counts = state.manifest.classes
    dim, name = state.manifest.features["dim"], state.manifest.features["name"]
    images = f" from {plural(sum(counts.values()), state.manifest.noun)}" if any(counts.values()) else ""
    made = plural(len(counts), "class") + images
    return f"{made}, {f'{name} with {dim:,} features' if dim else 'features not fitted yet'}"


def _solved(state: State) -> State:
    """Solve for the classifier now, so that predictions do not wait."""
    if isinstance(state.classifier, IncrementalClassifier):
        _ = state.classifier.head_
    return state


def _identity(manifest: Manifest) -> tuple[Any, ...]:
    """Return what differs between two states of a folder.

    The files tell whether the folder was replaced by another model with the same number of changes.
    """
    return manifest.generation, manifest.files, manifest.previous is None


def _with_extractor(state: State, extractor: Extractor | Vectors) -> State:
    """Return the state with an extractor, and the image size and classifier parameters that follow from it."""
    manifest = state.manifest
    form = manifest.made["covariance"] or extractors.default_covariance(extractor)
    size = extractor.image_shape[1] if isinstance(extractor, Extractor) else None
    image: dict[str, int | None] = {**manifest.image, "size": size}
    made = manifest.made | {"classifier": {"covariance": form}}
    if privacy := made.get("privacy"):
        centre = made.pop("centre")
        if centre is None and isinstance(extractor, Extractor):
            centre = extractors.public_centre(extractor)
        made["classifier"] |= privacy | {"centre": centre}
    return replace(state, extractor=extractor, manifest=replace(manifest, image=image, made=made))
