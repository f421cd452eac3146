"""`amgc report RUN [RUN …] [-o report.html]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Report:
    """One HTML page of runs, finished or still going: tables, figures and every setting, in a file that needs no network."""

    runs: Annotated[
        Positional[tuple[str, ...]],
        arg(metavar="RUN [RUN …]", help="folders of runs, or of several each; NAME=FOLDER names a method's row"),
    ]
    out: Annotated[Path, arg(aliases=["-o"], help="where to write it")] = Path("report.html")


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Report, args=list(arguments), prog="amgc report")

    from amgc.cli.errors import UsageError, say
    from amgc.report.page import write_report
    from amgc.text import byte_size

    if not given.runs:
        raise UsageError("name at least one folder: amgc report RUN")
    if given.out.is_dir():
        raise UsageError(f"{str(given.out)!r} is a folder; name a file in it: -o {given.out / 'report.html'}")
    for error in write_report(given.runs, given.out):
        say(f"left out: {error}")
    print(f"Report: {given.out} ({byte_size(given.out.stat().st_size)})")
    return 0
