"""`amgc evaluate MODEL FOLDER [FOLDER …]`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError

if TYPE_CHECKING:
    from amgc.model import Evaluation

WORST = 20  # classes and confusions that are shown


@dataclass(frozen=True)
class Evaluate:
    """How good a model is on pictures that it has not learned from; each sub-folder of FOLDER is a class."""

    model: Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
    folders: Annotated[
        Positional[tuple[str, ...]], arg(metavar="FOLDER [FOLDER …]", help="folders with a sub-folder per class")
    ]
    reject: Annotated[float | None, arg(metavar="SHARE", help="count what `predict --reject SHARE` would reject")] = None
    out: Annotated[str | None, arg(metavar="FOLDER", help="write evaluation.json, confusion.csv and plots there")] = None
    json: Annotated[bool, arg(help="print JSON")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Evaluate, args=list(arguments), prog="amgc evaluate")
    if not given.folders:
        raise UsageError("name at least one folder with pictures: amgc evaluate MODEL FOLDER")

    from amgc.cli.learn import by_class
    from amgc.cli.progress import bar, console
    from amgc.model import Model
    from amgc.report.evaluation import confusion_csv, plot_confusion, plot_reliability

    model = Model.open(given.model)
    pictures, _ = by_class(given.folders)
    screen = console()
    with bar(screen, "evaluating", given.json) as progress:
        files = [file for own in pictures.values() for file in own]
        labels = [label for label, own in pictures.items() for _ in own]
        found = model.evaluate(files, labels, reject=given.reject, progress=progress)
    if given.json:
        print(json.dumps(found.to_json(), ensure_ascii=False, indent=1))
    else:
        show(found, screen)
    if given.out is not None:
        folder = Path(given.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "evaluation.json").write_text(json.dumps(found.to_json(), ensure_ascii=False, indent=1), encoding="utf-8")
        confusion_csv(found.classes, found.confusion.tolist(), folder / "confusion.csv")
        plot_confusion(found.classes, found.confusion.tolist(), folder / "confusion.png")
        plot_reliability(found.reliability, found.calibration_error, folder / "reliability.png")
        if not given.json:
            screen.print(
                f"\nWritten to {given.out}: evaluation.json, confusion.csv, confusion.png, reliability.png", markup=False
            )
    return 0


def show(found: Evaluation, screen: object) -> None:
    """Accuracy, calibration, the worst classes, the most frequent confusions."""
    from rich.console import Console

    from amgc.report.table import grid
    from amgc.text import percent, plural, printable

    assert isinstance(screen, Console)

    def tell(text: str) -> None:
        screen.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    known_classes = plural(len(found.by_class), "known class", "known classes")
    tell(f"Accuracy: {percent(found.accuracy)} % of {plural(len(found.correct), 'picture')} of {known_classes}")
    sure = float(found.confidence.mean()) if len(found.confidence) else float("nan")
    tell(f"Calibration: {percent(sure)} % sure on average; expected calibration error {percent(found.calibration_error)} %")
    if found.unseen:
        others_named = ", ".join(list(found.unseen)[:WORST])
        tell(f"Of classes that the model does not know: {plural(sum(found.unseen.values()), 'picture')} ({others_named})")
    if found.reject is not None:
        known, others = found.rejected()
        beside = f", and {percent(others)} % of those of unknown classes" if found.unseen else ""
        tell(f"Rejected (fit below {found.reject:g}): {percent(known)} % of the pictures of known classes{beside}")
    if found.skipped:
        first, reason = found.skipped[0]
        tell(f"Left out, as not usable: {plural(len(found.skipped), 'picture')}; the first is {first}: {reason}")
    worst = sorted(found.by_class.items(), key=lambda item: item[1][0] / item[1][1])[:WORST]
    if worst:
        screen.print()
        rows = [[name, f"{right:,}/{count:,}", percent(right / count)] for name, (right, count) in worst]
        screen.print(grid(["class" if len(found.by_class) <= WORST else "worst classes", "right", "%"], rows))
    if confused := found.confused(WORST // 2):
        screen.print()
        screen.print(grid(["class", "taken for", "times"], [[true, taken, str(n)] for true, taken, n in confused], left=(0, 1)))
