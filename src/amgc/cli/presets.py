"""Presets: experiments as TOML files, found by name in the package or by path. Unknown names in a file are errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from amgc.cli.errors import UsageError
from amgc.engine.config import Machine
from amgc.methods.contract import Hyper
from amgc.methods.registry import Entry, find
from amgc.options import alternatives, merged
from amgc.registry import check_trusted
from amgc.report.paper import PRESETS as FOLDER
from amgc.report.paper import toml

TABLES = ("data_options", "features_options", "hyper", "only", "machine", "paper")
DEFAULT = "digits"


@dataclass(frozen=True)
class Preset:
    """The settings of a preset's file. Settings that the file does not have keep their defaults."""

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
    hyper: dict[str, Any] = field(default_factory=dict)  # for all methods
    only: dict[str, dict[str, Any]] = field(default_factory=dict)  # for single methods, by name
    machine: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, dict[str, float]] = field(default_factory=dict)  # the paper's LA and AIA in percent, by method
    name: str = ""
    path: str = ""

    def hyper_of(self, entry: Entry) -> Hyper:
        """Return a method's hyper-parameters: its own defaults, then `[hyper]`, then `[only.NAME]`."""
        with self.naming_the_file():
            return merged(merged(entry.hyper, self.hyper), self.only.get(entry.name, {}))

    def chosen_machine(self) -> Machine:
        """Return the machine's settings with the preset's `[machine]`."""
        with self.naming_the_file():
            return merged(Machine(), self.machine)

    @contextmanager
    def naming_the_file(self) -> Iterator[None]:
        """Turn errors inside the block into usage errors that name the preset's file."""
        try:
            yield
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self.path}: {error}" if self.path else str(error)) from error


def names() -> list[str]:
    """Return the names of the package's presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def named(name: str) -> Preset:
    """Return the package's preset `name`, or the preset in the file `name` (a path that ends in .toml)."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise UsageError(f"there is no preset file {name!r}.")
        raise UsageError(f"there is no preset {name!r}; {alternatives(name, names())}")
    return read(path)


def read(path: Path) -> Preset:
    """Read a preset from a file and check all names in it.

    The file may come from anyone, so it executes no Python file that the user has not named.
    """
    preset = Preset(name=path.stem, path=str(path))
    with preset.naming_the_file():
        content = toml(path)
        allowed = [name for name in Preset.__dataclass_fields__ if name not in ("name", "path")]
        for name in content:
            if name not in allowed:
                raise ValueError(f"there is no setting {name!r}; {alternatives(name, allowed)}")
        tables = {name: content.pop(name) for name in TABLES if name in content}
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ValueError(f"{name} must be a table, [{name}], not {table!r}.")
        preset = replace(merged(preset, content), **tables)
        names = (*preset.methods, *preset.only, *preset.paper)
        for name in (*names, preset.data, preset.features):
            check_trusted(name)
        for name in names:
            find(name)
        for name, figures in preset.paper.items():
            if not isinstance(figures, dict) or set(figures) - {"LA", "AIA"}:
                raise ValueError(f"[paper] {name} must be {{ LA = …, AIA = … }}, not {figures!r}.")
    for name in preset.methods:
        preset.hyper_of(find(name))
    for name in preset.only:
        with preset.naming_the_file():
            merged(find(name).hyper, preset.only[name], f"only.{name}.")
    preset.chosen_machine()
    return preset
