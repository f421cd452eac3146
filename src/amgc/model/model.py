"""`Model`: a folder that learns classes from images, predicts, forgets and merges, without storing any image."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from amgc.core.expected import ExpectedAccuracy
from amgc.core.incremental import IncrementalClassifier
from amgc.core.privacy import Privacy
from amgc.core.statistics import Form
from amgc.data.shards import Shard
from amgc.data.vectors import Split
from amgc.model import changes, edits, extractors, sharded
from amgc.model.archive import pack, unpack
from amgc.model.changes import Learned, Progress
from amgc.model.creation import fitted, new_state
from amgc.model.engines import here
from amgc.model.folder import PATIENCE, Folder, ModelError
from amgc.model.info import Info, class_table, describe, summary
from amgc.model.manifest import FUNCTION
from amgc.model.names import checked_name, normal
from amgc.model.parts import Job, first_samples
from amgc.model.pictures import Given, Picture, PictureError, pictures
from amgc.model.predict import Evaluation, Prediction, evaluate, labelled, predict
from amgc.model.sharded import Engine, OnBadShard
from amgc.model.sharded import Progress as ShardProgress
from amgc.model.state import State
from amgc.model.vectors import Function, vectors

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from amgc.model.export import Exported
    from amgc.model.extractors import ExtractorOptions

OnCorrupt = Literal["error", "skip"]
MOST_BYTES = 1 << 31  # of a model in a zip file


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
        self._held = changes.Held()

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
        name = folder.manifest().features["name"]
        if features is not None and name != FUNCTION:
            raise ValueError(f"the features of the model in {str(folder.path)!r} are {name or 'not chosen'}, not a function.")
        return cls(folder, State.read(folder, function=features).stored(folder))

    def refresh(self) -> bool:
        """Load changes made by other processes. Returns whether there were any."""
        with self._writing:
            before = self._state
            if self._folder.manifest().identity != before.manifest.identity:
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
                    state = fitted(state, [picture for own in given.values() for picture in own])
                    lesson = changes.collect(state, given, progress, on_corrupt)
                # Features of an extractor that is not stored yet cannot be held for later.
                lesson, held = self._held.add(state, lesson, hold and self._state.extractor is not None)
                again = tuple(label for label in lesson.added if label in state.manifest.classes)
                if lesson.added:
                    self._state = changes.learn(state, lesson).write(self._folder)
        return lesson.result(again, held, time.monotonic() - start)

    def learn_shards(
        self,
        shards: Sequence[Shard],
        engine: Engine = here,
        *,
        progress: Callable[[ShardProgress], None] = lambda _: None,
        on_bad_shard: OnBadShard = "error",
        chosen: Mapping[str, Any] | None = None,
    ) -> Learned:
        """Learn from shards, each read by one worker. The result does not depend on the number of workers.

        Unreadable images are skipped. Copies of an image count once in a shard. Features that are fitted on the first images
        are fitted on those of the first shards. If this process is killed, the same call goes on with the finished shards.

        shards : of `amgc.data.shards.open_source`. engine : where the workers run; see `amgc.model.engines`.
        on_bad_shard : "skip" leaves out shards that cannot be read in several tries. They are named in `Learned.bad_shards`.
        chosen : settings with which the model was created, for `amgc learn`.
        """
        start = time.monotonic()
        changes.check_can_learn(self._state)
        sharded.check(self._state)
        with self._writing, sharded.only_driver(self.path) as folder:
            with self._latest() as state:
                if state.extractor is None:
                    first = [Picture(one.name, one.content) for one in first_samples(shards, extractors.FIT_IMAGES)]
                    self._state = state = fitted(state, first).write(self._folder)
            settings = dict(chosen or {})
            plan = sharded.plan_of(state, Job(os.path.abspath(self.path), state.checksum), shards, settings)
            kept = sharded.Kept(folder, plan)
            if sharded.added_before(kept.found, plan, state):
                sharded.remove(folder)
                raise ModelError("these shards were learned already: an earlier call was stopped after it had added them.")
            lesson, merged = sharded.collect(state, self.path, shards, engine, progress, on_bad_shard, settings)
            with self._latest() as now:
                if now.checksum != state.checksum:
                    raise ModelError(f"the model in {str(self.path)!r} was replaced while it learned; repeat the command.")
                again = tuple(label for label in lesson.added if label in now.manifest.classes)
                changed = changes.learn(now, lesson)
                kept.adding(now.manifest.generation, changed.class_counts)
                self._state = changed.write(self._folder)
            sharded.remove(folder)
        bad = tuple((name, reason) for name, reason in merged.bad)
        return replace(lesson.result(again, {}, time.monotonic() - start), bad_shards=bad)

    def forget(self, label: str) -> Model:
        """Forget a class: delete its count, mean and covariance. Its part of a shared covariance remains.

        This cannot be undone: no earlier state stays in the folder.
        """
        with self._latest() as state:
            edits.forget(self._folder, normal(label))
            self._state = State.read(self._folder, state).solved()
            with suppress(OSError):  # the class is forgotten; the next process that opens the model tries again
                self._state = self._state.write(self._folder, undoable=False)
        return self

    def rename(self, label: str, new: str, *, join: bool = False) -> Model:
        """Rename a class. If another class has the name, `join` makes one class of both, as if learned as one."""
        old, name = normal(label), checked_name(new)
        with self._latest() as state:
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
        with self._latest():
            self._folder.undo()
            self.refresh()
        return self

    def drop_previous(self) -> Model:
        """Delete the state before the last change from the folder. The change can no longer be undone."""
        with self._latest():
            self._folder.drop_previous()
            self.refresh()
        return self

    def merge(self, other: Model) -> Model:
        """Add the classes of another model, as if its images had been learned here. Both need the same extractor."""
        with self._latest() as state:
            self._state = changes.merge(state, other._state).write(self._folder)
        return self

    @classmethod
    def merged(cls, models: Sequence[Model], path: str | os.PathLike[str]) -> Model:
        """Create a model in the folder `path` with the classes of several models, which do not change."""
        return cls.begin(path, changes.merged([model._state for model in models]))

    @property
    def state(self) -> State:
        """The current state. It is never modified, so `restore` can return to it."""
        return self._state

    def restore(self, state: State) -> Model:
        """Replace the current state by an earlier one of this model, or by that of another model."""
        with self._latest() as now:
            self._state = changes.restored(state, now).write(self._folder)
        return self

    def remove_if_empty(self) -> None:
        """Delete the model if it has no classes, and its folder if nothing else is in it."""
        with self._latest() as state:
            if not state.manifest.classes:
                self._folder.remove()

    @contextmanager
    def _latest(self) -> Iterator[State]:
        """Hold the locks of this object and of its folder, and give the folder's current state."""
        with self._writing, self._folder.lock(self.patience):
            self.refresh()
            yield self._state

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
        return f"Model({str(self.path)!r}, {summary(self._state.manifest)})"

    def _repr_html_(self) -> str:
        """Return a table of the classes for notebooks."""
        return class_table(self.path, self._state.manifest)

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
        given, names = labelled(images, labels, self._given)
        return evaluate(self._state, given, names, reject, progress)

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
        folder.prepare()
        return cls.open(unpack(content, folder.path, most_bytes).path)

    def export_onnx(self, path: str | os.PathLike[str]) -> Exported:
        """Write the model as one ONNX file, verified with onnxruntime; see `amgc.model.export`. Needs the extra `onnx`."""
        from amgc.model.export import export_onnx

        return export_onnx(self._state, path)
