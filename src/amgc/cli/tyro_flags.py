"""Flags that are known only at run time, as a dataclass for tyro."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields, is_dataclass, make_dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from amgc.options import type_hints

UNSET = ""  # the value of a flag that was not given; None is a value that one can give
UNSET_KIND: Any = Literal[""]
QUICK = (tyro.conf.HelptextFromCommentsOff,)
STRINGS: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs="*",
    metavar="STR",
    instance_from_str=tuple,
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=list,
)
C = TypeVar("C", bound=Callable[..., Any])
Source: TypeAlias = Callable[[Field[Any], Any], str]  # for a field and its value, where the value comes from


@dataclass(frozen=True)
class Flag:
    """One flag. `hint` is the text about its default, or a function that makes it from the default's text."""

    name: str
    kind: Any
    default: Any
    help: str = ""
    metavar: str | None = None
    hint: Callable[[str], str] | str | None = None


@dataclass(frozen=True)
class Group:
    """Flags with a common prefix and a title in the help text."""

    prefix: str
    title: str
    flags: list[Flag]


def without_typeguard(command: C) -> C:
    """Return the command with types whose defaults tyro checks without typeguard, which takes longer to import than tyro."""
    command.__annotations__ = {name: _plain_kind(kind) for name, kind in get_type_hints(command, include_extras=True).items()}
    return command


def _plain_kind(kind: Any) -> Any:
    """
    >>> _plain_kind(Annotated[int | None, "text"])
    typing.Annotated[typing.Optional[int], 'text']
    """
    if get_origin(kind) is Annotated:
        return Annotated[(_plain_kind(kind.__origin__), *kind.__metadata__)]
    if kind == tuple[str, ...]:
        return Annotated[tuple, STRINGS]
    return Union[get_args(kind)] if get_origin(kind) is UnionType else kind  # noqa: UP007 - made at run time


def several(name: str, text: str) -> Any:
    """Declare a positional argument that takes one or more values."""
    return arg(metavar=f"{name} [{name} …]", help=text, help_behavior_hint="(required)")


def option_flags(values: Any, source: Source | None = None) -> list[Flag]:
    """Return a flag for each option of a dataclass, with its value as the default. Nested dataclasses are left out."""
    hints = type_hints(type(values))
    flags = []
    for f in fields(values):
        value = getattr(values, f.name)
        if not is_dataclass(value):
            hint = _with_source(source(f, value) if source else "")
            flags.append(Flag(f.name, hints[f.name], value, f.metadata.get("help", ""), f.metadata.get("metavar"), hint))
    return flags


def make_struct(name: str, flags: Iterable[Flag], groups: dict[str, Group]) -> Any:
    """Return a dataclass for tyro with a field per flag and a nested dataclass per group."""
    made: list[Any] = []
    for flag in map(_plain_flag, flags):
        described = arg(help=flag.help or " ", metavar=flag.metavar, help_behavior_hint=flag.hint)
        made.append((flag.name, Annotated[flag.kind, described], flag.default))
    for key, group in groups.items():
        if group.flags:
            kind = make_struct(_identifier(key), group.flags, {})
            kind.__doc__ = group.title
            made.append((_identifier(key), Annotated[kind, arg(name=group.prefix)], kind()))
    whole = make_dataclass(name, [(field_name, kind, field(default=value)) for field_name, kind, value in made], frozen=True)
    whole.__doc__ = ""
    whole.__module__ = "builtins"  # tyro searches the source of other modules for comments, which is slow
    return whole


def given_values(given: Any, key: str, group: Group) -> dict[str, Any]:
    """Return the flags of a group, by name, that were given another value than their default."""
    values = getattr(given, _identifier(key), None)
    return {flag.name: value for flag in group.flags if (value := getattr(values, flag.name)) != _plain_flag(flag).default}


def unset(flag: Flag, hint: str) -> Flag:
    """Return the flag without a default: its value is UNSET unless it is given."""
    return replace(flag, kind=UNSET_KIND | flag.kind, default=UNSET, metavar=flag.metavar or _metavar(flag.kind), hint=hint)


def _plain_flag(flag: Flag) -> Flag:
    """Return an equal flag whose default tyro checks without typeguard, the import of which takes as long as tyro's own."""
    if get_origin(flag.kind) in (Union, UnionType):
        kinds = sorted(get_args(flag.kind), key=lambda kind: kind is not type(None))
        flag = replace(flag, kind=Union[tuple(kinds)])  # noqa: UP007 - made at run time
    if get_origin(flag.kind) is tuple:
        shown, hint = " ".join(map(str, flag.default)) or "none", flag.hint or _with_source("")
        flag = unset(flag, hint(shown) if callable(hint) else hint)
    return flag


def _metavar(kind: Any) -> str:
    """
    >>> [_metavar(kind) for kind in (int, Literal["a", "b"], tuple[float, ...])]
    ['INT', '{a,b}', 'FLOAT [FLOAT …]']
    """
    if get_origin(kind) is Literal or kind is bool:
        return f"{{{','.join(map(str, get_args(kind) or (True, False)))}}}"
    if get_origin(kind) is tuple:
        item = _metavar(get_args(kind)[0])
        return f"{item} [{item} …]"
    return str(kind.__name__).upper()


def _with_source(source: str) -> Callable[[str], str]:
    return lambda default: f"(default: {default}; {source})" if source else f"(default: {default})"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)
