"""The cells of a comparison: which runs there are to be, where they lie, and what of them is there already."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amgc.cli.ending import GRID
from amgc.cli.errors import UsageError
from amgc.cli.plan import Plan
from amgc.engine.config import Config, absolute, read_config
from amgc.engine.from_config import first_task_key, identity
from amgc.files import write_json
from amgc.methods.registry import find
from amgc.report import RunError, RunRecord, load_run
from amgc.runs import flat
from amgc.runs.folder import FIRST_TASK, RUN

VERSION = 1
FEW = 5  # differences that are told


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of the grid."""

    folder: Path
    method: str  # its name
    data: str  # a short name of data or preset
    tasks: str  # how many, or how they begin: 50+10
    seed: int
    config: Config
    paper: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def column(self) -> tuple[str, str]:
        return self.data, self.tasks

    @property
    def log(self) -> Path:
        """Beside the run, because there may be no run."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def begun(self) -> bool:
        return (self.folder / RUN).exists()

    @property
    def first_task(self) -> Path:
        """The training of task 1, for other runs to start from."""
        return self.folder / FIRST_TASK

    @property
    def gives(self) -> bool:
        kind = find(self.config.method).kind
        return kind.common_start and not kind.sees_old_data

    def start_key(self) -> str | None:
        """Equal for runs whose task 1 is trained alike; None for one that shares it with nobody."""
        if not find(self.config.method).kind.common_start or self.config.machine.start is not None:
            return None
        return json.dumps(first_task_key(self.config), sort_keys=True)

    def record(self) -> RunRecord | None:
        """What there is of the run so far."""
        try:
            return load_run(self.folder)
        except (OSError, RunError):
            return None

    def write_plan(self) -> None:
        """So that `amgc resume` can begin the run, too."""
        Plan(self.folder, {self.method: self.config}, self.paper).write()

    def __str__(self) -> str:
        return f"{self.method}, {self.data}, T = {self.tasks}, seed {self.seed}"


def check(cells: Iterable[Cell]) -> None:
    """Runs that are there already must be those that are wanted."""
    wrong = {cell: found for cell in cells if cell.begun and (found := differences(cell))}
    if not wrong:
        return
    cell, found = next(iter(wrong.items()))
    told = "; ".join(found[:FEW]) + ("; …" if len(found) > FEW else "")
    count = len(wrong) - 1
    more = f" So {'have' if count > 1 else 'has'} {count} more run{'s' * (count > 1)}." if count else ""
    raise UsageError(
        f"{str(cell.folder)!r} holds a run with other settings: {told}.{more} Choose another --out, or the same settings."
    )


def differences(cell: Cell) -> list[str]:
    """What decides the result, and is not as wanted, in the run that is there."""
    there = absolute(read_config(cell.folder, {}))  # runs of earlier versions have paths as they were typed
    before, wanted = (flat(identity(config)) | {"precision": config.machine.precision} for config in (there, cell.config))
    names = sorted(before.keys() | wanted.keys())
    return [
        f"{name.removeprefix('hyper.')} was {before.get(name)} and is to be {wanted.get(name)}"
        for name in names
        if before.get(name) != wanted.get(name)
    ]


class Grid:
    """OUT/compare.json: the commands that were given for the folder, its cells, and why some failed."""

    def __init__(self, folder: Path, cells: Sequence[Cell], command: Sequence[str]) -> None:
        self.folder, self.cells = folder, cells
        before = self.read(folder)
        self.commands = [*(old for old in before.get("commands", []) if old != list(command)), list(command)]
        self.known: dict[str, Any] = before.get("cells", {})
        self.failures: dict[str, str] = before.get("failures", {})

    @staticmethod
    def read(folder: Path) -> dict[str, Any]:
        """The file's content; nothing if there is no file yet."""
        path = folder / GRID
        if not path.exists():
            return {}
        try:
            content: dict[str, Any] = json.loads(path.read_text())
            if content["version"] == VERSION:
                return content
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{str(path)!r} is damaged, or not a comparison's ({error!r}); move it away.") from error
        raise RunError(f"{str(path)!r} has version {content['version']}; this amgc reads version {VERSION}.")

    def write(self, failures: dict[Cell, str]) -> None:
        """The cells of this command and of earlier ones; of the former, those that failed now."""
        names = {cell: cell.folder.relative_to(self.folder).as_posix() for cell in self.cells}
        for cell, name in names.items():
            self.known[name] = {"method": cell.method, "data": cell.data, "tasks": cell.tasks, "seed": cell.seed}
            self.failures.pop(name, None)
        self.failures |= {names[cell]: reason for cell, reason in failures.items()}
        content = {"version": VERSION, "commands": self.commands, "cells": self.known, "failures": self.failures}
        write_json(self.folder / GRID, content)
