"""Methods by name. Importing this module or the module of a method does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from amgc import registry
from amgc.methods.contract import Hyper, Method

M = TypeVar("M", bound=type[Method[Any]])


@dataclass(frozen=True)
class Entry(registry.Entry[Hyper]):
    """A registered method. `sources` says where values of its phases come from."""

    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> type[Method[Any]]:
        """The class of the method."""
        return cast(type[Method[Any]], self.make)

    @property
    def hyper(self) -> Hyper:
        """The hyper-parameters with the defaults of this name."""
        return self.options

    def source(self, phase: str, name: str) -> str:
        """Return where this method's value of a hyper-parameter comes from if it differs from the field's default."""
        return self.sources.get(f"{phase}.{name}", self.sources.get(phase, f"{self.name}'s own"))


METHODS: registry.Registry[Entry] = registry.Registry("method", "amgc.methods", "@method(name, hyper-parameters)")


def method(name: str, hyper: Hyper, summary: str = "", sources: Mapping[str, str] | None = None) -> Callable[[M], M]:
    """Register a method under `name` with these defaults. A variant is the same class with other defaults.

    summary : one line for `amgc list methods`; by default the first line of the class's docstring.
    sources : where values of the phases come from, by name ("later.epochs") or for a whole phase ("later").
    """

    def register(kind: M) -> M:
        METHODS.add(Entry(name, kind, hyper, summary or registry.summary_of(kind), sources or {}))
        return kind

    return register


methods = METHODS.all
find = METHODS.find
