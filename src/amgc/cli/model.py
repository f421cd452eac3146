"""`amgc model RUN -o MODEL`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError
from amgc.cli.own_images import NewModelFolder, count_text, show
from amgc.runs.folder import RUN


@dataclass(frozen=True)
class FromRun:
    """Create a model from a finished run of `amgc run`: its network, its classifier and its class statistics."""

    run: Annotated[Positional[str], arg(metavar="RUN", help="folder of a run")]
    out: NewModelFolder


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(FromRun, args=list(arguments), prog="amgc model")

    from amgc.engine.model_from_run import model_from_run

    inside = sorted(path.parent.name for path in Path(given.run).glob(f"*/{RUN}"))
    if inside and not (Path(given.run) / RUN).exists():
        choices = ", ".join(f"{given.run}/{name}" for name in inside)
        raise UsageError(f"{given.run!r} contains several runs; specify one of them: {choices}")
    model = model_from_run(given.run, given.out)
    more = "It can learn more classes." if model.info().changeable else "It has no class statistics, so it cannot learn."
    show(f"{given.out}: {count_text(len(model.classes), 'class')}. {more}")
    return 0
