"""Read the preset, methods, data set and extractor from the arguments of `amgc run`. They decide which other flags exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from amgc import registry
from amgc.cli import presets
from amgc.cli.errors import UsageError, trust
from amgc.cli.presets import Preset
from amgc.data import registry as data_sets
from amgc.features import registry as extractors
from amgc.methods import registry as methods
from amgc.options import alternatives
from amgc.registry import absolute_name, is_file, split_name

# Defaults without a preset: a small network for digits, otherwise those of the paper.
DEFAULT_FEATURES = {"digits": "convnet"}
DEFAULT_STEMS = {"tiny-imagenet": "imagenet", "imagenet-subset": "imagenet", "folder": "imagenet"}
DEFAULT_TASKS = 10


E = TypeVar("E", bound=registry.Entry[Any])


@dataclass(frozen=True)
class Chosen(Generic[E]):
    """A data set or an extractor: its name as a config stores it, and its options with the values of the preset.

    from_preset : whether the preset names the same data set or extractor; only then its options apply.
    """

    name: str
    entry: E
    options: Any
    from_preset: bool


@dataclass(frozen=True)
class Choice:
    """What to run, before its settings are known."""

    preset: Preset
    methods: dict[str, methods.Entry]  # by the name, or the absolute path of the file
    data: Chosen[data_sets.Entry]
    features: Chosen[extractors.Entry]
    name: str  # of the run's folder

    @property
    def has_root(self) -> bool:
        """Whether the data set has an option `root`: not if its name contains the path."""
        return self.data.entry.root == "optional" and not split_name(self.data.name)[1]

    @property
    def root(self) -> str | None:
        """The preset's folder with the data."""
        return self.preset.data_options.get("root") if self.data.from_preset else None


def choose(arguments: Sequence[str]) -> Choice:
    """Return what the arguments choose. PRESET, if given, comes first; the flags may be anywhere.

    Python files that `--trust` names are executed, so that the preset may name them.
    """
    trust(_values(arguments, "trust"))
    positional = arguments[0] if arguments and not arguments[0].startswith("-") else None
    named_data = _last(arguments, "data")
    if positional is None:
        preset = presets.named(presets.DEFAULT) if named_data is None else _without_preset(named_data)
    elif positional.endswith(".toml") or positional in presets.names():
        preset = presets.named(positional)
    elif split_name(positional)[0] in data_sets.data_sets() or is_file(split_name(positional)[0]):
        preset = _without_preset(positional)
    else:
        others = alternatives(positional, [*presets.names(), *data_sets.data_sets()])
        raise UsageError(f"{positional!r} is neither a preset nor a data set nor a .toml or .py file; {others}")
    options = {key: value for key, value in preset.data_options.items() if key != "root"}
    data = _chosen(data_sets.find, named_data or preset.data, preset, preset.data, options)
    named_features = _last(arguments, "features") or preset.features
    features = _chosen(extractors.find, named_features, preset, preset.features, preset.features_options)
    names = _values(arguments, "method")
    if positional is None and len(names) > 1 and names[-1] in presets.names():
        raise UsageError(f"{names[-1]!r} is a preset: name it first, amgc run {names[-1]} --method {' '.join(names[:-1])}")
    chosen = {absolute_name(name): methods.find(name) for name in names or preset.methods}
    distinct = {entry.name for entry in chosen.values()}
    if len(distinct) < len(names):
        raise UsageError(f"each method can be named once; not {' '.join(names)}.")
    name = preset.name if preset.path else f"{short_name(data.name)}-{'-'.join(sorted(distinct))[:60]}"
    choice = Choice(preset, chosen, data, features, name)
    if choice.root is not None and not choice.has_root:
        raise UsageError(f"{preset.path}: {data.name} has no option 'root'.")
    return choice


def _chosen(find: Callable[[str], E], name: str, preset: Preset, preset_name: str, options: dict[str, Any]) -> Chosen[E]:
    """Return the data set or extractor called `name`, with the preset's `options` if the preset names the same one."""
    name = absolute_name(name)
    entry = find(name)
    same = split_name(name)[0] == split_name(absolute_name(preset_name))[0]
    with preset.naming_the_file():
        return Chosen(name, entry, entry.with_options(options if same else {}), same)


def _without_preset(data: str) -> Preset:
    kind = split_name(data)[0]
    stem = {"stem": DEFAULT_STEMS[kind]} if kind in DEFAULT_STEMS else {}
    return Preset(data=data, features=DEFAULT_FEATURES.get(kind, "resnet18"), features_options=stem, tasks=DEFAULT_TASKS)


def _values(arguments: Sequence[str], flag: str) -> list[str]:
    """Return the values after the last `--flag`."""
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


def short_name(data: str) -> str:
    """Return a name for a folder: the name of a data set, or the last part of its path without the suffix."""
    kind, path = split_name(data)
    return Path(path).resolve().stem or kind if path else Path(kind).stem if is_file(kind) else kind
