"""Declare, check and change options: the fields of frozen dataclasses that methods, data sets and extractors have.

    @dataclass(frozen=True)
    class MyOptions:
        size: int = option(64, "side of the images in pixels")

The fields are the flags of the command line, the keys of a preset and the keyword arguments in Python. Free of torch.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

# Cached because a command asks for the types of the same few dataclasses dozens of times.
type_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def option(default: Any, help: str, source: str = "", *, path: bool = False, metavar: str | None = None) -> Any:
    """Declare a field of a frozen dataclass as an option.

    source : where the default comes from, such as a paper's section; empty for a choice of our own.
    path : whether the value is the path of a file or folder. A run's config stores it as an absolute path.
    metavar : what the help text calls the value; by default its type.
    """
    return field(default=default, metadata={"help": help, "source": source, "path": path, "metavar": metavar})


@dataclass(frozen=True)
class NoOptions:
    """The options of something that has none."""


def merged(default: T, chosen: dict[str, Any], where: str = "") -> T:
    """Return a frozen dataclass with the `chosen` fields replaced, including fields of nested dataclasses.

    Raises ValueError for an unknown name or a value of the wrong type. `where` is a prefix for names in messages.
    """
    assert is_dataclass(default) and not isinstance(default, type)
    hints = type_hints(type(default))
    values: dict[str, Any] = {}
    for name, value in chosen.items():
        full = f"{where}{name}"
        if name not in hints:
            raise ValueError(f"there is no setting {full!r}; {alternatives(name, hints, 'there are')}")
        current = getattr(default, name)
        if is_dataclass(current) and isinstance(value, dict):
            values[name] = merged(current, value, f"{full}.")
        else:
            values[name] = _converted(value, hints[name], full)
    return replace(default, **values)


def changed(default: Any, chosen: Any) -> dict[str, Any]:
    """Return the fields of `chosen`, by name, whose values differ from those of `default`."""
    return {f.name: value for f in fields(chosen) if (value := getattr(chosen, f.name)) != getattr(default, f.name)}


def alternatives(name: str, known: Iterable[str], before: str = "there are", after: str = ".") -> str:
    """Return a sentence for an error message that lists the known names and suggests the one closest to `name`.

    >>> alternatives("resnt18", ["convnet", "resnet18"])
    "did you mean 'resnet18'? There are convnet, resnet18."
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    listed = f"{before} {', '.join(known)}{after}"
    return f"did you mean {close[0]!r}? {listed[0].upper()}{listed[1:]}" if close else listed


def _converted(value: Any, hint: Any, name: str) -> Any:
    """Return the value with the declared type. JSON and TOML have no tuples and write 1 for 1.0."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_converted(item, arguments[0], name) for item in value)
    if origin is Literal:
        if value in arguments:
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, arguments))}; not {value!r}.")
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    allowed = arguments if origin in (Union, UnionType) else (hint,)
    if float in allowed and int not in allowed and type(value) is int:
        return float(value)
    if not any(type(value) is kind for kind in allowed):
        wanted = " or ".join("None" if kind is type(None) else getattr(kind, "__name__", str(kind)) for kind in allowed)
        raise ValueError(f"{name} must be {wanted}, not {value!r}.")
    return value
