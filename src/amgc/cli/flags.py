"""The flags of `amgc run`: built for the chosen methods, data and features, with the preset's values as defaults."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.conf import arg

from amgc.cli.choice import Choice, look
from amgc.cli.errors import UsageError
from amgc.data import registry
from amgc.engine.config import Config, Machine, absolute, merged, type_hints
from amgc.features.options import OPTIONS, make_options
from amgc.methods.contract import Hyper, Phase

SPLIT = ("tasks", "first_classes", "increment", "sizes")
PHASES = {"first": "How task 1 is trained.", "later": "How each later task is trained."}
UNSET = ""  # what was not given; None is a value that one can give
UNSET_KIND: Any = Literal[""]
QUICK = (tyro.conf.HelptextFromCommentsOff,)
ABOUT = """Train methods on a stream of tasks. PRESET is a preset's name, a .toml file, or a data source (cifar100, folder:PATH,
npz:PATH); it comes before the flags. `amgc list presets`, `methods`, `data` and `features` show what there is."""


@dataclass(frozen=True)
class Flag:
    """One flag: `hint` is told its default as text, and says where it comes from."""

    name: str
    kind: Any
    default: Any
    help: str = ""
    metavar: str | None = None
    hint: Callable[[str], str] | str | None = None


@dataclass(frozen=True)
class Parsed:
    """What `amgc run` was asked for."""

    choice: Choice
    configs: dict[str, Config]  # by the method's name
    out: str | None
    dry_run: bool
    quiet: bool


def parse(arguments: Sequence[str]) -> Parsed:
    """The arguments of `amgc run` as configs. Leaves with SystemExit after a help text or an error in a flag."""
    choice = look(arguments)
    hypers = {name: choice.preset.hyper_of(entry) for name, entry in choice.methods.items()}
    machine = choice.preset.chosen_machine()
    sources, extractor = data_flags(choice), features_flags(choice)
    rows = top_flags(choice)
    parts: dict[str, tuple[str, str, list[Flag]]] = {  # field: prefix of its flags, its title, its flags
        "machine": ("", "", [*machine_flags(machine, choice)]),
        "data_options": ("data", f"Options of the data source {choice.data_kind}.", sources),
        "features_options": ("features", f"Options of the feature extractor {choice.features_kind}.", extractor),
    }
    taken = {row.name for row in (*rows, *parts["machine"][2])}
    for name, entry in choice.methods.items():
        own = [row for row in hyper_flags(choice, name, hypers[name]) if row.name not in PHASES]
        alone = len(hypers) == 1 and not taken & {row.name for row in own}
        parts[f"own_{_identifier(name)}"] = "" if alone else entry.name, f"Hyper-parameters of {entry.name}.", own
    for phase, title in PHASES.items():
        parts[phase] = phase, title, phase_flags(choice, hypers, phase)
    given: Any = tyro.cli(
        make_struct("Run", rows, parts), args=list(arguments), prog="amgc run", description=ABOUT, config=QUICK
    )
    if given.preset != _preset(arguments):
        raise UsageError(f"PRESET comes first: amgc run {given.preset} …")
    configs = {}
    for name, entry in choice.methods.items():
        changed = _changed(getattr(given, f"own_{_identifier(name)}", None), parts[f"own_{_identifier(name)}"][2])
        changed |= {phase: _changed(getattr(given, phase), parts[phase][2]) for phase in PHASES}
        configs[entry.name] = make_config(
            choice,
            method=name,
            hyper=merged(hypers[name], changed),
            data_options=_plain(given, "data_options", sources),
            features_options=_plain(given, "features_options", extractor),
            classes=given.classes or None,
            natural_order=given.natural_order,
            seed=given.seed,
            machine=merged(machine, _changed(given.machine, parts["machine"][2])),
            **split(given, arguments),
        )
    return Parsed(choice, configs, given.out, given.dry_run, given.quiet)


def make_config(choice: Choice, data_options: dict[str, Any], features_options: dict[str, Any], **settings: Any) -> Config:
    """Return the config of one method. Paths become absolute, and options that have their default value are left out."""
    return absolute(
        Config(
            data=choice.data,
            data_options=_apart_from(data_options, _usual_data(choice)),
            features=choice.features,
            features_options=_apart_from(features_options, _usual_options(choice)),
            **settings,
        )
    )


def top_flags(choice: Choice) -> list[Flag]:
    """What concerns the run as a whole."""
    preset = choice.preset
    return [
        Flag("preset", tyro.conf.Positional[str], "", "preset, .toml file or data source", "[PRESET]", "(default: digits)"),
        Flag("method", tuple[str, ...], tuple(choice.methods), "methods to run, by name or as a .py file", "NAME [NAME …]"),
        Flag("data", str, choice.data, "data source"),
        Flag("features", str, choice.features, "feature extractor"),
        Flag("tasks", int | None, preset.tasks, "number of tasks, all with equally many classes", "INT"),
        Flag("first_classes", int | None, preset.first_classes, "classes in task 1, with --increment", "INT"),
        Flag("increment", int | None, preset.increment, "classes in each later task", "INT"),
        Flag("sizes", tuple[int, ...] | None, preset.sizes or None, "classes in each task", "INT [INT …]"),
        Flag("classes", tuple[str, ...] | None, preset.classes or None, "classes by name, in order", "NAME [NAME …]"),
        Flag("natural_order", bool, preset.natural_order, "classes in the data's own order, not in a random one"),
        Flag("seed", int, preset.seed, "decides class order, initial weights, shuffling and augmentation"),
        Flag(
            "out", str | None, None, "the run's folder", "FOLDER", f"(default: runs/{choice.name}, or the next free -2, -3 …)"
        ),
        Flag("dry_run", bool, False, "measure what the run costs, and write nothing"),
        Flag("quiet", bool, False, "show the result only"),
    ]


def machine_flags(machine: Machine, choice: Choice | None = None) -> list[Flag]:
    """Where and how to compute."""
    hints = type_hints(Machine)
    metavars = {"feature_cache": "FOLDER", "start": "RUN", "log": "NAME [NAME …]"}
    nowhere = {"log": "(default: nowhere)"} if not machine.log else {}
    return [
        Flag(f.name, hints[f.name], getattr(machine, f.name), f.metadata["help"], metavars.get(f.name), nowhere.get(f.name))
        for f in fields(Machine)
    ]


def data_flags(choice: Choice) -> list[Flag]:
    """The options of the data source; what its docstring says about each is the help."""
    usual, preset = _usual_data(choice), choice.preset.data_options
    chosen = usual | (preset if choice.data_kind == choice.preset.data.partition(":")[0] else {})
    with choice.preset.blamed():
        if unknown := [name for name in chosen if name not in usual]:
            raise ValueError(f"the data source {choice.data_kind!r} has no option {unknown[0]!r}; it has {', '.join(usual)}.")
    builder = registry._find(choice.data_kind)
    module = vars(importlib.import_module(builder.__module__))
    rows = []
    for name, parameter in list(inspect.signature(builder).parameters.items())[1:]:
        kind = eval(parameter.annotation, module) if isinstance(parameter.annotation, str) else parameter.annotation
        rows.append(Flag(name, kind, chosen[name], _told(builder, name)))
    if "root" in usual:
        where = "where the data lie"
        rows.insert(0, Flag("root", str | None, chosen["root"], where, "FOLDER", "(default: $AMGC_DATA, else the folder data)"))
    return rows


def features_flags(choice: Choice) -> list[Flag]:
    """The options of the extractor."""
    usual = _usual_options(choice)
    chosen = choice.preset.features_options if choice.features_kind == choice.preset.features.partition(":")[0] else {}
    with choice.preset.blamed():
        make_options(choice.features_kind, chosen)
    kind = OPTIONS[choice.features_kind]
    hints = type_hints(kind)
    rows = []
    for f in fields(kind):
        if f.name in usual:
            value = chosen.get(f.name, usual[f.name])
            source = choice.preset.name if value != usual[f.name] else f.metadata.get("source", "")
            rows.append(Flag(f.name, hints[f.name], value, f.metadata["help"], hint=_sourced(source)))
    return rows


def hyper_flags(choice: Choice, name: str, hyper: Hyper | Phase, phase: str = "") -> list[Flag]:
    """A dataclass's fields with where each value comes from: its field's source, its method, or the preset."""
    entry = choice.methods[name]
    own = getattr(entry.hyper, phase) if phase else entry.hyper
    hints = type_hints(type(hyper))
    rows = []
    for f in fields(hyper):
        value = getattr(hyper, f.name)
        if is_dataclass(value) and f.name in PHASES:
            continue
        source = f.metadata.get("source", "")
        if value != getattr(own, f.name):
            source = f"preset {choice.preset.name}"
        elif value != f.default:
            source = entry.source(phase, f.name)
        rows.append(Flag(f.name, hints[f.name], value, f.metadata.get("help", ""), hint=_sourced(source)))
    return rows


def phase_flags(choice: Choice, hypers: dict[str, Hyper], phase: str) -> list[Flag]:
    """`--first.*` or `--later.*`, for all methods; where these differ, a flag is unset unless it is given."""
    each = {name: hyper_flags(choice, name, getattr(hyper, phase), phase) for name, hyper in hypers.items()}
    rows = []
    for alike in zip(*each.values(), strict=True):
        row = alike[0]
        if any(other.default != row.default for other in alike):
            defaults = ", ".join(
                f"{choice.methods[name].name} {other.default}" for name, other in zip(each, alike, strict=True)
            )
            row = unset(row, f"(default: {defaults})")
        rows.append(row)
    return rows


def split(given: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """How classes are split into tasks. A flag takes the place of all that the preset says about it."""
    named = {argument.partition("=")[0].lstrip("-").replace("-", "_") for argument in arguments}
    chosen = [name for name in SPLIT if name in named]
    return {name: getattr(given, name) if name in chosen or not chosen else None for name in SPLIT}


def make_struct(name: str, rows: Iterable[Flag], parts: dict[str, tuple[str, str, list[Flag]]]) -> Any:
    """A dataclass for tyro: a field per flag, and a nested dataclass per part."""
    made: list[Any] = []
    for row in map(_quick, rows):
        about = arg(help=row.help or " ", metavar=row.metavar, help_behavior_hint=row.hint)
        made.append((row.name, Annotated[row.kind, about], row.default))
    for part, (prefix, title, inner) in parts.items():
        if inner:
            kind = make_struct(part, inner, {})
            kind.__doc__ = title
            made.append((part, Annotated[kind, arg(name=prefix)], kind()))
    whole = make_dataclass(name, [(field_name, kind, field(default=value)) for field_name, kind, value in made], frozen=True)
    whole.__doc__ = ""
    whole.__module__ = "builtins"  # tyro looks for comments in the source of others, which takes long
    return whole


def unset(row: Flag, hint: str) -> Flag:
    """The flag without a default of its own: UNSET unless it is given, the first kind that tyro tries (see `_quick`)."""
    return replace(row, kind=UNSET_KIND | row.kind, default=UNSET, metavar=row.metavar or _metavar(row.kind), hint=hint)


def _quick(row: Flag) -> Flag:
    """An equal flag whose default tyro checks without importing typeguard, which takes as long as tyro itself."""
    if get_origin(row.kind) in (Union, UnionType):
        kinds = sorted(get_args(row.kind), key=lambda kind: kind is not type(None))
        row = replace(row, kind=Union[tuple(kinds)])  # noqa: UP007 - made at run time
    if get_origin(row.kind) is tuple:
        shown, hint = " ".join(map(str, row.default)), row.hint or _sourced("")
        row = unset(row, hint(shown) if callable(hint) else hint)
    return row


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


def _changed(given: Any, rows: list[Flag]) -> dict[str, Any]:
    """What differs from the defaults: from those that tyro was told, UNSET for a list."""
    return {row.name: value for row in rows if (value := getattr(given, row.name)) != _quick(row).default}


def _plain(given: Any, part: str, rows: list[Flag]) -> dict[str, Any]:
    """The values of all flags of a part."""
    return {row.name: row.default for row in rows} | _changed(getattr(given, part, None), rows)


def _apart_from(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != usual.get(name)}


def _usual_data(choice: Choice) -> dict[str, Any]:
    root = {} if ":" in choice.data or choice.data_kind in ("digits", "folder", "npz") else {"root": None}
    return root | registry.options(choice.data_kind)


def _usual_options(choice: Choice) -> dict[str, Any]:
    named = {"model"} if choice.features_kind == "timm" else set()
    return {f.name: f.default for f in fields(OPTIONS[choice.features_kind]) if f.name not in named}


def _told(builder: Callable[..., Any], name: str) -> str:
    """What a source's docstring says about an option, in the form `name : text`."""
    text = re.sub(r"\s*\n\s*", " ", inspect.getdoc(builder) or "")
    found = re.search(rf"\b{name}(?:, \w+)* : (.*?)(?=\s(?:\w+, )*\w+ : |$)", text)
    return found[1].rstrip(".") if found else ""


def _sourced(source: str) -> Callable[[str], str]:
    return lambda default: f"(default: {default}; {source})" if source else f"(default: {default})"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _preset(arguments: Sequence[str]) -> str:
    return arguments[0] if arguments and not arguments[0].startswith("-") else ""
