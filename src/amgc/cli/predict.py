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
from amgc.cli.own_images import ModelFolder, show_table

if TYPE_CHECKING:
    from amgc.model import Model, Prediction


@dataclass(frozen=True)
class Predict:
    """Predict the most likely classes of images, with their probabilities and how well each image fits its class."""

    model: ModelFolder
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGE [IMAGE …]", help="images, or folders of images")]
    top: Annotated[int, arg(help="number of classes to show for each image")] = 1
    reject: Annotated[
        float | None,
        arg(metavar="SHARE", help="answer `unknown` if less than this share of the class's own images fit worse, such as 0.01"),
    ] = None
    json: Annotated[bool, arg(help="print one JSON object per line")] = False
    csv: Annotated[bool, arg(help="print comma-separated values")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Predict, args=list(arguments), prog="amgc predict")
    if not given.images:
        raise UsageError("specify at least one image: amgc predict MODEL IMAGE")
    if given.json and given.csv:
        raise UsageError("choose either --json or --csv.")

    from amgc.model import Model

    model = Model.open(given.model)
    errors: list[str] = []
    predictions = readable(model, given, errors)
    if given.json:
        for one in predictions:
            print(json.dumps(one.to_json(), ensure_ascii=False))
    elif given.csv:
        write_csv(predictions, min(given.top, len(model.classes)))
    else:
        write_table(predictions)
    for text in errors:
        say(f"error: {text}")
    return FAILED if errors else 0


def readable(model: Model, given: Predict, errors: list[str]) -> Iterator[Prediction]:
    """Yield the predictions of readable images; append the errors of the others to `errors`."""
    from amgc.model import PictureError

    for one in model.predict_each(given.images, given.top, given.reject):
        if isinstance(one, PictureError):
            errors.append(str(one))
        else:
            yield one


def write_csv(predictions: Iterator[Prediction], top: int) -> None:
    writer = csv.writer(sys.stdout)
    places = [f"{name} {number}" for number in range(1, top + 1) for name in ("class", "probability")]
    writer.writerow(["picture", "answer", "rejected", "fit", *places])
    for one in predictions:
        pairs = [value for pair in zip(one.labels, one.probabilities, strict=True) for value in pair]
        writer.writerow([one.source, one.answer, "yes" if one.rejected else "no", "" if one.fit is None else one.fit, *pairs])


def write_table(predictions: Iterator[Prediction]) -> None:
    """Print a line for each image and class."""
    from amgc.text import DASH, percent

    rows = []
    for one in predictions:
        fit = DASH if one.fit is None else f"{one.fit:.3f}"
        for place, (label, share) in enumerate(zip(one.labels, one.probabilities, strict=True)):
            first = place == 0
            shown = f"{one.answer} (nearest: {label})" if first and one.rejected else label
            rows.append([one.source if first else "", shown, percent(share), fit if first else ""])
    show_table(["image", "class", "probability, %", "fit"], rows, left=(0, 1))
