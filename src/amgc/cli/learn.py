"""`amgc learn MODEL FOLDER [FOLDER …]`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import arg

from amgc.cli.own_images import SHOWN, ClassFolders, ModelFolder, count_text, images_by_class, open_or_create, shortened, show

if TYPE_CHECKING:
    from amgc.model import Learned

NEW = ("features", "size", "filters", "draw", "weights", "seed")  # options for a new model only


@dataclass(frozen=True)
class Learn:
    """Learn classes from images: each sub-folder of FOLDER is a class. The first call creates the model.

    Images of a known class are added to it. No image is stored.
    """

    model: ModelFolder
    folders: ClassFolders
    features: Annotated[
        str | None,
        arg(
            metavar="NAME|FILE",
            help="for a new model: lite0 (for photographs), patches, resnet18, timm:NAME, a file, or another model, to use its "
            "extractor (default: lite0 or patches, by the first images)",
        ),
    ] = None
    size: Annotated[int | None, arg(metavar="INT", help="for a new model: side of the images in pixels")] = None
    filters: Annotated[
        int | None, arg(metavar="INT", help="for new patches: number of filters; more are better and slower (default: 400)")
    ] = None
    draw: Annotated[
        Literal["gaussian", "patches"] | None,
        arg(help="for new patches: random filters (default: gaussian), or fragments of the first images"),
    ] = None
    weights: Annotated[str | None, arg(metavar="FILE", help="for a new network: file of its weights")] = None
    seed: Annotated[int | None, arg(metavar="INT", help="for a new model: random seed (default: 0)")] = None
    quiet: Annotated[bool, arg(help="print errors only")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Learn, args=list(arguments), prog="amgc learn")
    images, left_out = images_by_class(given.folders)

    from amgc.cli.progress import bar, console
    from amgc.model.model import normal

    model, created = open_or_create(given.model, {name: getattr(given, name) for name in NEW})
    try:
        with bar(console(), "learning", given.quiet) as progress:
            learned = model.learn_all(images, progress=progress, on_corrupt="skip")
    except BaseException:
        if created:  # so that the same command can be repeated
            with suppress(Exception):  # report the first error
                model.remove_if_empty()
        raise
    if not given.quiet:
        lines = summary(learned, left_out, len(model.classes))
        features = model.info().features
        if created and features.get("why"):
            lines.insert(1, f"Features: {features['name']}, because {features['why']}. --features chooses others.")
        unusable = [label for label in images if normal(label) not in learned.added]
        if unusable:
            lines.append(f"Not learned, because none of their images could be used: {shortened(unusable)}")
        if given.features in ("resnet18", "resnet32", "convnet") and given.weights is None:
            lines.append(f"The weights of {given.features} are random; choose trained ones with --weights.")
        for line in lines:
            show(line)
    return 0


def summary(learned: Learned, left_out: Sequence[str], known: int) -> list[str]:
    """Describe what was learned and what was not."""
    rate = learned.images / max(learned.seconds, 1e-9)
    lines = [
        f"Learned {count_text(len(learned.added), 'class')} from {count_text(learned.images, 'image')} in "
        f"{learned.seconds:.1f} s ({rate:.0f} images/s); the model has {count_text(known, 'class')}. No image was stored."
    ]
    if learned.again:
        lines.append(f"Known before, images added: {shortened(learned.again)}")
    few = [name for name, count in learned.added.items() if count <= 2 and name not in learned.again]
    if few:
        lines.append(f"Only one or two images, whose features follow from the stored statistics: {shortened(few)}")
    if learned.animated:
        animated = count_text(len(learned.animated), "animated image")
        lines.append(f"Only the first frame of {animated} was used: {shortened(learned.animated)}")
    if learned.skipped:
        lines.append(f"{count_text(len(learned.skipped), 'image')} could not be used:")
        lines += [f"  {path}: {reason}" for path, reason in learned.skipped[:SHOWN]]
        if len(learned.skipped) > SHOWN:
            lines.append(f"  and {len(learned.skipped) - SHOWN:,} more")
    if left_out:
        lines.append(f"Left out: {shortened(left_out)}")
    return lines
