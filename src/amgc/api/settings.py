"""Convert keyword arguments to the configs and to the flags of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from amgc.cli.choice import choose
from amgc.cli.flags import SPLIT, Parsed, data_flags, features_flags, make_config
from amgc.cli.tyro_flags import Flag
from amgc.engine.config import Machine
from amgc.options import merged

MACHINE = [f.name for f in fields(Machine)]


def make_configs(preset: str | None, settings: Mapping[str, Any]) -> Parsed:
    """Return what `cli.flags.parse` returns for the same settings as flags."""
    named = {name: settings.get(name) for name in ("method", "data", "features", "trust")}
    return configs_of(flags_of(preset, named), {name: value for name, value in settings.items() if name not in named})


def configs_of(arguments: Sequence[str], settings: Mapping[str, Any]) -> Parsed:
    """Return the configs of the preset, methods, data set and extractor in `arguments`, with all other `settings`."""
    choice, left = choose(arguments), dict(settings)
    preset = choice.preset
    common: dict[str, Any] = {
        "data_options": _options("data_options", data_flags(choice), left),
        "features_options": _options("features_options", features_flags(choice), left),
        "machine": merged(preset.chosen_machine(), {name: left.pop(name) for name in MACHINE if name in left}),
    }
    chosen = any(name in left for name in SPLIT)  # replaces the whole split of the preset
    common |= {name: left.get(name) if chosen else getattr(preset, name) or None for name in SPLIT}
    common |= {name: left.get(name, getattr(preset, name)) for name in ("natural_order", "seed")}
    common["sizes"] = None if common["sizes"] is None else tuple(common["sizes"])
    common["classes"] = tuple(left.get("classes", preset.classes) or ()) or None
    owners = [entry.name for entry in choice.methods.values()]
    own = {name: left.pop(name) for name in owners if isinstance(left.get(name), dict)}
    hyper = {name: value for name, value in left.items() if name not in common}
    configs = {
        entry.name: make_config(
            choice, method=name, hyper=merged(merged(preset.hyper_of(entry), hyper), own.get(entry.name, {})), **common
        )
        for name, entry in choice.methods.items()
    }
    return Parsed(choice, configs, out=None, dry_run=False, quiet=True)


def _options(name: str, flags: Sequence[Flag], left: dict[str, Any]) -> dict[str, Any]:
    """Return the options of data or features: the defaults, replaced by `left[name]`, which is removed from `left`."""
    known = {flag.name: flag.default for flag in flags}
    given = left.pop(name, None) or {}
    if unknown := [option for option in given if option not in known]:
        raise ValueError(f"{name} has no option {unknown[0]!r}; there are {', '.join(known) or 'none'}.")
    return known | given


def flags_of(preset: str | None, settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the flags of the command line for the same settings. A run's files record them.

    >>> flags_of("digits", {"method": ["amgc"], "tasks": 5, "later": {"epochs": 3}, "natural_order": True, "data": None})
    ['digits', '--method', 'amgc', '--tasks', '5', '--later.epochs', '3', '--natural-order']
    """
    flags = [] if preset is None else [preset]
    for name, value in settings.items():
        flag = name.removesuffix("_options").replace("_", "-")
        if isinstance(value, Mapping):
            flags += flags_of(None, value, f"{prefix}{flag}.")
        elif isinstance(value, bool):
            flags.append(f"--{prefix}{flag}" if value else f"--{prefix}no-{flag}")
        elif value is not None:
            flags += [f"--{prefix}{flag}", *map(str, names_of(value))]
    return flags


def names_of(value: Any) -> tuple[Any, ...]:
    """Return one or several values as a tuple. None is no value."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
