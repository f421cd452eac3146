"""Methods by name. Importing this file, and every method's, does not import torch."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import amgc.methods
from amgc.methods.contract import Hyper, Method

M = TypeVar("M", bound=type[Method[Any]])


@dataclass(frozen=True)
class Entry:
    """A registered method: its class, its hyper-parameters with this name's defaults, and what it is in one line."""

    name: str
    kind: type[Method[Any]]
    hyper: Hyper
    summary: str
    sources: Mapping[str, str]

    def source(self, phase: str, name: str) -> str:
        """Where this method's own value of a hyper-parameter comes from, if it is not the field's usual one."""
        return self.sources.get(f"{phase}.{name}", self.sources.get(phase, f"{self.name}'s own"))


_ENTRIES: dict[str, Entry] = {}


def method(name: str, hyper: Hyper, summary: str = "", sources: Mapping[str, str] | None = None) -> Callable[[M], M]:
    """Register a method under `name` with these defaults; a variant is the same class with others.

    The summary is the first line of the class's docstring, unless it is given. `sources` says where values of the phases
    come from, by name ("later.epochs") or for a whole phase ("later").
    """

    def register(kind: M) -> M:
        known = _ENTRIES.get(name)
        if known is not None and (known.kind.__module__, known.kind.__name__) != (kind.__module__, kind.__name__):
            raise ValueError(f"there are two methods called {name!r}: in {known.kind.__module__} and {kind.__module__}.")
        _ENTRIES[name] = Entry(name, kind, hyper, summary or (kind.__doc__ or "").strip().split("\n")[0], sources or {})
        return kind

    return register


def methods() -> dict[str, Entry]:
    """All methods of this package, and those registered elsewhere so far.

    >>> methods()["finetune"].summary
    'Fine-tuning, the lower bound: cross-entropy on the new images, nothing against forgetting.'
    """
    _import_all()
    return dict(sorted(_ENTRIES.items()))


@cache  # a command asks for methods dozens of times
def _import_all() -> None:
    for module in pkgutil.iter_modules(amgc.methods.__path__):
        importlib.import_module(f"amgc.methods.{module.name}")


def find(name: str) -> Entry:
    """The method called `name`, or the one that the file `name` (a path that ends in .py) registers."""
    known = methods()
    if name.endswith(".py"):
        return _from_file(Path(name), known)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there is no method {name!r}; there are {', '.join(known)}, or a file that ends in .py.{hint}")
    return known[name]


def _from_file(path: Path, known: dict[str, Entry]) -> Entry:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} to take a method from.")
    name = f"amgc_method_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their types up there
    spec.loader.exec_module(module)
    added = [entry for entry in _ENTRIES.values() if entry.kind.__module__ == name]
    if not added:
        raise ValueError(f"{str(path)!r} registers no method; decorate its class with @method(name, hyper-parameters).")
    return added[0]
