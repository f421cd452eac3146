"""Presets: experiments as TOML files, the package's own by name, anyone's by path. What is misspelt is an error."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amgc.cli.errors import UsageError
from amgc.engine.config import Machine
from amgc.methods.contract import Hyper
from amgc.methods.registry import Entry, find
from amgc.options import merged
from amgc.report.paper import PRESETS as FOLDER
from amgc.report.paper import toml

TABLES = ("data_options", "features_options", "hyper", "only", "machine", "paper")
DEFAULT = "digits"
UNTRAINED = ("patches",)  # extractors that nothing trains
SOLVED: dict[str, Any] = {"first": {"epochs": 0}, "later": {"epochs": 0}}
CLOSED_FORM = {"freeze": True, "covariance": "shared", "margin": 0.0, "balance": "per_class", "ridge": None}


@dataclass(frozen=True)
class Preset:
    """What a preset's file can say; empty means that it says nothing."""

    about: str = ""
    cost: str = ""
    methods: tuple[str, ...] = ("amgc",)
    data: str = "digits"
    features: str = "resnet18"
    tasks: int | None = None
    first_classes: int | None = None
    increment: int | None = None
    sizes: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    natural_order: bool = False
    seed: int = 1993
    data_options: dict[str, Any] = field(default_factory=dict)
    features_options: dict[str, Any] = field(default_factory=dict)
    hyper: dict[str, Any] = field(default_factory=dict)  # of all methods
    only: dict[str, dict[str, Any]] = field(default_factory=dict)  # of one, by name
    machine: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, dict[str, float]] = field(default_factory=dict)  # LA and AIA in percent, by method
    name: str = ""
    path: str = ""

    def hyper_of(self, entry: Entry, features: str | None = None) -> Hyper:
        """A method's hyper-parameters: its own defaults, then `[hyper]`, then `[only.NAME]`.

        On features that nothing trains its defaults are `untrained`; what a preset for a network says gives way to them.
        """
        features = features or self.features
        with self.blamed():
            start = untrained(entry) if self.features in UNTRAINED and features in UNTRAINED else entry.hyper
            told = merged(merged(start, self.hyper), self.only.get(entry.name, {}))
            return told if self.features in UNTRAINED or features not in UNTRAINED else untrained(entry, told)

    def chosen_machine(self) -> Machine:
        with self.blamed():
            return merged(Machine(), self.machine)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What is wrong in the block is wrong in the preset's file."""
        try:
            yield
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self.path}: {error}" if self.path else str(error)) from error


def untrained(entry: Entry, hyper: Hyper | None = None) -> Hyper:
    """A method's hyper-parameters on features that nothing trains: solved, task 1 included, where it can be.

    AMGC is then the shared covariance's closed form. Methods that train a head, step by step, do so as ever.
    """
    hyper = hyper or entry.hyper
    if entry.name in ("amgc", "dbgc"):
        return merged(hyper, CLOSED_FORM | SOLVED)
    return hyper if entry.hyper.later.epochs else merged(hyper, SOLVED)


def names() -> list[str]:
    """The package's presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def named(name: str) -> Preset:
    """The package's preset `name`, or the one in the file `name` (a path that ends in .toml)."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise UsageError(f"there is no preset file {name!r}.")
        raise UsageError(f"there is no preset {name!r}{_close(name, names())} There are {', '.join(names())}.")
    return read(path)


def read(path: Path) -> Preset:
    """The preset in a file, all names in it checked."""
    preset = Preset(name=path.stem, path=str(path))
    with preset.blamed():
        content = toml(path)
        tables = {name: content.pop(name) for name in TABLES if name in content}
        for name in ("name", "path"):  # fields, but not the file's to say
            if name in content:
                raise ValueError(f"there is no setting {name!r}.")
        try:
            preset = merged(preset, content)
        except ValueError as error:  # tables are settings too: suggest them
            wrong = next((key for key in content if key not in Preset.__dataclass_fields__), "")
            close = difflib.get_close_matches(wrong, TABLES, n=1)
            raise ValueError(f"there is no setting {wrong!r}; did you mean [{close[0]}]?" if close else str(error)) from None
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ValueError(f"{name} must be a table, [{name}], not {table!r}.")
        preset = replace(preset, **tables)
        for name in (*preset.methods, *preset.only, *preset.paper):
            find(name)
        for name, figures in preset.paper.items():
            if not isinstance(figures, dict) or set(figures) - {"LA", "AIA"}:
                raise ValueError(f"[paper] {name} must be {{ LA = …, AIA = … }}, not {figures!r}.")
    for name in preset.methods:
        preset.hyper_of(find(name))
    for name in preset.only:
        with preset.blamed():
            merged(find(name).hyper, preset.only[name], f"only.{name}.")
    preset.chosen_machine()
    return preset


def _close(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
