"""`amgc table 1|2|3 RUN [RUN …]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

Format = Literal["text", "markdown", "latex", "csv"]
BY_SUFFIX: dict[str, Format] = {".md": "markdown", ".tex": "latex", ".csv": "csv"}


@dataclass(frozen=True)
class Table:
    """Print one of the paper's tables with your finished runs in it: mean ± standard deviation over seeds, and the paper's
    numbers."""

    number: Annotated[
        Positional[Literal[1, 2, 3]], arg(metavar="1|2|3", help="1: methods compared, 2: parts of AMGC, 3: kinds of margin")
    ]
    runs: Annotated[
        Positional[tuple[str, ...]],
        arg(metavar="RUN [RUN …]", help="folders of one or several runs each; NAME=FOLDER makes a separate row of them"),
    ]
    format: Annotated[Format | None, arg(help="default: by the suffix of --out, otherwise text")] = None
    out: Annotated[Path | None, arg(aliases=["-o"], help="file to write to instead of the terminal")] = None


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Table, args=list(arguments), prog="amgc table")

    from amgc.cli.errors import UsageError
    from amgc.cli.progress import console
    from amgc.cli.show import width
    from amgc.files import atomic
    from amgc.report import named_runs, paper_table

    if not given.runs:
        raise UsageError(f"Specify at least one folder: amgc table {given.number} RUN")
    table = paper_table(given.number, named_runs(given.runs))
    chosen = given.format or BY_SUFFIX.get(given.out.suffix.lower() if given.out else "", "text")
    if given.out is None:
        print(table.format(chosen, width(console())), end="")
        return 0
    with atomic(given.out) as temporary:
        temporary.write_text(table.format(chosen), encoding="utf-8")
    print(f"{given.out}: Table {given.number} as {chosen}")
    return 0
