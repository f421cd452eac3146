"""`amgc info MODEL`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from amgc.model import Info as About


@dataclass(frozen=True)
class Info:
    """What a model is: classes, what is kept of their pictures and what is not, files."""

    model: Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
    json: Annotated[bool, arg(help="as JSON")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Info, args=list(arguments), prog="amgc info")

    from amgc.cli.progress import console
    from amgc.model import Model
    from amgc.report.table import grid
    from amgc.text import printable

    about = Model.open(given.model).info()
    if given.json:
        print(json.dumps(dataclasses.asdict(about), indent=1, ensure_ascii=False))
        return 0
    screen = console()
    for line in lines(about):
        screen.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    header = ["class", "pictures", *(["margin"] if about.margins else [])]
    rows = [[name, f"{count:,}" if about.changeable else "?"] for name, count in about.classes.items()]
    for row in rows if about.margins else ():
        row.append(f"{about.margins[row[0]]:.3g}")
    if rows:
        screen.print()
        screen.print(grid(header, rows))
    return 0


def lines(about: About) -> list[str]:
    """All but the classes."""
    from amgc.text import byte_size, plural

    features = about.features
    dim = f"{features['dim']:,} features" if features["dim"] else "not fitted yet: the first pictures do that"
    side = about.image["size"]
    files = [f"  {name}: {byte_size(size)}" for name, size in about.bytes.items()]
    return [
        f"{about.path}: {plural(len(about.classes), 'class', 'classes')} from {plural(about.images, 'picture')}",
        f"Features: {features['name']}, {dim}" + (f", of pictures of {side} × {side} pixels" if side else ""),
        *([f"Extractor: {features['checksum'][:16]} (models with the same one can be merged)"] if features["checksum"] else []),
        *([] if about.margins else ["Margins: 0 for every class, as no variance was enlarged"]),
        f"Made {about.created}, changed {about.changed} (change {about.generation}), amgc {about.amgc}",
        f"Files, {byte_size(sum(about.bytes.values()))}:",
        *files,
        "Kept:",
        *[f"  {text}" for text in about.kept],
        "Not kept:",
        *[f"  {text}" for text in about.not_kept],
    ]
