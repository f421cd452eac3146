"""`amgc export MODEL --onnx FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Export:
    """A model as one file for onnxruntime: RGB pictures of any size go in, as uint8 (n, height, width, 3), and probabilities,
    number and name of the class come out. Resizing and normalising are in the file.

    Before the file is put in its place, its answers are compared with the model's own: to 1e-5 for each
    unit that the scores are apart (features are float32), else nothing is written.
    Rejecting (`predict --reject`) is not in it. Needs the extra `onnx`.
    """

    model: Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
    onnx: Annotated[str, arg(metavar="FILE", help="file to write; one that is there is replaced")]


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Export, args=list(arguments), prog="amgc export")

    from amgc.cli.progress import console
    from amgc.model import Model
    from amgc.text import byte_size, plural

    made = Model.open(given.model).export_onnx(given.onnx)
    classes = plural(len(made.classes), "class", "classes")
    text = (
        f"{made.path}: {classes}, {byte_size(made.bytes)}. onnxruntime's probabilities differ from "
        f"the model's by {made.difference:.0e} at most, on {made.pictures} pictures of noise."
    )
    console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0
