"""`amgc forget MODEL CLASS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from amgc.cli.own_images import ModelFolder, count_text, show


@dataclass(frozen=True)
class Forget:
    """Make a model forget a class."""

    model: ModelFolder
    label: Annotated[Positional[str], arg(metavar="CLASS", help="name of the class")]


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Forget, args=list(arguments), prog="amgc forget")

    from amgc.model import Model

    model = Model.open(given.model).forget(given.label)
    text = f"Forgot {given.label!r}; the model has {count_text(len(model.classes), 'class')}."
    if model.info().covariance == "shared":
        text += " Its contribution to the covariance shared by all classes cannot be separated and remains."
    show(text)
    return 0
