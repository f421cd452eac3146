"""Describe a model: classes, stored statistics and what is never stored. Importing this module does not import torch."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from amgc import files, tensor_files
from amgc.core.accounting import gaussian_loss, largest_area
from amgc.model import earlier
from amgc.model.folder import Folder
from amgc.model.manifest import CLASSES, MANIFEST, VECTORS, Manifest
from amgc.text import plural

ROWS = 20  # classes that a notebook shows
MOST = 512  # maximum epsilon of a class; `gaussian_epsilon` overflows above it
FEW = 2  # up to this number of images, the features of each image can be computed from the mean and covariance of the class
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
        background : the network whose features are known from public images, if they are.
    margins : m_k of the paper by class; empty if all are 0.
    bytes : size of each file.
    kept, not_kept : what is stored and what is never stored, in words.
    changeable : whether the model can learn.
    can_undo : whether the state before the last change is kept, outside of the folder.
    reveals : what others can find out about images from the model, in words.
    held : number of images by class that are in memory only (`Model.learn(hold=…)`).
    privacy : settings of differential privacy, and `spent`, the ε of each class; None if there is no budget. With one, the
        numbers of images in `classes` have noise.
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
    reveals: tuple[str, ...] = ()
    held: dict[str, int] = field(default_factory=dict)
    privacy: dict[str, Any] | None = None

    @property
    def images(self) -> int:
        return sum(self.classes.values())

    @property
    def noun(self) -> str:
        """What the model learns from: "image", or "vector"."""
        return "vector" if self.features["name"] == VECTORS else "image"


@dataclass(frozen=True)
class Contents:
    """The contents of a model's files that are needed to describe it.

    form : form of the covariance; None without class statistics.
    margins : m_k of the paper by class.
    fixed : whether the classifier is a trained head without class statistics.
    extractor : name of the extractor; "" while there is none.
    fragments : whether the filters of the extractor are fragments of images.
    spent : ε that was spent on each class of a private model.
    """

    form: str | None = None
    margins: dict[str, float] = field(default_factory=dict)
    fixed: bool = False
    extractor: str = ""
    fragments: bool = False
    spent: dict[str, float] = field(default_factory=dict)


def read_info(path: str | os.PathLike[str]) -> Info:
    """Describe the model in the folder `path` by its manifest and the headers of its files, whose checksums are verified."""
    folder = Folder(path)
    return folder.read(lambda manifest: describe(folder.path, manifest, _read_contents(folder, manifest)))


def _read_contents(folder: Folder, manifest: Manifest) -> Contents:
    extractor: dict[str, Any] = {"extractor": "", "options": {}}
    if "extractor" in manifest.files:
        extractor = tensor_files.read_header(folder.checked(manifest.files["extractor"]), "extractor")
    form, margins, fixed, spent = None, {}, False, {}
    if "classes" in manifest.files:
        path = folder.checked(manifest.files["classes"])
        header = tensor_files.read_header(path, CLASSES)
        try:
            fixed = header["is"] == "FixedHead"
            if not fixed:
                form, classes = header["classifier"]["statistics"]["covariance"], header["classifier"]["statistics"]["classes"]
                if header["classifier"]["parameters"]["margin"]:
                    if "certificate" not in header["classifier"]:  # a class was forgotten, and nothing solved since
                        from amgc.model.state import State  # imports torch

                        return State.read(folder).contents
                    margins = dict(zip(classes, tensor_files.read_array(path, "classifier/head.margins"), strict=True))
                private = header["classifier"].get("private", {"spent": []})
                spent = {str(label): float(epsilon) for label, _, epsilon in private["spent"]}
                if not all(0 <= epsilon <= MOST for epsilon in spent.values()):
                    raise ValueError("the epsilon that was spent on a class is not from 0 to 512")
        except files.MISFITS as error:
            raise files.misfit(path, error) from error
    try:
        fragments = extractor["options"].get("draw") == "patches"
        return Contents(form, margins, fixed, extractor["extractor"], fragments, spent)
    except files.MISFITS as error:
        raise files.misfit(folder.path / manifest.files["extractor"].name, error) from error


def describe(path: Path, manifest: Manifest, contents: Contents, held: Mapping[str, int] | None = None) -> Info:
    """Return the description of a model in the folder `path`. `held`: the number of images by class that are in memory only."""
    entry = manifest.files.get("extractor")
    features = {name: value for name, value in asdict(manifest.features).items() if name != "why" or value is not None}
    if known := (manifest.made.get("classifier") or {}).get("background"):
        features["background"] = known
    return Info(
        path=str(path),
        classes=dict(manifest.classes),
        features=features | {"checksum": entry.sha256 if entry else ""},
        image=asdict(manifest.image),
        covariance=contents.form,
        margins=contents.margins if any(contents.margins.values()) else {},
        bytes={MANIFEST: (path / MANIFEST).stat().st_size, **manifest.file_sizes},
        kept=tuple(_kept(manifest, contents)),
        not_kept=(
            "complete images" if contents.fragments else "images or parts of images, encoded or as pixels",
            "features of single images; only sums over all images of a class are stored"
            + (" (which tell those of one or two images)" if _few(manifest) else ""),
            "file names, dates and locations of images",
        ),
        made=manifest.made,
        created=manifest.created,
        changed=manifest.changed,
        generation=manifest.generation,
        amgc=manifest.amgc,
        changeable=not contents.fixed,
        can_undo=earlier.is_kept(manifest.undo),
        reveals=tuple(_reveals(manifest, contents)),
        held=dict(held or {}),
        privacy=manifest.made["privacy"] | {"spent": contents.spent} if manifest.made.get("privacy") else None,
    )


def _reveals(manifest: Manifest, contents: Contents) -> list[str]:
    """Describe what can be found out about images."""
    if contents.form is None:
        return []
    if privacy := manifest.made.get("privacy"):
        most, delta = max(contents.spent.values(), default=0.0), privacy["delta"]
        area = largest_area(gaussian_loss(max(most, privacy["epsilon"]), delta))
        return [
            f"(ε = {privacy['epsilon']:g}, δ = {delta:g})-differential privacy for each image: no test, on all versions of "
            f"the model, tells learned images from others with an area under the ROC curve above {area:.2f} (0.5 is a guess)",
            f"spent so far: ε = {most:.3g} of {privacy['epsilon']:g}, by the class that was learned most often "
            f"({plural(privacy['lessons'], 'lesson')} per class)",
            "names of classes, and when they were learned, are not protected",
        ]
    return [
        "whether a given image was learned: this can be computed from the statistics, most surely for classes of few images; "
        "of these, the probabilities of the answers often tell it too",
        "from two versions of the model: the features of an image that was learned alone in between, and from them often the "
        "image itself",
        "from a merged model and all but one of its parts: the statistics of that part",
        "a privacy budget (`amgc learn --epsilon`) limits all of these; this model has none",
    ]


def _kept(manifest: Manifest, contents: Contents) -> list[str]:
    kept = ["class names"]
    if contents.fixed:
        kept.append("for each class its weights in the classifier; no statistics, so the model cannot learn")
    elif contents.form is not None and manifest.made.get("privacy"):
        kept.append("for each class the number of images and the sum of their features, with noise")
        kept.append("one sum of squares and products of the features over all classes, with noise")
        kept.append("the linear classifier computed from these, and the privacy budget spent on each class")
    elif contents.form is not None:
        kept += ["for each class the number of images and the mean of their features", COVARIANCE[contents.form]]
        kept.append("the linear classifier and other numbers, computed from these alone")
        if few := _few(manifest):
            kept.append(
                f"for {len(few)} classes with one or two images (such as {few[0]!r}) the features of these images: they follow "
                "from mean and covariance"
            )
    if contents.extractor in ("patches", "layers"):
        if contents.extractor == "layers":
            kept.append("a small network that was trained on the first images, with its weights")
        fragments = "filters that are fragments of the first images, a few pixels wide, up to brightness and contrast"
        drawn = "filters drawn at random with the covariance of small patches of the first images; no fragments of images"
        kept.append(fragments if contents.fragments else drawn)
        kept.append("means and standard deviations of the first images' features")
    elif contents.extractor:
        kept.append(f"the network {contents.extractor} with its weights")
    if earlier.is_kept(manifest.undo):
        kept.append(
            f"not in this folder, but in {str(earlier.place() / manifest.undo)!r}: the state before the last change, for undo. "
            "What the change added or deleted follows from the two (`amgc undo MODEL --clear` deletes it)"
        )
    return kept


def _few(manifest: Manifest) -> list[str]:
    """Return the classes of which so few images were learned that the features of each follow."""
    return [name for name, count in manifest.classes.items() if 0 < count <= FEW and not manifest.private]


def summary(manifest: Manifest) -> str:
    """Describe a model in a few words."""
    counts = manifest.classes
    dim, name = manifest.features.dim, manifest.features.name
    images = f" from {plural(sum(counts.values()), manifest.noun)}" if any(counts.values()) else ""
    made = plural(len(counts), "class") + images
    return f"{made}, {f'{name} with {dim:,} features' if dim else 'features not fitted yet'}"


def class_table(path: Path, manifest: Manifest) -> str:
    """Return the classes as a table in HTML."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{count:,}</td></tr>" for name, count in list(manifest.classes.items())[:ROWS]
    )
    more = len(manifest.classes) - ROWS
    rest = f"<tr><td>and {more:,} more</td><td></td></tr>" if more > 0 else ""
    head = f"<p>Model in <code>{html.escape(str(path))}</code>: {html.escape(summary(manifest))}</p>"
    columns = f"<tr><th>class</th><th>{manifest.noun}s</th></tr>"
    return f"{head}<table>{columns}{rows}{rest}</table>" if rows else head
