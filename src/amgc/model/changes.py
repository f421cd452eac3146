"""Changes to a model: learn, merge and join classes. Each function takes a state and returns a new one.

`Folder.forget` and `Folder.rename` are the changes that need no torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from amgc.core.incremental import IncrementalClassifier
from amgc.core.repeated import LearnedBefore
from amgc.model.folder import ModelError, check_known
from amgc.model.inputs import ImageError, Input, Vectors
from amgc.model.manifest import FUNCTION, VECTORS
from amgc.model.state import FixedHead, State
from amgc.text import listing

ProgressCallback = Callable[[int, int], None]  # images done, images in total
Earlier: TypeAlias = Mapping[str, LearnedBefore]


@dataclass(frozen=True)
class Learned:
    """The result of `Model.learn`.

    added : number of images learned, by class.
    again : the classes among them that were known before.
    skipped : unreadable images, each with the reason.
    animated : animated images; only the first frame was used.
    repeated : images with the same pixels as another image of the same class in this call. Such images are learned once.
    learned_before : images that their class has probably learned before. They now count twice. This can be detected for
        classes of few images only (`amgc.core.repeated`).
    held : number of images by class, those of earlier calls included, that are in memory only (`Model.learn(hold=…)`).
    bad_shards : shards that were left out, each with the reason. `skipped`, `animated` and `repeated` name some of many.
    """

    added: dict[str, int]
    again: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    animated: tuple[str, ...] = ()
    seconds: float = 0.0
    repeated: tuple[str, ...] = ()
    held: dict[str, int] = field(default_factory=dict)
    learned_before: tuple[str, ...] = ()
    bad_shards: tuple[tuple[str, str], ...] = ()

    @property
    def images(self) -> int:
        return sum(self.added.values())


@dataclass
class Lesson:
    """Statistics of new images, before they are added to a model. Nothing else about the images is kept.

    added : number of images learned, by class. It is for the caller; a private model stores noisy numbers only.
    seen : classes and digests of images, so that copies count once. They are not stored.
    """

    classifier: IncrementalClassifier
    added: dict[str, int] = field(default_factory=dict)
    skipped: list[ImageError] = field(default_factory=list)
    animated: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    learned_before: list[str] = field(default_factory=list)
    seen: set[tuple[str, bytes]] = field(default_factory=set)

    @classmethod
    def begin(cls, state: State) -> Lesson:
        """Return an empty lesson for a model."""
        parameters: dict[str, Any] = state.manifest.made["classifier"]
        classifier = IncrementalClassifier(**parameters)
        if isinstance(state.classifier, IncrementalClassifier) and state.manifest.private:
            classifier.narrow_to = state.classifier.sums_.dim
        return cls(classifier)

    def add(
        self, state: State, given: Sequence[Input], labels: Sequence[str], on_corrupt: str, earlier: Earlier
    ) -> Iterator[int]:
        """Encode images batch by batch and add them to the statistics of their classes. Yields the number of images done.

        earlier : by class, the test whether an image was learned before.
        """
        done = 0
        for rows, features, errors in state.encoded(given):
            if errors and on_corrupt == "error":
                raise errors[0][1]
            self.skipped += [error for _, error in errors]
            self.animated += [given[row].name for row in rows if given[row].animated]
            fresh = []
            for place, row in enumerate(rows):
                key = labels[row], given[row].digest
                if key in self.seen and key[1]:  # vectors have none: equal ones may be different samples
                    self.repeated.append(given[row].name)
                else:
                    fresh.append(place)
                    if key[1]:
                        self.seen.add(key)
                    self.added[labels[row]] = self.added.get(labels[row], 0) + 1
                    if key[1] and labels[row] in earlier and earlier[labels[row]](features[place]):
                        self.learned_before.append(given[row].name)
            if fresh:
                self.classifier.collect(features.numpy()[fresh], np.array([labels[rows[place]] for place in fresh]))
            done += len(rows) + len(errors)
            yield done

    def joined(self, later: Lesson) -> Lesson:
        """Return both lessons as one. `skipped` is that of the later one."""
        counts = {label: self.added.get(label, 0) + later.added.get(label, 0) for label in {**self.added, **later.added}}
        return replace(later, classifier=copy.deepcopy(self.classifier).merge(later.classifier), added=counts)

    def result(self, again: tuple[str, ...], held: dict[str, int], seconds: float) -> Learned:
        """Return the result of `Model.learn`."""
        skipped = tuple((error.path, error.reason) for error in self.skipped)
        repeated, before = tuple(self.repeated), tuple(self.learned_before)
        return Learned(self.added, again, skipped, tuple(self.animated), seconds, repeated, held, before)


def check_enough(state: State, lesson: Lesson) -> None:
    """Raise an error if there are fewer images of a class than the model learns at a time."""
    fewest = int(state.manifest.made.get("fewest", 1))
    for label, count in lesson.added.items():
        if count < fewest:
            raise ModelError(
                f"this model learns at least {fewest} {state.manifest.noun}s of a class at a time, and there are {count} of "
                f"{label!r}. Collect more, or learn them in memory: `hold`, in Python, or `amgc serve`."
            )


def collect(state: State, images: Mapping[str, Sequence[Input]], progress: ProgressCallback | None, on_corrupt: str) -> Lesson:
    """Encode all images batch by batch and accumulate the statistics of their classes."""
    check_can_learn(state)
    given = [one for own in images.values() for one in own]
    labels = [label for label, own in images.items() for _ in own]
    _check_budget(state, list(images))  # before the work
    earlier: Earlier = {}
    if isinstance(state.classifier, IncrementalClassifier) and not state.manifest.private:
        statistics = state.classifier.statistics_
        found = {label: LearnedBefore(statistics, label) for label in images if label in statistics}
        earlier = {label: one for label, one in found.items() if one.can_tell}
    lesson = Lesson.begin(state)
    for done in lesson.add(state, given, labels, on_corrupt, earlier):
        if progress is not None:
            progress(done, len(given))
    if len(lesson.skipped) == len(given):
        first = lesson.skipped[0]
        raise ModelError(f"none of the {len(given)} {state.manifest.noun}s can be used; the first: {first}") from first
    lesson.classifier.finish()
    return lesson


def check_can_learn(state: State) -> None:
    """Raise an error if a model has no class statistics."""
    if isinstance(state.classifier, FixedHead):
        raise ModelError(
            f"this model cannot learn: it was created from {state.manifest.made.get('from', 'a trained head')} and has no "
            "class statistics. Create one from a run of the AMGC family, or learn the images in a new model."
        )


def _check_budget(state: State, labels: Sequence[str]) -> None:
    """Raise an error if a private model has no budget left for a lesson of these classes."""
    if isinstance(state.classifier, IncrementalClassifier) and state.classifier.privacy_ is not None:
        state.classifier.privacy_.check(state.classifier.sums_.spent, labels)


def learn(state: State, lesson: Lesson) -> State:
    """Add the statistics of new images, then solve for the classifier."""
    assert not isinstance(state.classifier, FixedHead)  # `collect` refuses it
    if state.classifier is None:
        return replace(state, classifier=lesson.classifier).solved()
    _check_budget(state, list(lesson.added))  # another process may have spent it meanwhile
    return replace(state, classifier=copy.deepcopy(state.classifier).merge(lesson.classifier)).solved()


def merge(state: State, other: State) -> State:
    """Add all classes of another model with the same extractor."""
    if _vectors_of(state) != _vectors_of(other):
        kinds = [f"{kind[1]} of {kind[2]} numbers" if (kind := _vectors_of(one)) else "images" for one in (state, other)]
        raise ModelError(f"the models have different features: {' and '.join(kinds)}.")
    if (state.checksum, state.manifest.image.scale) != (other.checksum, other.manifest.image.scale):
        shown = [one.checksum[:12] or "none yet" for one in (state, other)]
        raise ModelError(
            f"the models have different extractors ({shown[0]} and {shown[1]}), so their features are not comparable. Let one "
            "model learn its first images, then create the others with that model as `features`."
        )
    if isinstance(state.classifier, FixedHead) or isinstance(other.classifier, FixedHead):
        raise ModelError("a model created from a trained head cannot be merged: it has no class statistics.")
    if state.manifest.private != other.manifest.private:
        raise ModelError("both models must have a privacy budget, or neither of them.")
    if other.classifier is None:
        return state
    if state.classifier is None:
        return replace(state, classifier=other.classifier)
    if shared := _same_images(state.classifier, other.classifier):
        raise ModelError(
            f"both models learned {listing(shared)} from the same images, which would count twice. If one model is a copy of "
            "the other, forget these classes in one of them first; to start a second site, use the extractor only."
        )
    return replace(state, classifier=copy.deepcopy(state.classifier).merge(other.classifier)).solved()


def merged(states: Sequence[State]) -> State:
    """Return the state of a new model with the classes of several models."""
    state, *others = states
    for other in others:
        state = merge(state, other)
    made = state.manifest.made | {"by": "merge"}
    return replace(state, manifest=replace(state.manifest, made=made, files={}, generation=0, created="", undo=""))


def restored(state: State, now: State) -> State:
    """Return an earlier state of a model, or the state of another model, as the successor of the state `now`."""
    same = state.checksum and state.checksum == now.checksum
    kept = {role: entry for role, entry in now.manifest.files.items() if same and role == "extractor"}
    manifest = replace(state.manifest, files=kept, generation=now.manifest.generation)
    if manifest.features.name != FUNCTION:
        return replace(state, manifest=manifest)
    function = state.function or now.function
    extractor = replace(state.extractor, function=function) if isinstance(state.extractor, Vectors) else None
    return replace(state, manifest=manifest, extractor=extractor, function=function)


def _vectors_of(state: State) -> tuple[object, ...] | None:
    """Return kind, function and number of features of a model whose features are not amgc's; None for others."""
    features = state.manifest.features
    return (features.name, features.given, features.dim) if features.name in (VECTORS, FUNCTION) else None


def _same_images(one: IncrementalClassifier, other: IncrementalClassifier) -> list[str]:
    """Return the classes with the same number of images and bit-identical means."""
    if one.privacy_ is not None and other.privacy_ is not None:
        totals = [dict(zip(own.classes, own.total.tolist(), strict=True)) for own in (one.sums_, other.sums_)]
        return [str(label) for label in totals[0] if totals[0][label] == totals[1].get(label)]
    mine, theirs = one.statistics_, other.statistics_
    both = [(label, mine.index(label), theirs.index(label)) for label in mine.classes if label in theirs]
    same = [label for label, i, k in both if mine.count[i] == theirs.count[k] and torch.equal(mine.mean[i], theirs.mean[k])]
    return [str(label) for label in same]


def forget(state: State, label: str) -> State:
    """Forget a class of a private model. All of its statistics follow from noisy sums, which `Folder.forget` does not know."""
    check_known(state.manifest, label)
    if len(state.manifest.classes) == 1:
        raise ModelError(
            "the last class of a private model cannot be forgotten, because the record of its budget would be lost. "
            "Delete the folder instead."
        )
    assert isinstance(state.classifier, IncrementalClassifier)
    return replace(state, classifier=copy.deepcopy(state.classifier).forget(label)).solved()


def join(state: State, label: str, into: str) -> State:
    """Make one class of two."""
    if isinstance(state.classifier, FixedHead):
        raise ModelError("classes of a model created from a trained head cannot be joined: it has no class statistics.")
    assert state.classifier is not None
    return replace(state, classifier=copy.deepcopy(state.classifier).rename(label, into, join=True)).solved()
