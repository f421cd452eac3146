"""`amgc show RUN [RUN …]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Show:
    """Accuracies of runs, finished or still going: one in full, several side by side."""

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN [RUN …]", help="folders of runs, or of several each")]


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Show, args=list(arguments), prog="amgc show")

    from amgc.cli.ending import show_paper, width
    from amgc.cli.errors import UsageError
    from amgc.cli.progress import console
    from amgc.report import accuracy_table, details, find_runs

    if not given.runs:
        raise UsageError("name at least one folder: amgc show RUN")
    found = {folder: find_runs(folder) for folder in given.runs}
    runs = [run for inside in found.values() for run in inside]
    screen = console()
    screen.print(details(runs[0], width(screen)) if len(runs) == 1 else accuracy_table(runs, width(screen)))
    for folder, inside in found.items():
        show_paper(Path(folder), inside, screen)
    return 0
