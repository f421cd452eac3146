"""Import modules when they are first used, so that a command's --help does not wait for numpy and torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Lazy:
    """A module that is imported when an attribute is used. Use it in the `else` of `if TYPE_CHECKING`, for type checkers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package. `homes` has the names by the module that defines them, relative to the package.

    >>> lazy_names("amgc", {"text": ["plural"]})("plural")(2, "image")
    '2 images'
    """
    places = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def getattribute(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return getattribute
