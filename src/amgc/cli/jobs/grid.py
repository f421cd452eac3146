"""The runs of a comparison: their configs and folders, and the file compare.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amgc.cli.errors import UsageError
from amgc.cli.jobs import GRID
from amgc.cli.plan import Plan
from amgc.engine.config import Config, absolute, first_task_key, identity, read_config, training_key
from amgc.files import read_json, write_json
from amgc.methods.registry import find
from amgc.options import decode
from amgc.registry import is_file, split_name
from amgc.runs import RunError, RunRecord, flat, load_run
from amgc.runs.folder import FIRST_TASK, RUN, TRAINED
from amgc.text import plural

VERSION = 1
MAX_DIFFERENCES = 5  # that an error message lists


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of the grid."""

    folder: Path
    method: str
    data: str  # short name of the data or the preset
    tasks: str  # number of tasks, or first classes and increment: 50+10
    seed: int
    config: Config
    paper: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def column(self) -> tuple[str, str]:
        return self.data, self.tasks

    @property
    def log(self) -> Path:
        """The log file. It is beside the run folder because the folder may not exist."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def begun(self) -> bool:
        return (self.folder / RUN).exists()

    @property
    def first_task(self) -> Path:
        """The file with the training of task 1, from which other runs can start."""
        return self.folder / FIRST_TASK

    @property
    def keeps_tasks(self) -> bool:
        """Whether the run has kept the training of all its tasks."""
        run = self.record()
        return run is not None and run.finished and (self.folder / TRAINED.format(len(run.sizes))).is_file()

    @property
    def can_share_start(self) -> bool:
        """Whether other runs can start from this run's training of task 1."""
        kind = find(self.config.method).kind
        return kind.common_start and not kind.sees_old_data

    @property
    def python_files(self) -> tuple[str, ...]:
        """The user's own files that the run needs."""
        names = [split_name(name)[0] for name in (self.config.method, self.config.data, self.config.features)]
        return tuple(dict.fromkeys(name for name in names if is_file(name)))

    def start_key(self) -> str | None:
        """Return a key that is equal for runs with the same training of task 1; None for a run that cannot share it."""
        if not find(self.config.method).kind.common_start or self.config.machine.start is not None:
            return None
        return json.dumps(first_task_key(self.config), sort_keys=True)

    def training_key(self) -> str | None:
        """Return a key that is equal for runs with the same training of all tasks; None for a run that cannot share it."""
        key = None if self.config.machine.start is not None else training_key(self.config)
        return None if key is None else json.dumps(key, sort_keys=True)

    def record(self) -> RunRecord | None:
        """Read the run; None if it does not exist or is damaged."""
        try:
            return load_run(self.folder)
        except (OSError, RunError):
            return None

    def write_plan(self) -> None:
        """Write the plan, from which `amgc resume` can start the run."""
        Plan(self.folder, {self.method: self.config}, self.paper).write()

    def __str__(self) -> str:
        return f"{self.method}, {self.data}, T = {self.tasks}, seed {self.seed}"


def check(cells: Iterable[Cell]) -> None:
    """Raise UsageError if a folder contains a run with other settings."""
    wrong = {cell: found for cell in cells if cell.begun and (found := differences(cell))}
    if not wrong:
        return
    cell, found = next(iter(wrong.items()))
    shown = "; ".join(found[:MAX_DIFFERENCES]) + ("; …" if len(found) > MAX_DIFFERENCES else "")
    more = f" The same applies to {plural(len(wrong) - 1, 'more run')}." if len(wrong) > 1 else ""
    raise UsageError(
        f"{str(cell.folder)!r} contains a run with other settings: {shown}.{more} Choose another --out, or the same settings."
    )


def differences(cell: Cell) -> list[str]:
    """List the settings of the existing run that would change the result and differ from the wanted ones."""
    there = absolute(read_config(cell.folder, {}))  # earlier versions stored relative paths
    before, wanted = (flat(identity(config)) | {"precision": config.machine.precision} for config in (there, cell.config))
    names = sorted(before.keys() | wanted.keys())
    return [
        f"{name.removeprefix('hyper.')} is {before.get(name)} instead of {wanted.get(name)}"
        for name in names
        if before.get(name) != wanted.get(name)
    ]


def add_command(folder: Path, command: Sequence[str]) -> None:
    """Append a command to OUT/compare.json, which marks the folder of a comparison and stores its commands."""
    earlier = [old for old in read_commands(folder) if old != list(command)]
    write_json(folder / GRID, {"version": VERSION, "commands": [*earlier, list(command)]})


def read_commands(folder: Path) -> list[list[str]]:
    """Return the commands of a comparison, the latest last; none if the folder has no comparison."""
    path = folder / GRID
    if not path.exists():
        return []
    try:
        found: _GridFile = decode(_GridFile, read_json(path), "the comparison")
        if not found.commands:
            raise ValueError("commands is empty.")
    except ValueError as error:
        raise RunError(f"{str(path)!r} is damaged or was not written by amgc compare ({error}); move it away.") from error
    if found.version != VERSION:
        raise RunError(f"{str(path)!r} has version {found.version}; this amgc reads version {VERSION}.")
    return [list(command) for command in found.commands]


@dataclass(frozen=True)
class _GridFile:
    """The contents of compare.json."""

    version: int
    commands: tuple[tuple[str, ...], ...]
