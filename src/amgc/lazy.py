"""Modules that are imported when they are first used: a command's --help must not wait for numpy and torch."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for the module `name`; write it where a type checker does not look, `if TYPE_CHECKING: … else: …`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
