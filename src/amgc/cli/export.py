"""`amgc export MODEL --onnx FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import arg

from amgc.cli.own_images import ModelFolder, count_text, show


@dataclass(frozen=True)
class Export:
    """Export a model as one ONNX file. Input: RGB images of any size, uint8 (n, height, width, 3). Output: probabilities,
    number and name of the class. Resizing and normalisation are part of the file.

    The file is written only if its predictions agree with the model's: probabilities to 1e-5 for each unit of difference
    between scores, because features are float32. Rejection (`predict --reject`) is not exported. Needs the extra `onnx`.
    """

    model: ModelFolder
    onnx: Annotated[str, arg(metavar="FILE", help="file to write; an existing one is replaced")]


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Export, args=list(arguments), prog="amgc export")

    from amgc.model import Model
    from amgc.text import byte_size

    made = Model.open(given.model).export_onnx(given.onnx)
    show(
        f"{made.path}: {count_text(len(made.classes), 'class')}, {byte_size(made.bytes)}. Probabilities in onnxruntime "
        f"differ from the model's by at most {made.difference:.0e} on {made.pictures} images of noise."
    )
    return 0
