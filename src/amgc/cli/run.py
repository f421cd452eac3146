"""`amgc run [PRESET] [flags]` and `amgc resume RUN [flags of the machine]`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import tyro

from amgc.cli.errors import UsageError, check_text, trust
from amgc.cli.flags import SPLIT, TRUST, Parsed, parse
from amgc.cli.jobs import GRID
from amgc.cli.tyro_flags import QUICK, UNSET, Flag, Group, make_struct, option_flags, unset
from amgc.engine.config import Machine
from amgc.runs.folder import FIRST_TASK, PLAN, RUN, is_first_process

FOLDER = "AMGC_FOLDER"  # passes the chosen folder to the processes that the first one starts
RESUME = "Continue a run from its last checkpoint, or all unfinished runs of a folder."


def run(arguments: Sequence[str]) -> int:
    check_text(arguments)
    parsed = parse(arguments)
    check_start(parsed)
    folder = choose_folder(parsed)
    os.environ[FOLDER] = str(folder)

    from amgc.cli.plan import Plan, run_plan
    from amgc.cli.progress import console

    plan = Plan(folder, parsed.configs, paper(parsed))
    try:
        return run_plan(plan, console(), quiet=parsed.quiet, dry_run=parsed.dry_run)
    finally:
        if parsed.out is None and is_first_process():
            with suppress(OSError):  # unless they are not empty
                folder.rmdir()
                folder.parent.rmdir()


def resume(arguments: Sequence[str]) -> int:
    flags = [
        Flag("run", tyro.conf.Positional[str], tyro.MISSING, "folder of one or several runs", "RUN"),
        Flag("quiet", bool, False, "print only the result"),
        Flag("trust", tuple[str, ...], (), TRUST, "FILE.py …"),
    ]
    machine = [unset(flag, "(default: as before)") for flag in option_flags(Machine())]
    struct = make_struct("Resume", flags, {"machine": Group("", "", machine)})
    given: Any = tyro.cli(struct, args=list(arguments), prog="amgc resume", description=RESUME, config=QUICK)
    folder = Path(given.run)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {given.run!r} to resume.")
    if (folder / GRID).exists():
        from amgc.cli.jobs.grid import read_commands

        last = shlex.join(["amgc", *read_commands(folder)[-1]])
        raise UsageError(f"{given.run!r} is a comparison; its command runs what is missing: {last}")

    from amgc.cli.plan import Plan, resume_plan
    from amgc.cli.progress import console

    trust(given.trust)
    changed = {name: value for name, value in vars(given.machine).items() if value != UNSET}
    return resume_plan(Plan.read(folder), console(), changed, quiet=given.quiet)


def choose_folder(parsed: Parsed) -> Path:
    """Return `--out`, or a new folder in `runs`. An existing run is never changed."""
    if not is_first_process():
        return Path(parsed.out or os.environ.get(FOLDER) or "runs")
    if parsed.out is not None:
        folder = Path(parsed.out)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {parsed.out!r} is a file; specify a folder.")
        if holds_run(folder):
            raise UsageError(
                f"{parsed.out!r} already contains a run; continue it with `amgc resume {parsed.out}`, or choose another --out."
            )
        return folder
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError("with torchrun, specify --out FOLDER, because all processes have to use the same folder.")
    name = parsed.choice.name
    folders = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in folders if (not folder.exists() if parsed.dry_run else reserve(folder)))


def reserve(folder: Path) -> bool:
    """Create the folder. Returns False if it exists, also if another process has just created it."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def check_start(parsed: Parsed) -> None:
    """Raise UsageError if --start is not a run with a reusable training of task 1."""
    for start in {config.machine.start for config in parsed.configs.values()} - {None}:
        if not (Path(str(start)) / FIRST_TASK).is_file():
            raise UsageError(
                f"--start {start!r} has no {FIRST_TASK}; specify a run with a finished task 1 that other methods can reuse."
            )


def holds_run(folder: Path) -> bool:
    """Return whether the folder contains a run, or several."""
    named = any((folder / name).exists() for name in (PLAN, GRID, RUN))
    return named or any(folder.glob(f"*/{RUN}"))


def paper(parsed: Parsed) -> dict[str, dict[str, float]]:
    """Return the paper's numbers of the preset, if data and tasks are those of the preset."""
    preset, config = parsed.choice.preset, next(iter(parsed.configs.values()))
    split = [getattr(config, name) or None for name in SPLIT] == [getattr(preset, name) or None for name in SPLIT]
    same = split and parsed.choice.data.name == preset.data and not (config.classes or preset.classes)
    return {name: figures for name, figures in preset.paper.items() if same and name in parsed.configs}
