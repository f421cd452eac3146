"""`amgc report RUN [RUN …] [-o report.html] [--section FILE …]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Report:
    """Write runs, finished or not, as one HTML page with tables, figures and all settings. The page needs no network."""

    runs: Annotated[
        Positional[tuple[str, ...]],
        arg(metavar="RUN [RUN …]", help="folders of one or several runs each; NAME=FOLDER sets the name of a method's row"),
    ]
    out: Annotated[Path, arg(aliases=["-o"], help="file to write")] = Path("report.html")
    section: Annotated[
        tuple[Path, ...], arg(metavar="FILE …", help=".py files with sections of your own (docs/add-a-report-section.md)")
    ] = ()


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Report, args=list(arguments), prog="amgc report")

    from amgc.cli.errors import UsageError, say
    from amgc.report.page import write_report
    from amgc.text import byte_size

    if not given.runs:
        raise UsageError("Specify at least one folder: amgc report RUN")
    if given.out.is_dir():
        raise UsageError(f"{str(given.out)!r} is a folder; specify a file in it: -o {given.out / 'report.html'}")
    for error in write_report(given.runs, given.out, given.section):
        say(f"skipped: {error}")
    print(f"Report: {given.out} ({byte_size(given.out.stat().st_size)})")
    return 0
