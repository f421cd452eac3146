"""Check values that come from JSON or TOML against type hints: the schema of a file is a dataclass."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

# Cached: a command asks for the hints of the same few dataclasses dozens of times.
type_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def decode(kind: Any, value: Any, name: str = "") -> Any:
    """Return `value` as an instance of the type `kind`; raise a ValueError if it does not fit.

    `name` is the place of the value, for the message. Lists become tuples, integers floats and mappings dataclasses where the
    type says so. Unknown keys are ignored, so that a file may have fields that this version does not read.

    >>> decode(tuple[float, ...], [1, 2.5], "mean")
    (1.0, 2.5)
    >>> decode(int | None, "3", "count")
    Traceback (most recent call last):
    ValueError: count must be int or None, not '3'.
    """
    origin, options = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        (*others,) = (option for option in options if option is not type(None))
        if len(others) == 1 and (get_origin(others[0]) or is_dataclass(others[0])):
            return decode(others[0], value, name)
        if type(value) in others:
            return value
    elif origin is Literal:
        if value in options:
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}; not {value!r}.")
    elif origin is tuple:
        return _tuple(options, value, name)
    elif origin is dict and isinstance(value, dict):
        return {key: decode(options[1], item, _join(name, key)) for key, item in value.items()}
    elif is_dataclass(kind) and isinstance(value, dict):
        return _instance(kind, value, name)
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif type(value) is kind and kind is not float:
        return value
    raise ValueError(f"{name or 'it'} must be {_spelled(kind)}, not {value!r}.")


def _tuple(options: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list, not {value!r}.")
    if options[-1] is Ellipsis:
        options = options[:1] * len(value)
    if len(value) != len(options):
        raise ValueError(f"{name} must have {len(options)} items, not {len(value)}.")
    kinds, found = set(options), {*map(type, value)}
    if kinds == {float} and found <= {int, float}:  # quickly, for long lists of numbers
        return tuple(map(float, value))
    if found == kinds:
        return tuple(value)
    return tuple(decode(kind, item, f"{name}[{index}]") for index, (kind, item) in enumerate(zip(options, value, strict=True)))


def _instance(kind: Any, value: dict[str, Any], name: str) -> Any:
    """Return a dataclass; a field without a default must be there."""
    hints, found = type_hints(kind), {}
    for field in fields(kind):
        if field.name in value:
            found[field.name] = decode(hints[field.name], value[field.name], _join(name, field.name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{name or 'it'} lacks {field.name!r}.")
    return kind(**found)


def _spelled(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_spelled, get_args(kind)))
    if kind is type(None):
        return "None"
    if is_dataclass(kind) or get_origin(kind) is dict:
        return "a JSON object"
    return str(getattr(kind, "__name__", kind))


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
