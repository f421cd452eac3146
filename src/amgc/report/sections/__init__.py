"""The sections of the report page. Each is one file: a function from a comparison to HTML, decorated with `section`.

Files in this folder are found automatically; `amgc report --section FILE` adds a file of the user's.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from markupsafe import Markup

from amgc.registry import import_file
from amgc.report.groups import Comparison
from amgc.report.html import html_table, render
from amgc.report.table import Table

__all__ = ["Comparison", "Section", "Table", "html_table", "render", "section", "sections"]


@dataclass(frozen=True)
class Section:
    """A section of the page. `make` returns its HTML, or None if the runs have nothing to show."""

    name: str  # CSS class, and part of the HTML ids
    title: str
    order: float  # sections are shown in this order; those of the package have 10, 20, …
    make: Callable[[Comparison], Markup | None]

    def html(self, comparison: Comparison) -> Markup | None:
        made = self.make(comparison)
        if made is not None and not isinstance(made, Markup):
            raise TypeError(
                f"Section {self.name!r} returned {type(made).__name__}; return None or the result of html_table() or render(), "
                "which escape names."
            )
        return made


def section(name: str, title: str, order: float) -> Callable[[Callable[[Comparison], Markup | None]], Section]:
    """Turn a function from a comparison to HTML into a section of the page."""
    return lambda make: Section(name, title, order, make)


def sections(files: Sequence[str | os.PathLike[str]] = ()) -> list[Section]:
    """Return the package's sections and those in `files`, in order. A section replaces an earlier one of the same name."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    named = {one.name: one for module in modules for one in _defined(module)}
    for file in map(Path, files):
        if file.suffix != ".py":
            raise ValueError(f"{str(file)!r} is not a Python file; sections are in files that end in .py.")
        added = _defined(sys.modules[import_file(file, "section")])
        if not added:
            raise ValueError(f"{str(file)!r} defines no section; decorate a function with @section(name, title, order).")
        named |= {one.name: one for one in added}
    return sorted(named.values(), key=lambda one: one.order)


def _defined(module: ModuleType) -> list[Section]:
    return [value for value in vars(module).values() if isinstance(value, Section)]
