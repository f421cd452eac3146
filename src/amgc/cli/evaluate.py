"""`amgc evaluate MODEL FOLDER [FOLDER …]`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import arg

from amgc.cli.own_images import ClassFolders, ModelFolder, count_text, images_by_class, show, show_table

if TYPE_CHECKING:
    from amgc.model import Evaluation

WORST = 20  # classes and confusions to show


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a model on images that it has not learned from; each sub-folder of FOLDER is a class."""

    model: ModelFolder
    folders: ClassFolders
    reject: Annotated[float | None, arg(metavar="SHARE", help="count what `predict --reject SHARE` would reject")] = None
    out: Annotated[str | None, arg(metavar="FOLDER", help="write evaluation.json, confusion.csv and plots there")] = None
    json: Annotated[bool, arg(help="print JSON")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Evaluate, args=list(arguments), prog="amgc evaluate")
    images, _ = images_by_class(given.folders)

    from amgc.cli.progress import bar, console
    from amgc.model import Model

    model = Model.open(given.model)
    files = [file for own in images.values() for file in own]
    labels = [label for label, own in images.items() for _ in own]
    with bar(console(), "evaluating", given.json) as progress:
        found = model.evaluate(files, labels, reject=given.reject, progress=progress)
    text = json.dumps(found.to_json(), ensure_ascii=False, indent=1)
    if given.json:
        print(text)
    else:
        write_summary(found)
    if given.out is not None:
        write_files(found, text, Path(given.out))
        if not given.json:
            show()
            show(f"Written to {given.out}: evaluation.json, confusion.csv, confusion.png, reliability.png")
    return 0


def write_files(found: Evaluation, text: str, folder: Path) -> None:
    """Write the evaluation as JSON, the confusion matrix and the plots."""
    from amgc.report.evaluation import confusion_csv, plot_confusion, plot_reliability

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.json").write_text(text, encoding="utf-8")
    confusion_csv(found.classes, found.confusion.tolist(), folder / "confusion.csv")
    plot_confusion(found.classes, found.confusion.tolist(), folder / "confusion.png")
    plot_reliability(found.reliability, found.calibration_error, folder / "reliability.png")


def write_summary(found: Evaluation) -> None:
    """Print accuracy, calibration, the worst classes and the most frequent confusions."""
    from amgc.text import percent

    images = count_text(len(found.correct), "image")
    show(f"Accuracy: {percent(found.accuracy)} % of {images} of {count_text(len(found.by_class), 'known class')}")
    sure = float(found.confidence.mean()) if len(found.confidence) else float("nan")
    error = percent(found.calibration_error)
    show(f"Calibration: mean confidence {percent(sure)} %; expected calibration error {error} %")
    if found.unseen:
        names = ", ".join(list(found.unseen)[:WORST])
        show(f"Classes unknown to the model: {count_text(sum(found.unseen.values()), 'image')} ({names})")
    if found.reject is not None:
        known, others = found.rejected()
        beside = f", and {percent(others)} % of those of unknown classes" if found.unseen else ""
        show(f"Rejected (fit below {found.reject:g}): {percent(known)} % of the images of known classes{beside}")
    if found.skipped:
        first, reason = found.skipped[0]
        show(f"Not usable: {count_text(len(found.skipped), 'image')}; the first is {first}: {reason}")
    worst = sorted(found.by_class.items(), key=lambda item: item[1][0] / item[1][1])[:WORST]
    if worst:
        show()
        rows = [[name, f"{right:,}/{count:,}", percent(right / count)] for name, (right, count) in worst]
        show_table(["class" if len(found.by_class) <= WORST else "worst classes", "correct", "%"], rows)
    if confused := found.confused(WORST // 2):
        show()
        show_table(["class", "predicted", "times"], [[true, taken, str(n)] for true, taken, n in confused], left=(0, 1))
