"""The flags of `amgc run`: those of the chosen methods, data set and extractor, with the preset's values as defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass
from typing import Any

import tyro

from amgc.cli.choice import Choice, Chosen, choose
from amgc.cli.errors import UsageError
from amgc.cli.tyro_flags import QUICK, Flag, Group, Source, given_values, make_struct, option_flags, unset
from amgc.engine.config import Config, absolute
from amgc.methods.contract import Hyper, Phase
from amgc.options import changed, merged

TRUST = "Python files with your own method, data set or extractor that a preset or a run's folder names; they are executed"
SPLIT = ("tasks", "first_classes", "increment", "sizes")
PHASES = {
    "first": "How task 1 is trained.",
    "later": "How each later task is trained.",
    "second": "How the second training stage of a task is trained, by methods that have one.",
}
ABOUT = """Train methods on a stream of tasks. PRESET is a preset's name, a .toml file, or a data set (cifar100, folder:PATH,
npz:PATH, my_data.py); it comes before the flags. `amgc list presets`, `methods`, `data` and `features` list the choices."""


@dataclass(frozen=True)
class Parsed:
    """The parsed arguments of `amgc run`."""

    choice: Choice
    configs: dict[str, Config]  # by the method's name
    out: str | None
    dry_run: bool
    quiet: bool


def parse(arguments: Sequence[str]) -> Parsed:
    """Return the arguments of `amgc run` as configs. Raises SystemExit after a help text or an error in a flag."""
    choice = choose(arguments)
    preset, data, features = choice.preset, choice.data, choice.features
    hypers = {name: preset.hyper_of(entry) for name, entry in choice.methods.items()}
    machine = preset.chosen_machine()
    top = top_flags(choice)
    groups = {
        "machine": Group("", "", option_flags(machine)),
        "data options": Group("data", f"Options of the data set {data.entry.name}.", data_flags(choice)),
        "features options": Group("features", f"Options of the extractor {features.entry.name}.", features_flags(choice)),
    }
    taken = {flag.name for flag in (*top, *groups["machine"].flags)}
    for name, entry in choice.methods.items():
        own = hyper_flags(choice, name, hypers[name])
        alone = len(hypers) == 1 and not taken & {flag.name for flag in own}
        groups[f"method {name}"] = Group("" if alone else entry.name, f"Hyper-parameters of {entry.name}.", own)
    for phase, title in PHASES.items():
        if having := {name: hyper for name, hyper in hypers.items() if hasattr(hyper, phase)}:
            groups[phase] = Group(phase, title, phase_flags(choice, having, phase))
    struct = make_struct("Run", top, groups)
    given: Any = tyro.cli(struct, args=list(arguments), prog="amgc run", description=ABOUT, config=QUICK)
    if given.preset != (arguments[0] if arguments and not arguments[0].startswith("-") else ""):
        raise UsageError(f"PRESET comes first: amgc run {given.preset} …")
    values = {name: given_values(given, name, group) for name, group in groups.items()}
    configs = {
        entry.name: make_config(
            choice,
            data_options=values["data options"],
            features_options=values["features options"],
            method=name,
            hyper=merged(
                hypers[name],
                values[f"method {name}"] | {phase: values[phase] for phase in PHASES if hasattr(hypers[name], phase)},
            ),
            classes=given.classes or None,
            natural_order=given.natural_order,
            seed=given.seed,
            machine=merged(machine, values["machine"]),
            **split(given, arguments),
        )
        for name, entry in choice.methods.items()
    }
    return Parsed(choice, configs, given.out, given.dry_run, given.quiet)


def make_config(choice: Choice, data_options: dict[str, Any], features_options: dict[str, Any], **settings: Any) -> Config:
    """Return the config of one method. Options replace those of the preset; options with their default value are left out."""
    root = data_options.get("root", choice.root)
    data = merged(choice.data.options, {name: value for name, value in data_options.items() if name != "root"})
    features = merged(choice.features.options, features_options)
    return absolute(
        Config(
            data=choice.data.name,
            data_options=({} if root is None else {"root": root}) | changed(choice.data.entry.options, data),
            features=choice.features.name,
            features_options=changed(choice.features.entry.options, features),
            **settings,
        )
    )


def top_flags(choice: Choice) -> list[Flag]:
    """Return the flags of the run as a whole."""
    preset = choice.preset
    return [
        Flag("preset", tyro.conf.Positional[str], "", "preset, .toml file or data set", "[PRESET]", "(default: digits)"),
        Flag("method", tuple[str, ...], tuple(choice.methods), "methods to run, by name or as a .py file", "NAME [NAME …]"),
        Flag("data", str, choice.data.name, "data set, by name or as a .py file"),
        Flag("features", str, choice.features.name, "feature extractor, by name or as a .py file"),
        Flag("tasks", int | None, preset.tasks, "number of tasks, all with the same number of classes", "INT"),
        Flag("first_classes", int | None, preset.first_classes, "classes in task 1, with --increment", "INT"),
        Flag("increment", int | None, preset.increment, "classes in each later task", "INT"),
        Flag("sizes", tuple[int, ...] | None, preset.sizes or None, "classes in each task", "INT [INT …]"),
        Flag("classes", tuple[str, ...] | None, preset.classes or None, "classes by name, in order", "NAME [NAME …]"),
        Flag("natural_order", bool, preset.natural_order, "keep the class order of the data set instead of shuffling it"),
        Flag("seed", int, preset.seed, "random seed of class order, initial weights, shuffling and augmentation"),
        Flag(
            "out", str | None, None, "the run's folder", "FOLDER", f"(default: runs/{choice.name}, or the next free -2, -3 …)"
        ),
        Flag("trust", tuple[str, ...], (), TRUST, "FILE.py …"),
        Flag("dry_run", bool, False, "estimate time and memory; write nothing"),
        Flag("quiet", bool, False, "print only the result"),
    ]


def data_flags(choice: Choice) -> list[Flag]:
    """Return the options of the data set, and `--data.root` if its folder has a default."""
    flags = option_flags(choice.data.options, _from_preset(choice, choice.data))
    where = Flag(
        "root", str | None, choice.root, "folder with the data", "FOLDER", "(default: $AMGC_DATA, else the folder data)"
    )
    return [where, *flags] if choice.has_root else flags


def features_flags(choice: Choice) -> list[Flag]:
    """Return the options of the extractor, except the one that its name sets."""
    flags = option_flags(choice.features.options, _from_preset(choice, choice.features))
    return [flag for flag in flags if flag.name != choice.features.entry.argument]


def hyper_flags(choice: Choice, name: str, hyper: Hyper | Phase, phase: str = "") -> list[Flag]:
    """Return a method's hyper-parameters, or those of a phase. Values come from the field, the method or the preset."""
    entry = choice.methods[name]
    own = getattr(entry.hyper, phase) if phase else entry.hyper

    def source(f: Field[Any], value: Any) -> str:
        if value != getattr(own, f.name):
            return f"preset {choice.preset.name}"
        return entry.source(phase, f.name) if value != f.default else f.metadata.get("source", "") or "ours"

    return option_flags(hyper, source)


def phase_flags(choice: Choice, hypers: dict[str, Hyper], phase: str) -> list[Flag]:
    """Return the flags `--first.*`, `--later.*` or `--second.*` for these methods. Where defaults differ, a flag has none."""
    each = {name: hyper_flags(choice, name, getattr(hyper, phase), phase) for name, hyper in hypers.items()}
    flags = []
    for alike in zip(*each.values(), strict=True):
        flag = alike[0]
        if any(other.default != flag.default for other in alike):
            defaults = [f"{choice.methods[name].name} {other.default}" for name, other in zip(each, alike, strict=True)]
            flag = unset(flag, f"(default: {', '.join(defaults)})")
        flags.append(flag)
    return flags


def split(given: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """Return how classes are split into tasks. Any flag of the split replaces the whole split of the preset."""
    named = {argument.partition("=")[0].lstrip("-").replace("-", "_") for argument in arguments}
    chosen = [name for name in SPLIT if name in named]
    return {name: getattr(given, name) if name in chosen or not chosen else None for name in SPLIT}


def _from_preset(choice: Choice, chosen: Chosen[Any]) -> Source:
    """Return a function for `option_flags`: an option's value comes from its declaration or from the preset."""
    preset = f"preset {choice.preset.name}" if choice.preset.name else ""
    return lambda f, value: preset if value != getattr(chosen.entry.options, f.name) else f.metadata.get("source", "")
