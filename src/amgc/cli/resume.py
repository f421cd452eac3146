"""`amgc resume RUN [machine flags]`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from amgc.cli.errors import UsageError
from amgc.cli.jobs import GRID
from amgc.cli.tyro_flags import QUICK, UNSET, Flag, Group, make_struct, option_flags, unset
from amgc.engine.config import Machine

DESCRIPTION = "Continue a run from its last checkpoint, or all unfinished runs of a folder."


def main(arguments: Sequence[str]) -> int:
    rows = [
        Flag("run", tyro.conf.Positional[str], tyro.MISSING, "folder of one or several runs", "RUN"),
        Flag("quiet", bool, False, "print only the result"),
    ]
    machine = [unset(row, "(default: as before)") for row in option_flags(Machine())]
    made = make_struct("Resume", rows, {"machine": Group("", "", machine)})
    given: Any = tyro.cli(made, args=list(arguments), prog="amgc resume", description=DESCRIPTION, config=QUICK)
    folder = Path(given.run)
    if not folder.is_dir():
        raise UsageError(f"There is no folder {given.run!r} to resume.")

    if (folder / GRID).exists():
        last = shlex.join(["amgc", *json.loads((folder / GRID).read_text())["commands"][-1]])
        raise UsageError(f"{given.run!r} is a comparison; its command runs what is missing: {last}")

    from amgc.cli.plan import Plan, resume_plan
    from amgc.cli.progress import console

    changed = {name: value for name, value in vars(given.machine).items() if value != UNSET}
    return resume_plan(Plan.read(folder), console(), changed, quiet=given.quiet)
