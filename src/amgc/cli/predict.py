"""`amgc predict MODEL IMAGE [IMAGE …]`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from amgc.cli.errors import FAILED, UsageError, say

if TYPE_CHECKING:
    from amgc.model import Model, Prediction


@dataclass(frozen=True)
class Predict:
    """The most likely classes of pictures, with their probabilities and how well each picture fits its class."""

    model: Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGE [IMAGE …]", help="pictures, or folders of them")]
    top: Annotated[int, arg(help="classes to show for each picture")] = 1
    reject: Annotated[
        float | None,
        arg(
            metavar="SHARE", help="answer `unknown` where less than this share of the class's own pictures fit worse; say 0.01"
        ),
    ] = None
    json: Annotated[bool, arg(help="one JSON object a line")] = False
    csv: Annotated[bool, arg(help="comma-separated values")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Predict, args=list(arguments), prog="amgc predict")
    if not given.images:
        raise UsageError("name at least one picture: amgc predict MODEL IMAGE")
    if given.json and given.csv:
        raise UsageError("--json or --csv, not both.")

    from amgc.model import Model

    model = Model.open(given.model)
    wrong: list[str] = []
    found = usable(model, given, wrong)
    if given.json:
        for answer in found:
            print(json.dumps(answer.to_json(), ensure_ascii=False))
    elif given.csv:
        write_csv(found, min(given.top, len(model.classes)))
    else:
        show(found)
    for text in wrong:
        say(f"error: {text}")
    return FAILED if wrong else 0


def usable(model: Model, given: Predict, wrong: list[str]) -> Iterator[Prediction]:
    """The answers; what is wrong with the other pictures is added to `wrong`."""
    from amgc.model import PictureError

    for answer in model.predict_each(given.images, given.top, given.reject):
        if isinstance(answer, PictureError):
            wrong.append(str(answer))
        else:
            yield answer


def write_csv(found: Iterator[Prediction], top: int) -> None:
    writer = csv.writer(sys.stdout)
    places = [f"{name} {number}" for number in range(1, top + 1) for name in ("class", "probability")]
    writer.writerow(["picture", "answer", "rejected", "fit", *places])
    for one in found:
        pairs = [value for pair in zip(one.labels, one.probabilities, strict=True) for value in pair]
        writer.writerow([one.source, one.answer, "yes" if one.rejected else "no", "" if one.fit is None else one.fit, *pairs])


def show(found: Iterator[Prediction]) -> None:
    """A line for each picture and class."""
    from amgc.cli.progress import console
    from amgc.report.table import grid
    from amgc.text import DASH, percent

    rows = []
    for one in found:
        fit = DASH if one.fit is None else f"{one.fit:.3f}"
        for place, (label, share) in enumerate(zip(one.labels, one.probabilities, strict=True)):
            first = place == 0
            shown = f"{one.answer} (nearest: {label})" if first and one.rejected else label
            rows.append([one.source if first else "", shown, percent(share), fit if first else ""])
    screen = console()
    screen.print(grid(["picture", "class", "probability, %", "fit"], rows, left=(0, 1)))
