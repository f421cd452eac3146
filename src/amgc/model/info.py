"""Describe a model: classes, stored statistics and what is never stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amgc.estimator import AMGCClassifier
from amgc.model.folder import MANIFEST, Manifest
from amgc.model.state import FixedHead, State

FEW = 2  # with at most this many images, the features of each image follow from the class's mean and covariance
COVARIANCE = {
    "shared": "one covariance of the features, shared by all classes (the contribution of a forgotten class remains)",
    "full": "for each class the covariance of its features",
    "lowrank": "for each class a low-rank approximation of the covariance of its features",
    "diagonal": "for each class the variances of its features",
}


@dataclass(frozen=True)
class Info:
    """The result of `Model.info`.

    classes : number of images of each class, in the order in which classes were learned; 0 if it is not known.
    features : name, options and number of features of the extractor, and its checksum ("" before it is fitted).
    margins : m_k of the paper by class; empty if all are 0.
    bytes : size of each file.
    kept, not_kept : what is stored and what is never stored, in words.
    changeable : whether the model can learn.
    can_undo : whether the state before the last change is stored.
    """

    path: str
    classes: dict[str, int]
    features: dict[str, Any]
    image: dict[str, int | None]
    covariance: str | None
    margins: dict[str, float]
    bytes: dict[str, int]
    kept: tuple[str, ...]
    not_kept: tuple[str, ...]
    made: dict[str, Any]
    created: str
    changed: str
    generation: int
    amgc: str
    changeable: bool = True
    can_undo: bool = False

    @property
    def images(self) -> int:
        return sum(self.classes.values())


def describe(path: Path, state: State) -> Info:
    """Return the description of a model in the folder `path`."""
    manifest, classifier = state.manifest, state.classifier
    form, margins = None, {}
    if isinstance(classifier, AMGCClassifier):
        form = classifier.statistics_.form
        margins = dict(zip(map(str, classifier.classes_.tolist()), classifier.margins_.tolist(), strict=True))
    return Info(
        path=str(path),
        classes=dict(manifest.classes),
        features={**manifest.features, "checksum": state.checksum},
        image=dict(manifest.image),
        covariance=form,
        margins=margins if any(margins.values()) else {},
        bytes={MANIFEST: (path / MANIFEST).stat().st_size, **_file_sizes(manifest)},
        kept=tuple(_kept(state, form)),
        not_kept=(
            "complete images" if _has_fragments(state) else "images or parts of images, encoded or as pixels",
            "features of single images; only sums over all images of a class are stored",
            "file names, dates and locations of images",
        ),
        made=manifest.made,
        created=manifest.created,
        changed=manifest.changed,
        generation=manifest.generation,
        amgc=manifest.amgc,
        changeable=not isinstance(classifier, FixedHead),
        can_undo=manifest.previous is not None,
    )


def _file_sizes(manifest: Manifest) -> dict[str, int]:
    """Return the sizes of the files of this state and of the one before the last change."""
    before = (manifest.previous or {}).get("files", {}).values()
    return {entry["name"]: entry["bytes"] for entry in before} | {entry.name: entry.bytes for entry in manifest.files.values()}


def _kept(state: State, form: str | None) -> list[str]:
    kept = ["class names"]
    if isinstance(state.classifier, FixedHead):
        kept.append("for each class its weights in the classifier; no statistics, so the model cannot learn")
    elif state.classifier is not None:
        kept += ["for each class the number of images and the mean of their features", COVARIANCE[form or "full"]]
        kept.append("the linear classifier computed from these")
        few = [name for name, count in state.manifest.classes.items() if count <= FEW]
        if few:
            kept.append(
                f"for {len(few)} classes with one or two images (such as {few[0]!r}) the features of these images: they follow "
                "from mean and covariance"
            )
    if state.extractor is not None and state.extractor.name == "patches":
        fragments = "filters that are fragments of the first images, a few pixels wide, up to brightness and contrast"
        drawn = "filters drawn at random with the covariance of small patches of the first images; no fragments of images"
        kept.append(fragments if _has_fragments(state) else drawn)
        kept.append("means and standard deviations of the first images' features")
    elif state.extractor is not None:
        kept.append(f"the network {state.extractor.name} with its weights")
    if state.manifest.previous is not None:
        kept.append(
            "the state before the last change, for undo: what the change added or deleted follows from the two (`amgc undo "
            "MODEL --clear` deletes it)"
        )
    return kept


def _has_fragments(state: State) -> bool:
    """Return whether the filters are fragments of images."""
    return state.extractor is not None and getattr(state.extractor.options, "draw", "") == "patches"
