"""Declare options as fields of frozen dataclasses, and read values into dataclasses, checked against their type hints.

    @dataclass(frozen=True)
    class MyOptions:
        size: int = option(64, "side of the images in pixels")

The fields are the flags of the command line, the keys of a preset and the keyword arguments in Python. The files of a run are
read into dataclasses in the same way. Does not import torch.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

# Cached because a command asks for the types of the same few dataclasses dozens of times.
type_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number. A number within them is finite.

    >>> print(Bounds(least=0)), print(Bounds(above=0)), print(Bounds(least=1, most=1000)), print(Bounds(least=0, below=1))
    finite and not negative
    positive and finite
    from 1 to 1,000
    at least 0 and below 1
    (None, None, None, None)
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most and self.above < number < self.below

    def __str__(self) -> str:
        given = {name: value for name, value in vars(self).items() if abs(value) < math.inf}
        if given == {"least": 0}:
            return "finite and not negative"
        if given == {"above": 0}:
            return "positive and finite"
        if given.keys() == {"least", "most"}:
            return f"from {self.least:,} to {self.most:,}"
        words = {"least": "at least", "most": "at most"}
        return " and ".join(f"{words.get(name, name)} {value:,}" for name, value in given.items())


class Checked:
    """Base class of dataclasses whose fields are options: values are compared with their bounds."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]  # always a dataclass
            value = getattr(self, each.name)
            numbers = value if isinstance(value, tuple) else () if value is None else (value,)
            bounds = each.metadata.get("bounds", Bounds())
            if bounds != Bounds() and not all(number in bounds for number in numbers):
                raise ValueError(f"{each.name} must be {bounds}, not {value!r}.")


def option(
    default: Any, help: str, source: str = "", *, path: bool = False, metavar: str | None = None, **bounds: float
) -> Any:
    """Declare a field of a frozen dataclass as an option.

    source : where the default comes from, such as a paper's section; empty for our own choice.
    bounds : `least`, `above`, `most` or `below`, for a number or for each number of a tuple. `Checked` checks them.
    path : whether the value is the path of a file or folder. A run's config stores it as an absolute path.
    metavar : what the help text calls the value; by default its type.
    """
    return field(
        default=default, metadata={"help": help, "source": source, "path": path, "metavar": metavar, "bounds": Bounds(**bounds)}
    )


@dataclass(frozen=True)
class NoOptions:
    """The options of something that has none."""


def merged(default: T, chosen: dict[str, Any], where: str = "") -> T:
    """Return a frozen dataclass with the `chosen` fields replaced, including fields of nested dataclasses.

    Raises ValueError for an unknown name and for a value that `decode` rejects. `where` is a prefix for names in messages.
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
            values[name] = decode(hints[name], value, full)
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


def decode(kind: Any, value: Any, name: str = "") -> Any:
    """Return `value`, as JSON, TOML or a user gives it, as an instance of the type `kind`; raise ValueError if it does not fit.

    `name` is the place of the value, for the message. Lists become tuples, integers floats, paths strings and mappings
    dataclasses where the type says so. Unknown keys are ignored: a file may have fields that this version does not read.

    >>> decode(tuple[float, ...], [1, 2.5], "mean")
    (1.0, 2.5)
    >>> decode(int | None, "3", "count")
    Traceback (most recent call last):
    ValueError: count must be int or None, not '3'.
    """
    origin, choices = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        others = [choice for choice in choices if choice is not NoneType]
        if value is None and len(others) < len(choices):
            return None
        if len(others) == 1 and (get_origin(others[0]) or is_dataclass(others[0])):
            return decode(others[0], value, name)
        for choice in others:
            with suppress(ValueError):
                return decode(choice, value, name)
    elif origin is Literal:
        if value in choices:
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}; not {value!r}.")
    elif origin is tuple:
        return _tuple(choices, value, name)
    elif origin is dict and isinstance(value, dict):
        return {key: decode(choices[1], item, _join(name, key)) for key, item in value.items()}
    elif is_dataclass(kind) and isinstance(value, dict):
        return _instance(kind, value, name)
    elif kind is float and type(value) is int:
        return float(value)
    elif kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    elif type(value) is kind:
        return value
    raise ValueError(f"{name or 'it'} must be {_spelled(kind)}, not {value!r}.")


def _tuple(choices: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list, not {value!r}.")
    if choices[-1] is Ellipsis:
        choices = choices[:1] * len(value)
    if len(value) != len(choices):
        raise ValueError(f"{name} must have {len(choices)} items, not {len(value)}.")
    kinds, found = set(choices), {*map(type, value)}
    if kinds == {float} and found <= {int, float}:  # quickly, for long lists of numbers
        return tuple(map(float, value))
    if found == kinds:
        return tuple(value)
    return tuple(decode(kind, item, f"{name}[{index}]") for index, (kind, item) in enumerate(zip(choices, value, strict=True)))


def _instance(kind: Any, value: dict[str, Any], name: str) -> Any:
    """Return a dataclass; a field without a default must be there."""
    hints, found = type_hints(kind), {}
    for each in fields(kind):
        if each.name in value:
            found[each.name] = decode(hints[each.name], value[each.name], _join(name, each.name))
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{name or 'it'} lacks {each.name!r}.")
    return kind(**found)


def _spelled(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_spelled, get_args(kind)))
    if is_dataclass(kind) or get_origin(kind) is dict:
        return "a mapping"
    return "None" if kind is NoneType else str(getattr(kind, "__name__", kind))


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
