"""`amgc list methods|data|features|presets`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from amgc.registry import Entry


def list_names(
    what: Annotated[Positional[Literal["methods", "data", "features", "presets"]], arg(help="what to list")],
    verbose: Annotated[bool, arg(aliases=["-v"], help="also hyper-parameters, options, or the cost of a preset")] = False,
) -> None:
    """List what is available, by name."""
    from rich.table import Table
    from rich.text import Text

    from amgc.cli.progress import console

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, summary, details in _entries(what):
        table.add_row(Text(name, style="bold"), Text(summary))
        for line in details if verbose else ():
            table.add_row("", Text(line, style="dim"))
    console().print(table)


def _entries(what: str) -> list[tuple[str, str, list[str]]]:
    """Return name, summary and details of each entry."""
    if what == "presets":
        from amgc.cli import presets

        found = [presets.named(name) for name in presets.names()]
        return [(p.name, p.about, [f"methods: {', '.join(p.methods)}", f"cost: {p.cost}", f"file: {p.path}"]) for p in found]
    from amgc.data import data_sets
    from amgc.features import extractors
    from amgc.methods.registry import methods

    kinds: dict[str, Callable[[], Mapping[str, Entry[Any]]]]
    kinds = {"methods": methods, "data": data_sets, "features": extractors}
    return [(entry.name, entry.summary, _options(entry.options)) for entry in kinds[what]().values()]


def _options(options: Any) -> list[str]:
    """Return a line for each option. Phases, which all methods have, are left out."""
    return [f"{f.name} = {getattr(options, f.name)}: {f.metadata['help']}" for f in fields(options) if "help" in f.metadata]
