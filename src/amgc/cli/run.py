"""`amgc run [PRESET] [flags]`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from amgc.cli.ending import GRID
from amgc.cli.errors import UsageError, check_text
from amgc.cli.flags import SPLIT, Parsed, parse
from amgc.runs.folder import FIRST_TASK, PLAN, RUN, is_first_process

FOLDER = "AMGC_FOLDER"  # tells the processes that the first one starts which folder it chose


def main(arguments: Sequence[str]) -> int:
    check_text(arguments)
    parsed = parse(arguments)
    check_start(parsed)
    folder = choose_folder(parsed)
    os.environ[FOLDER] = str(folder)

    from amgc.cli.plan import Plan, carry_out
    from amgc.cli.progress import console

    plan = Plan(folder, parsed.configs, paper(parsed))
    try:
        return carry_out(plan, console(), quiet=parsed.quiet, dry_run=parsed.dry_run)
    finally:
        if parsed.out is None and is_first_process():
            with suppress(OSError):  # there is a run in it, or beside it
                folder.rmdir()
                folder.parent.rmdir()


def choose_folder(parsed: Parsed) -> Path:
    """`--out`, or a folder in `runs` that nobody has; a run that is there already is never touched."""
    if not is_first_process():
        return Path(parsed.out or os.environ.get(FOLDER) or "runs")
    if parsed.out is not None:
        folder = Path(parsed.out)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {parsed.out!r} is a file; name a folder.")
        if holds_run(folder):
            raise UsageError(f"{parsed.out!r} holds a run already; `amgc resume {parsed.out}`, or choose another --out.")
        return folder
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError("under torchrun say where the run goes, with --out FOLDER: all processes have to agree.")
    name = parsed.choice.name
    folders = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in folders if (not folder.exists() if parsed.dry_run else reserve(folder)))


def reserve(folder: Path) -> bool:
    """Make the folder, unless it is there: of two runs that start together one alone has made it."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def check_start(parsed: Parsed) -> None:
    """Before anything is written: whether there is something to take over."""
    for start in {config.machine.start for config in parsed.configs.values()} - {None}:
        if not (Path(str(start)) / FIRST_TASK).is_file():
            raise UsageError(f"--start {start!r} has no {FIRST_TASK}: no run whose task 1 is trained, and can be shared.")


def holds_run(folder: Path) -> bool:
    named = any((folder / name).exists() for name in (PLAN, GRID, RUN))
    return named or any(folder.glob(f"*/{RUN}"))


def paper(parsed: Parsed) -> dict[str, dict[str, float]]:
    """The preset's figures of the paper, if what they were measured on is what is run."""
    preset, config = parsed.choice.preset, next(iter(parsed.configs.values()))
    split = [getattr(config, name) or None for name in SPLIT] == [getattr(preset, name) or None for name in SPLIT]
    same = split and parsed.choice.data == preset.data and not (config.classes or preset.classes)
    return {name: figures for name, figures in preset.paper.items() if same and name in parsed.configs}
