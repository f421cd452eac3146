"""`amgc merge A B -o C`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError


@dataclass(frozen=True)
class Merge:
    """A new model that knows what several know, as if it had seen all of their pictures. They need the same extractor."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL MODEL [MODEL …]", help="folders of models")]
    out: Annotated[str, arg(aliases=["-o"], metavar="MODEL", help="folder of the new model")]


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Merge, args=list(arguments), prog="amgc merge")
    if len(given.models) < 2:
        raise UsageError("name at least two models: amgc merge A B -o C")

    from amgc.cli.progress import console
    from amgc.model import Model
    from amgc.text import plural

    merged = Model.merged([Model.open(path) for path in given.models], given.out)
    counts = f"{plural(len(merged.classes), 'class', 'classes')} from {plural(sum(merged.classes.values()), 'picture')}"
    console().print(f"{given.out}: {counts}.", markup=False, highlight=False, soft_wrap=True)
    return 0
