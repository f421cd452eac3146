"""`amgc model RUN -o MODEL`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import Positional, arg


@dataclass(frozen=True)
class FromRun:
    """A model for own pictures from a finished run of `amgc run`: its network, its classifier and its class statistics."""

    run: Annotated[Positional[str], arg(metavar="RUN", help="folder of a run")]
    out: Annotated[str, arg(aliases=["-o"], metavar="MODEL", help="folder of the new model")]


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(FromRun, args=list(arguments), prog="amgc model")

    from pathlib import Path

    from amgc.cli.bars import plural
    from amgc.cli.errors import UsageError
    from amgc.cli.progress import console
    from amgc.engine.model_from_run import model_from_run

    inside = sorted(path.parent.name for path in Path(given.run).glob("*/run.json"))
    if inside and not (Path(given.run) / "run.json").exists():
        raise UsageError(f"{given.run!r} holds several runs; name one: {', '.join(f'{given.run}/{name}' for name in inside)}")
    model = model_from_run(given.run, given.out)
    more = "It can learn more." if model.info().changeable else "It keeps no class statistics, so it cannot learn more."
    text = f"{given.out}: {plural(len(model.classes), 'class', 'classes')}. {more}"
    console().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0
