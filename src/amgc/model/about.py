"""What a model says of itself."""

from __future__ import annotations

from pathlib import Path

from amgc.estimator import AMGCClassifier
from amgc.model.folder import MANIFEST
from amgc.model.head import FixedHead
from amgc.model.results import Info
from amgc.model.state import State

FEW = 2  # images of a class whose features follow from its mean and covariance


def describe(path: Path, now: State) -> Info:
    manifest, classifier = now.manifest, now.classifier
    form, margins = None, {}
    if isinstance(classifier, AMGCClassifier):
        form = classifier.statistics_.form
        found = dict(zip(map(str, classifier.classes_.tolist()), classifier.margins_.tolist(), strict=True))
        margins = found if any(found.values()) else {}
    sizes = {entry.name: entry.bytes for entry in manifest.files.values()}
    return Info(
        path=str(path),
        classes=dict(manifest.classes),
        features={**manifest.features, "checksum": now.checksum},
        image=dict(manifest.image),
        covariance=form,
        margins=margins,
        bytes={MANIFEST: (path / MANIFEST).stat().st_size, **sizes},
        kept=tuple(_kept(now, form)),
        not_kept=(
            "no image, whole or in part, encoded or as pixels",
            "no image's features: a class is known by sums over its images",
            "no file name, date or place of an image",
        )
        if not _fragments(now)
        else ("no whole image", "no image's features: a class is known by sums over its images", "no file name of an image"),
        made=manifest.made,
        created=manifest.created,
        changed=manifest.changed,
        generation=manifest.generation,
        amgc=manifest.amgc,
        changeable=not isinstance(classifier, FixedHead),
    )


def _kept(now: State, form: str | None) -> list[str]:
    kept = ["class names"]
    if isinstance(now.classifier, FixedHead):
        kept.append("for each class its row of the classifier; no statistics, so nothing more can be learned")
    elif now.classifier is not None:
        spread = {
            "shared": "one covariance of the features for all classes together (a forgotten class's part of it stays)",
            "full": "for each class the covariance of its features",
            "lowrank": "for each class the leading part of the covariance of its features",
            "diagonal": "for each class the variances of its features",
        }[form or "full"]
        kept += ["for each class the number of images and the mean of their features", spread]
        kept.append("the linear classifier that follows from these")
        few = [name for name, count in now.manifest.classes.items() if count <= FEW]
        if few:
            kept.append(
                f"of {len(few)} classes with one or two images (such as {few[0]!r}) these images' features: one's are the "
                "mean, and two's follow from mean and covariance"
            )
    if now.fits is not None:
        kept.append(
            "for each class mean and covariance of its features in a few random directions, "
            "and mean and deviation of its images' distances"
        )
    if now.extractor is not None and now.extractor.name == "patches":
        fragments = "filters that are fragments of the first images, a few pixels wide, up to brightness and contrast"
        drawn = "filters drawn at random with the covariance of small patches of the first images: no fragment of any"
        kept.append(fragments if _fragments(now) else drawn)
        kept.append("means and deviations of the first images' features")
    elif now.extractor is not None:
        kept.append(f"the network {now.extractor.name} with its weights")
    return kept


def _fragments(now: State) -> bool:
    """Whether the filters are pieces of images."""
    return now.extractor is not None and getattr(now.extractor.options, "draw", "") == "patches"
