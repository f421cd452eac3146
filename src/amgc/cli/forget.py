"""`amgc forget MODEL CLASS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Forget:
    """Make a model forget a class."""

    model: Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
    label: Annotated[Positional[str], arg(metavar="CLASS", help="name of the class")]


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Forget, args=list(arguments), prog="amgc forget")

    from amgc.cli.progress import console
    from amgc.model import Model
    from amgc.text import plural, printable

    model = Model.open(given.model)
    model.forget(given.label)
    text = f"Forgot {given.label!r}; {plural(len(model.classes), 'class', 'classes')} known."
    if model.info().covariance == "shared":
        text += " Its part of the covariance that all classes share cannot be told apart from theirs, and stays."
    console().print(printable(text), markup=False, highlight=False, soft_wrap=True)
    return 0
