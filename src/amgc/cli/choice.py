"""The first look at the arguments of `amgc run`: preset, methods, data and features decide which flags there are."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from amgc.cli import presets
from amgc.cli.errors import UsageError
from amgc.cli.presets import Preset
from amgc.data import sources
from amgc.features.options import OPTIONS
from amgc.methods.registry import Entry, find

# Without a preset: as the paper does, and a small network for small digits.
USUAL_FEATURES = {"digits": "convnet"}
USUAL_STEMS = {"tiny-imagenet": "imagenet", "imagenet-subset": "imagenet", "folder": "imagenet"}
USUAL_TASKS = 10


@dataclass(frozen=True)
class Choice:
    """What is to be run, before its settings are known."""

    preset: Preset
    methods: dict[str, Entry]  # by the name or the path that was given
    data: str
    features: str
    name: str  # of the run's folder

    @property
    def data_kind(self) -> str:
        return self.data.partition(":")[0]

    @property
    def features_kind(self) -> str:
        return self.features.partition(":")[0]


def look(arguments: Sequence[str]) -> Choice:
    """PRESET comes first, if it comes; `--method`, `--data` and `--features` stand anywhere."""
    positional = arguments[0] if arguments and not arguments[0].startswith("-") else None
    data = _last(arguments, "data")
    known = list(sources())
    if positional is None:
        preset = presets.named(presets.DEFAULT) if data is None else _without_preset(data)
    elif positional.partition(":")[0] in known and positional not in presets.names():
        preset = _without_preset(positional)
    elif positional.endswith(".toml") or positional in presets.names():
        preset = presets.named(positional)
    else:
        everything = [*presets.names(), *known]
        close = difflib.get_close_matches(positional, everything, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"presets are {', '.join(presets.names())}."
        raise UsageError(f"{positional!r} is neither a preset nor a data source nor a .toml file; {hint}")
    data = data or preset.data
    _check(data.partition(":")[0], known, "data source")
    features = _last(arguments, "features") or preset.features
    _check(features.partition(":")[0], list(OPTIONS), "feature extractor")
    names = _values(arguments, "method")
    if positional is None and len(names) > 1 and names[-1] in presets.names():
        raise UsageError(f"{names[-1]!r} is a preset: name it first, amgc run {names[-1]} --method {' '.join(names[:-1])}")
    methods = {_absolute(name): find(name) for name in names or preset.methods}
    unlike = {entry.name for entry in methods.values()}
    if len(unlike) < len(names):
        raise UsageError(f"each method can be named once; not {' '.join(names)}.")
    stem = short_name(data) if not preset.path else preset.name
    return Choice(preset, methods, data, features, stem if preset.path else f"{stem}-{'-'.join(sorted(unlike))[:60]}")


def _without_preset(data: str) -> Preset:
    kind = data.partition(":")[0]
    stem = {"stem": USUAL_STEMS[kind]} if kind in USUAL_STEMS else {}
    return Preset(data=data, features=_usual_features(data), features_options=stem, tasks=USUAL_TASKS)


def _usual_features(data: str) -> str:
    return USUAL_FEATURES.get(data.partition(":")[0], "resnet18")


def _values(arguments: Sequence[str], flag: str) -> list[str]:
    """What was given after `--flag`, or after its last occurrence."""
    values: list[str] = []
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == f"--{flag}":
            values = [value] if equals else []
            for following in arguments[place + 1 :] if not equals else ():
                if following.startswith("-"):
                    break
                values.append(following)
    return values


def _last(arguments: Sequence[str], flag: str) -> str | None:
    values = _values(arguments, flag)
    return values[0] if values else None


def _check(name: str, known: list[str], what: str) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"there is no {what} {name!r}; {hint}there are {', '.join(known)}.")


def _absolute(method: str) -> str:
    """A method's file is found again from another folder, when the run is resumed."""
    return str(Path(method).resolve()) if method.endswith(".py") else method


def short_name(data: str) -> str:
    """Of a data source, for a folder: of one with a path, the last part of it."""
    kind, _, path = data.partition(":")
    return Path(path).resolve().stem or kind if path else kind
