"""`amgc merge A B -o C`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError
from amgc.cli.own_images import NewModelFolder, count_text, show


@dataclass(frozen=True)
class Merge:
    """Create a model with the classes of several, as if it had learned all of their images. They need the same extractor."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL MODEL [MODEL …]", help="folders of models")]
    out: NewModelFolder


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Merge, args=list(arguments), prog="amgc merge")
    if len(given.models) < 2:
        raise UsageError("specify at least two models: amgc merge A B -o C")

    from amgc.model import Model

    merged = Model.merged([Model.open(path) for path in given.models], given.out)
    show(f"{given.out}: {count_text(len(merged.classes), 'class')} from {count_text(sum(merged.classes.values()), 'image')}.")
    return 0
