"""One pass over new images: what is learned from them, before it is joined to what a model knows already."""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amgc.core.inputs import listing
from amgc.core.statistics import ClassStatistics
from amgc.estimator import AMGCClassifier
from amgc.model.extractors import batches, encode
from amgc.model.fit import ROWS, Fits, blank, project
from amgc.model.head import FixedHead
from amgc.model.pictures import Picture, PictureError
from amgc.model.results import ModelError
from amgc.model.state import State, Tempered

MOST = 10.0  # times surer than right, at most; below 1, where few images are all well apart, the Gaussians know better
SHOWN = 2048  # images of a lesson, at most, by which it is seen how sure the classifier may be
Progress = Callable[[int, int], None]  # pictures done, pictures in all


@dataclass
class Lesson:
    """Statistics of new images by class, and for a moment the projected rows that their fits come from, and some whole ones."""

    classifier: AMGCClassifier
    statistics: ClassStatistics  # of projected rows
    rows: dict[str, Tensor]
    shown: list[tuple[Tensor, list[str]]] = field(default_factory=list)  # features of a few, to see how sure to be
    skipped: list[PictureError] = field(default_factory=list)
    animated: list[str] = field(default_factory=list)

    @property
    def added(self) -> dict[str, int]:
        return dict(zip(map(str, self.statistics.classes), self.statistics.count.tolist(), strict=True))


def take(state: State, given: Mapping[str, Sequence[Picture]], progress: Progress | None, on_corrupt: str) -> Lesson:
    """Encode all pictures, a batch at a time, and remember counts, means and covariances."""
    assert state.extractor is not None
    if isinstance(state.classifier, FixedHead):
        raise ModelError(
            f"this model cannot learn: it was made from {state.manifest.made.get('from', 'a trained head')}, which keeps no "
            "statistics of its classes. Make one from a run of the AMGC family, or learn the images anew."
        )
    pictures = [picture for own in given.values() for picture in own]
    labels = [label for label, own in given.items() for _ in own]
    sampled = {label: _sample(label, len(own)) for label, own in given.items()}
    numbers = [number for own in given.values() for number in range(len(own))]
    parameters: dict[str, Any] = state.manifest.made["classifier"]
    lesson = Lesson(AMGCClassifier(**parameters), blank(state.extractor.dim), {})
    kept: dict[str, list[Tensor]] = {}
    few_each = max(2, min(64, SHOWN // len(given)))
    done = 0
    for rows, pixels, wrong in batches(state.frame, pictures):
        if wrong and on_corrupt == "error":
            raise wrong[0][1]
        lesson.skipped += [error for _, error in wrong]
        lesson.animated += [pictures[row].name for row in rows if pictures[row].animated]
        if rows:
            features, own = encode(state.extractor, pixels), [labels[row] for row in rows]
            few = project(features)
            lesson.classifier.partial_fit(features.numpy(), np.array(own))
            lesson.statistics.update(few, own)
            some = [at for at, row in enumerate(rows) if numbers[row] < few_each]
            lesson.shown.append((features[some], [own[at] for at in some]))
            for label in dict.fromkeys(own):
                chosen = [at for at, row in enumerate(rows) if labels[row] == label and numbers[row] in sampled[label]]
                kept.setdefault(label, []).append(few[chosen])
        done += len(rows) + len(wrong)
        if progress is not None:
            progress(done, len(pictures))
    if not kept:
        first = lesson.skipped[0] if lesson.skipped else None
        raise ModelError(
            f"none of {len(pictures)} pictures can be learned from" + (f"; the first: {first}" if first else ".")
        ) from first
    lesson.rows = {label: torch.cat(parts) for label, parts in kept.items()}
    return lesson


def _sample(label: str, count: int) -> set[int] | range:
    """Which of a class's images the fit is calibrated on; the same however classes are put together into calls."""
    if count <= ROWS:
        return range(count)
    seed = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "big") >> 1
    return set(torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:ROWS].tolist())


def joined(state: State, lesson: Lesson) -> State:
    """The model after a lesson: one solve."""
    assert not isinstance(state.classifier, FixedHead)  # such a model takes no lesson
    classifier, fits = lesson.classifier, state.fits
    if state.classifier is None:
        fits = Fits.empty(classifier.statistics_.dim)
    else:
        classifier = copy.deepcopy(state.classifier).merge(classifier)
    tempered = state.tempered
    shown = torch.cat([features for features, _ in lesson.shown]).numpy()
    found = classifier.overconfidence(shown, [label for _, labels in lesson.shown for label in labels])
    if found is not None:
        tempered = tempered.with_more(sum(lesson.added.values()), math.log(min(max(found, 1.0), MOST)))
    fits = fits and fits.learned(lesson.statistics, lesson.rows)
    return replace(state, classifier=_solved(classifier, tempered), fits=fits, tempered=tempered)


def _solved(classifier: AMGCClassifier, tempered: Tempered) -> AMGCClassifier:
    """Solved now, so that nobody who asks waits, and no surer than images have taught it to be."""
    return classifier.temper(math.exp(tempered.log))


def merged(state: State, other: State) -> State:
    """The model with all that another knows."""
    if (state.checksum, state.manifest.image["scale"]) != (other.checksum, other.manifest.image["scale"]):
        shown = [one.checksum[:12] or "none yet" for one in (state, other)]
        raise ModelError(
            f"the two models have different extractors ({shown[0]} and {shown[1]}), so their features mean different things. "
            "Start both sites from one: when a model has seen its first images, create the others with it as `features`."
        )
    if isinstance(state.classifier, FixedHead) or isinstance(other.classifier, FixedHead):
        raise ModelError("a model that was made from a trained head alone cannot be merged: it keeps no statistics.")
    if other.classifier is None:
        return state
    if copied := _copied(state.classifier, other.classifier):
        raise ModelError(
            f"both models learned {listing(copied)} from the same pictures (one was copied from the other?), which would count "
            "twice. Forget the class in one of them first, or learn new classes in a model that has only the extractor."
        )
    if state.classifier is None:
        return replace(state, classifier=other.classifier, fits=other.fits, tempered=other.tempered)
    tempered = state.tempered.with_more(other.tempered.images, other.tempered.log)
    classifier = _solved(copy.deepcopy(state.classifier).merge(other.classifier), tempered)
    fits = state.fits and other.fits and state.fits.merged(other.fits)
    return replace(state, classifier=classifier, fits=fits, tempered=tempered)


def _copied(one: AMGCClassifier | None, other: AMGCClassifier) -> list[str]:
    """Classes with the same number of images and, to the bit, the same mean."""
    if one is None:
        return []
    mine, theirs = one.statistics_, other.statistics_
    both = [(label, mine.index(label), theirs.index(label)) for label in mine.classes if label in theirs]
    same = [label for label, i, k in both if mine.count[i] == theirs.count[k] and torch.equal(mine.mean[i], theirs.mean[k])]
    return [str(label) for label in same]


def without(state: State, label: str) -> State:
    """The model without a class."""
    counts = state.manifest.classes
    if label not in counts:
        raise ModelError(f"the model knows no class {label!r}; it knows {listing(list(counts))}.")
    if len(counts) == 1:
        return replace(state, classifier=None, fits=None, tempered=Tempered())
    fits = state.fits and state.fits.without(label)
    if isinstance(state.classifier, FixedHead):
        return replace(state, classifier=state.classifier.without(label), fits=fits)
    with warnings.catch_warnings():  # that the shared covariance keeps the class's part: `info` says so
        warnings.filterwarnings("ignore", message="the shared covariance still contains")
        classifier = copy.deepcopy(state.classifier)
        assert classifier is not None
        classifier.forget(label)
    return replace(state, classifier=_solved(classifier, state.tempered), fits=fits)
