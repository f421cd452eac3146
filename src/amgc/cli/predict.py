"""`amgc predict` and `amgc evaluate`."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from amgc.cli.errors import FAILED, UsageError, say
from amgc.cli.inputs import (
    ImageColumn,
    LabelColumn,
    SplitFlag,
    batches,
    check_kind,
    columns,
    images_by_class,
    kind_of,
    other_files,
    source_shards,
    vectors_by_class,
)
from amgc.cli.output import print_json, show, show_table
from amgc.cli.own_images import ClassFolders, Json, ModelFolder
from amgc.cli.tyro_flags import several
from amgc.text import DASH, cell, first_few, percent, plural

if TYPE_CHECKING:
    from amgc.model import Evaluation, Prediction

WORST = 20  # classes and confusions to show
FIT = "fit: about this share of {0}s of known classes are less typical, at most 0.5; near 0 for most {0}s of something else"
TOO_FEW = f"fit {DASH}: not available; the model has learned too few {{0}}s, or has no class statistics"


def predict(
    model: ModelFolder,
    images: Annotated[Positional[tuple[str, ...]], several("IMAGE", "images, folders, files of vectors, or sources")],
    top: Annotated[int, arg(help="number of classes to show for each image")] = 1,
    reject: Annotated[
        float | None,
        arg(
            metavar="SHARE",
            help="answer `unknown` if the fit is below this share, such as 0.05: about as many images of known "
            "classes are rejected as well",
        ),
    ] = None,
    as_json: Annotated[bool, arg(name="json", help="print one JSON object per line")] = False,
    as_csv: Annotated[bool, arg(name="csv", help="print comma-separated values")] = False,
    split: SplitFlag = None,
    image_column: ImageColumn = None,
) -> int:
    """Predict the most likely classes of images, with their probabilities and their fit: how typical each image is."""
    if not images:
        raise UsageError("specify at least one image: amgc predict MODEL IMAGE")
    if as_json and as_csv:
        raise UsageError("choose either --json or --csv.")

    # Products of single images are small: a second thread of OpenBLAS triples the CPU time of 32 images.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it when it is imported

    from amgc.model import ImageError
    from amgc.model.folder import Folder
    from amgc.model.predict import predict_few

    kind = kind_of(images)
    chosen = columns(kind, split, image_column, None, "test")
    answers: Iterable[Prediction | ImageError] | None = None
    if kind != "sources":
        answers = predict_few(model, images, top, reject)
    if answers is None:
        from amgc.model import Model  # imports torch, which takes over a second

        opened = Model.open(model)
        given = (own for own, _ in batches(source_shards(images, chosen))) if kind == "sources" else [images]
        answers = (one for own in given for one in opened.predict_each(own, top, reject))
    manifest, errors = Folder(model).manifest(), list[ImageError]()

    def readable() -> Iterator[Prediction]:
        for one in answers:
            if isinstance(one, ImageError):
                errors.append(one)
            else:
                yield one

    if as_json:
        for one in readable():
            print_json(one.to_json())
    elif as_csv:
        write_csv(readable(), min(top, len(manifest.classes)))
    else:
        write_table(readable(), manifest.noun)
    for error in errors:
        say(f"error: {error}")
    for text in [] if kind == "sources" else other_files(images):
        say(f"left out: {text}")
    return FAILED if errors else 0


def write_csv(predictions: Iterator[Prediction], top: int) -> None:
    writer = csv.writer(sys.stdout)
    places = [f"{name} {number}" for number in range(1, top + 1) for name in ("class", "probability")]
    writer.writerow(["image", "answer", "rejected", "fit", *places])
    for one in predictions:
        pairs = [value for label, share in zip(one.labels, one.probabilities, strict=True) for value in (cell(label), share)]
        writer.writerow(
            [cell(one.source), cell(one.answer), "yes" if one.rejected else "no", "" if one.fit is None else one.fit, *pairs]
        )


def write_table(predictions: Iterator[Prediction], noun: str) -> None:
    """Print a line for each image, or vector, and class."""
    rows, fits = [], []
    for one in predictions:
        fits.append(one.fit)
        fit = DASH if one.fit is None else f"{one.fit:.3f}"
        for place, (label, share) in enumerate(zip(one.labels, one.probabilities, strict=True)):
            first = place == 0
            shown = f"{one.answer} (nearest: {label})" if first and one.rejected else label
            rows.append([one.source if first else "", shown, percent(share), fit if first else ""])
    if rows:
        show_table([noun, "class", "probability, %", "fit"], rows, left=(0, 1))
        show((TOO_FEW if None in fits else FIT).format(noun))


def evaluate(
    model: ModelFolder,
    folders: ClassFolders,
    reject: Annotated[float | None, arg(metavar="SHARE", help="count what `predict --reject SHARE` would reject")] = None,
    out: Annotated[Path | None, arg(metavar="FOLDER", help="write evaluation.json, confusion.csv and plots there")] = None,
    as_json: Json = False,
    split: SplitFlag = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
) -> None:
    """Evaluate a model on images that it has not learned from; each sub-folder of FOLDER is a class.

    For a model of vectors, specify files as for `amgc learn`. If a file has test_x and test_y, these are used.
    """
    images: Mapping[str, Sequence[Any]] = {}
    others: list[str] = []
    kind = kind_of(folders)
    chosen = columns(kind, split, image_column, label_column, "test")
    if kind == "vectors":
        images = vectors_by_class(folders, "test")
    elif kind == "images":
        images, others = images_by_class(folders)

    from amgc.cli.progress import bar, console
    from amgc.model import Model
    from amgc.model.predict import evaluate as evaluate_batches

    opened = Model.open(model)
    check_kind(opened, kind)
    files = [file for own in images.values() for file in own]
    labels = [label for label, own in images.items() for _ in own]
    with bar(console(), "evaluating", as_json) as progress:
        if kind == "sources":
            parts = batches(source_shards(folders, chosen), labelled=True)
            found = evaluate_batches(opened.state, parts, reject)
        else:
            found = opened.evaluate(files, labels, reject=reject, progress=progress)
    text = json.dumps(found.to_json(), ensure_ascii=False, indent=1)
    if as_json:
        print_json(found.to_json(), indent=1)
    else:
        write_summary(found, opened.info().noun)
        show(*(f"Left out: {text}" for text in others))
    if out is not None:
        write_files(found, text, out)
        if not as_json:
            show("", f"Written to {out}: evaluation.json, confusion.csv, confusion.png, reliability.png")


def write_files(found: Evaluation, text: str, folder: Path) -> None:
    """Write the evaluation as JSON, the confusion matrix and the plots."""
    from amgc.files import atomic, write_text
    from amgc.report.plot import plot_confusion, plot_reliability

    confusion = found.confusion.tolist()
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "evaluation.json", text)
    with atomic(folder / "confusion.csv") as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["true \\ predicted", *map(cell, found.classes)])
        writer.writerows([cell(name), *row] for name, row in zip(found.classes, confusion, strict=True))
    plot_confusion(found.classes, confusion, folder / "confusion.png")
    plot_reliability(found.reliability, found.calibration_error, folder / "reliability.png")


def write_summary(found: Evaluation, noun: str = "image") -> None:
    """Print accuracy, calibration, the worst classes and the most frequent confusions."""
    if len(found.correct):
        images = plural(len(found.correct), noun)
        show(f"Accuracy: {percent(found.accuracy)} % of {images} of {plural(len(found.by_class), 'known class')}")
        sure, error = percent(float(found.confidence.mean())), percent(found.calibration_error)
        show(f"Calibration: mean confidence {sure} %; expected calibration error {error} %")
    else:
        show(f"No accuracy: no usable {noun} is of a class that the model knows ({first_few(found.classes)}).")
    if found.unseen:
        names = ", ".join(list(found.unseen)[:WORST])
        show(f"Classes unknown to the model: {plural(sum(found.unseen.values()), noun)} ({names})")
    if found.reject is not None and not found.has_fits:
        show(f"Rejected: none. {TOO_FEW.format(noun)}")
    elif found.reject is not None:
        known, others = found.rejected()
        parts = [f"{percent(known)} % of the {noun}s of known classes"] if len(found.correct) else []
        parts += [f"{percent(others)} % of those of unknown classes"] if found.unseen else []
        show(f"Rejected (fit below {found.reject:g}): {' and '.join(parts) or 'none'}")
    if found.skipped:
        first, reason = found.skipped[0]
        show(f"Not usable: {plural(len(found.skipped), noun)}; the first is {first}: {reason}")
    worst = sorted(found.by_class.items(), key=lambda item: item[1][0] / item[1][1])[:WORST]
    if worst:
        show("")
        rows = [[name, f"{right:,}/{count:,}", percent(right / count)] for name, (right, count) in worst]
        show_table(["class" if len(found.by_class) <= WORST else "worst classes", "correct", "%"], rows)
    if confused := found.confused(WORST // 2):
        show("")
        show_table(["class", "predicted", "times"], [[true, taken, str(n)] for true, taken, n in confused], left=(0, 1))
