"""`Model`: a folder that learns classes from images, predicts, forgets and merges, without storing any image."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from amgc.core.expected import ExpectedAccuracy
from amgc.core.incremental import IncrementalClassifier
from amgc.core.privacy import Privacy
from amgc.core.statistics import Form
from amgc.model import changes
from amgc.model.changes import Learned, ProgressCallback
from amgc.model.folder import MOST_BYTES, Folder, ModelError, check_known, check_new_name, pack, unpack
from amgc.model.held import States
from amgc.model.info import Info, class_table, describe, summary
from amgc.model.inputs import Function, Given, ImageError, Input, images_from, vectors_from
from amgc.model.manifest import FUNCTION, checked_name, normal
from amgc.model.predict import Evaluation, Prediction, check_can_predict, evaluate, labelled, predict
from amgc.model.state import State, fitted, new_state

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from amgc.model.extractors import ExtractorOptions
    from amgc.model.onnx import Exported

OnCorrupt = Literal["error", "skip"]


class Model(States):
    """An image classifier that is stored in a folder. `Model.create` creates one, `Model.open` opens it again.

    Images may be paths, PIL images, arrays (h, w, c), tensors (c, h, w), encoded bytes, or sequences and batches of these.

    A change is first written to the folder, then becomes visible in memory, each in one step. Threads may predict while another
    thread learns. `refresh` loads changes made by other processes.

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
        fewest : number of images below which `learn` does not add images to a class, except in memory (`hold`). If a single
            image is added, its features are the difference of the models before and after.
        options : further options of the extractor, as for `amgc run`: `amgc run --features NAME --help` documents them.
        """
        common = {"filters": filters, "draw": draw, "weights": None if weights is None else os.fspath(weights)}
        chosen = {**options, **{option: value for option, value in common.items() if value is not None}}
        return cls.begin(path, new_state(features, size, seed, covariance, privacy, fewest, chosen))

    @classmethod
    def begin(cls, path: str | os.PathLike[str], state: State) -> Model:
        """Create a model with the given state."""
        folder = Folder(path)
        folder.prepare()
        with folder.lock():
            folder.check_free()  # another process may have created a model meanwhile
            return cls(folder, state.write(folder))

    @classmethod
    def open(cls, path: str | os.PathLike[str], features: Function | None = None) -> Model:
        """Open the model in a folder.

        features : the function that computes the features, if the model was created with one. Without it, the model can be
            described, changed and exported, but it cannot learn from images or predict.
        """
        folder = Folder(path)
        name = folder.manifest().features.name
        if features is not None and name != FUNCTION:
            raise ValueError(f"the features of the model in {str(folder.path)!r} are {name or 'not chosen'}, not a function.")
        return cls(folder, State.read(folder, function=features).stored(folder))

    # ---- change ------------------------------------------------------------------------------------------------------

    def learn(
        self,
        images: Given,
        label: str,
        *,
        progress: ProgressCallback | None = None,
        on_corrupt: OnCorrupt = "error",
        hold: int = 0,
    ) -> Learned:
        """Learn one class from images; see `learn_all`.

        hold : learn fewer images than this, or than the model's `fewest`, in memory only. The model answers with them, and
            writes them to its folder once there are as many of the class, or when you call `write_held`. Before that they are
            lost if the process ends. 0: write them at once; fewer than `fewest` are an error. Private models hold none.
        """
        return self._learn({label: images}, progress, on_corrupt, hold)

    def learn_all(
        self,
        images: Mapping[str, Given],
        *,
        progress: ProgressCallback | None = None,
        on_corrupt: OnCorrupt = "error",
    ) -> Learned:
        """Learn classes from images, given by class, in one pass over the images.

        Images of a known class are added to its statistics. The first call chooses features by its images, and fits patches on
        them. Images of a class with the same pixels count once.

        progress : called with the number of images done and of all images.
        on_corrupt : "skip" skips unreadable images; it is an error if no image is readable.
        """
        return self._learn(images, progress, on_corrupt)

    def _learn(
        self, images: Mapping[str, Given], progress: ProgressCallback | None, on_corrupt: OnCorrupt, hold: int = 0
    ) -> Learned:
        if on_corrupt not in ("error", "skip"):
            raise ValueError(f"on_corrupt must be 'error' or 'skip', not {on_corrupt!r}.")
        start = time.monotonic()
        given: dict[str, list[Input]] = {}
        for label, own in images.items():
            if found := vectors_from(own, "train") if self._state.manifest.noun == "vector" else images_from(own):
                given.setdefault(checked_name(label), []).extend(found)  # two spellings of a name are one class
        if not given:
            raise ModelError(f"there are no {self._state.manifest.noun}s to learn from.")
        with self._writing:
            lesson, used = None, self._state.checksum
            if self._state.extractor is not None:  # encode before taking the folder's lock: this is most of the work
                lesson = changes.collect(self._state, given, progress, on_corrupt)
            with self.locked() as state:
                if lesson is None or used != state.checksum:
                    state = fitted(state, [one for own in given.values() for one in own])
                    lesson = changes.collect(state, given, progress, on_corrupt)
                again = tuple(label for label in lesson.added if label in self.classes)
                if hold and not state.manifest.private:
                    self._learn_few(state, lesson, hold)
                else:
                    changes.check_enough(state, lesson)
                    self.write(changes.learn(state, lesson))
        return lesson.result(again, self._held.counts, time.monotonic() - start)

    def _learn_few(self, state: State, lesson: changes.Lesson, hold: int) -> None:
        """Learn a lesson of one class, in memory only if it has few images."""
        (label,) = lesson.added
        held = self._held.plus(lesson)
        if held.counts[label] >= max(hold, int(state.manifest.made.get("fewest", 1))):
            self.write(changes.learn(state, held.lessons[label]), held.without(label))
        else:
            if state is not self._stored:  # the features were chosen by these images
                self.write(state)
            self._show(self._stored, held)

    def forget(self, label: str) -> Model:
        """Forget a class: delete its count, mean and covariance. Its part of a shared covariance remains.

        This cannot be undone: no earlier state stays in the folder.
        """
        name = normal(label)
        with self.locked() as state:
            held = self._held.without(name)
            if name not in state.manifest.classes and name in self._held.lessons:
                self._folder.drop_previous()
                self._show(State.read(self._folder, state), held)
            elif state.manifest.private:
                self.write(changes.forget(state, name))
            else:
                self._folder.forget(name)
                left = State.read(self._folder, state).solved()
                with suppress(OSError):  # the class is forgotten; the next process that opens the model tries again
                    left = left.write(self._folder, undoable=False)
                self._show(left, held)
        return self

    def rename(self, label: str, new: str, *, join: bool = False) -> Model:
        """Rename a class. If another class has the name, `join` makes one class of both, as if learned as one."""
        old, name = normal(label), checked_name(new)
        with self.locked() as state:
            if not (join and name != old):
                check_new_name(self._state.manifest, old, name)
            check_known(self._state.manifest, old)
            held, stored = self._held.renamed(old, name), state.manifest.classes
            if old in stored and name in stored:
                self.write(changes.join(state, old, name), held)
            elif old in stored:
                self._folder.rename(old, name)
                self._show(State.read(self._folder, state), held)
            else:
                self._show(state, held)
        return self

    def undo(self) -> Model:
        """Undo the last change (learn, rename, join or merge). The earlier state is restored exactly.

        The folder stores one earlier state, so only one change can be undone.
        """
        with self.locked():
            self._folder.undo()
            self.refresh()
        return self

    def drop_previous(self) -> Model:
        """Delete the state before the last change from the folder. The change can no longer be undone."""
        with self.locked():
            self._folder.drop_previous()
            self.refresh()
        return self

    def merge(self, other: Model) -> Model:
        """Add the classes of another model, as if its images had been learned here. Both need the same extractor."""
        with self.locked() as state:
            self.write(changes.merge(state, other._stored))
        return self

    @classmethod
    def merged(cls, models: Sequence[Model], path: str | os.PathLike[str]) -> Model:
        """Create a model in the folder `path` with the classes of several models, which do not change."""
        return cls.begin(path, changes.merged([model._stored for model in models]))

    @property
    def _read(self) -> Callable[[Given], list[Input]]:
        return vectors_from if self._state.manifest.noun == "vector" else images_from

    # ---- read --------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def classes(self) -> dict[str, int]:
        """The number of images of each class, in the order in which classes were learned."""
        return dict(self._state.manifest.classes)

    def __repr__(self) -> str:
        return f"Model({str(self.path)!r}, {summary(self._state.manifest)})"

    def _repr_html_(self) -> str:
        """Return a table of the classes for notebooks."""
        return class_table(self.path, self._state.manifest)

    def predict(self, images: Given, top: int = 1, reject: float | None = None) -> list[Prediction]:
        """Return the `top` most likely classes of each image; images whose fit is below `reject` are marked as rejected."""
        found: list[Prediction] = []
        for one in self.predict_each(images, top, reject):
            if isinstance(one, ImageError):
                raise one
            found.append(one)
        return found

    def predict_each(self, images: Given, top: int = 1, reject: float | None = None) -> Iterator[Prediction | ImageError]:
        """Yield predictions in order, or the error of an unreadable image. Only one batch is in memory at a time."""
        check_can_predict(self._state, top, reject)
        return predict(self._state, self._read(images), top, reject)

    def evaluate(
        self,
        images: Given | Mapping[str, Given],
        labels: Sequence[str] | None = None,
        *,
        reject: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> Evaluation:
        """Compute accuracy, confusion and calibration on labelled images. Classes unknown to the model count as unseen.

        images : by class, as for `learn_all`, or in any other form with one of the `labels` for each.
        """
        given = labelled(images, labels, self._read)
        told = None if progress is None else lambda done: progress(done, len(given[0]))
        return evaluate(self._state, [given], reject, told)

    def info(self) -> Info:
        """Describe the model: classes, stored statistics and what is never stored."""
        return describe(self.path, self._state.manifest, self._state.contents, self._held.counts)

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """Return the expected accuracy for new images; None if there are too few to estimate it, or no class statistics."""
        classifier = self._state.classifier
        return classifier.expected_accuracy() if isinstance(classifier, IncrementalClassifier) else None

    def packed(self) -> bytes:
        """Return the folder as a zip file, which `unpacked` opens. Lessons in memory are not in it."""
        return pack(self._folder)

    @classmethod
    def unpacked(cls, content: bytes, path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Model:
        """Create a model in the folder `path` from a zip file that `packed` made."""
        unpack(content, Path(path), most_bytes)
        return cls.open(path)

    def export_onnx(self, path: str | os.PathLike[str]) -> Exported:
        """Write the model as one ONNX file, verified with onnxruntime; see `amgc.model.onnx`. Needs the extra `onnx`.

        Lessons in memory are not in it.
        """
        from amgc.model.onnx import export_onnx

        return export_onnx(self._stored, path)
