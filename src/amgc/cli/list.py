"""`amgc list methods|data|features|presets`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg


@dataclass(frozen=True)
class List:
    """What there is, by name."""

    what: Annotated[Positional[Literal["methods", "data", "features", "presets"]], arg(help="which kind")]
    verbose: Annotated[bool, arg(aliases=["-v"], help="also hyper-parameters, options, or what a preset costs")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(List, args=list(arguments), prog="amgc list")

    from rich.table import Table
    from rich.text import Text

    from amgc.cli.progress import console

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, about, more in _entries(given.what):
        table.add_row(Text(name, style="bold"), Text(about))
        for line in more if given.verbose else ():
            table.add_row("", Text(line, style="dim"))
    console().print(table)
    return 0


def _entries(what: str) -> list[tuple[str, str, list[str]]]:
    """Name, one line, and more lines."""
    if what == "methods":
        from amgc.methods.contract import described
        from amgc.methods.registry import methods

        return [
            (
                name,
                entry.summary,
                [f"{own} = {getattr(entry.hyper, own)}: {text}" for own, _, text, _ in described(type(entry.hyper))],
            )
            for name, entry in methods().items()
        ]
    if what == "data":
        from amgc.data import options, sources

        return [(name, text, [f"{key} = {value}" for key, value in options(name).items()]) for name, text in sources().items()]
    if what == "features":
        from dataclasses import fields

        from amgc.features.options import OPTIONS

        return [
            (
                name,
                (kind.__doc__ or "").strip().split("\n")[0],
                [f"{f.name} = {f.default}: {f.metadata['help']}" for f in fields(kind)],
            )
            for name, kind in sorted(OPTIONS.items())
        ]
    from amgc.cli import presets

    found = [presets.named(name) for name in presets.names()]
    return [(p.name, p.about, [f"methods: {', '.join(p.methods)}", f"cost: {p.cost}", f"file: {p.path}"]) for p in found]
