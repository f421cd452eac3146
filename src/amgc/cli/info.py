"""`amgc info MODEL`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import arg

from amgc.cli.own_images import ModelFolder, count_text, show, show_table

if TYPE_CHECKING:
    from amgc.model import Info as ModelInfo


@dataclass(frozen=True)
class Info:
    """Describe a model: classes, stored statistics, what is never stored, and files."""

    model: ModelFolder
    json: Annotated[bool, arg(help="print JSON")] = False


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Info, args=list(arguments), prog="amgc info")

    from amgc.model import Model

    info = Model.open(given.model).info()
    if given.json:
        print(json.dumps(dataclasses.asdict(info), indent=1, ensure_ascii=False))
        return 0
    for line in lines(info):
        show(line)
    if info.classes:
        header = ["class", "images", *(["margin"] if info.margins else [])]
        rows = [[name, f"{count:,}" if info.changeable else "?"] for name, count in info.classes.items()]
        for row in rows if info.margins else ():
            row.append(f"{info.margins[row[0]]:.3g}")
        show()
        show_table(header, rows)
    return 0


def lines(info: ModelInfo) -> list[str]:
    """Describe everything but the classes."""
    from amgc.text import byte_size

    features, side = info.features, info.image["size"]
    dim = f"{features['dim']:,} features" if features["dim"] else "fitted when the model first learns"
    described = f"{features['name']}, {dim}" if features["name"] else "chosen when the model first learns"
    return [
        f"{info.path}: {count_text(len(info.classes), 'class')} from {count_text(info.images, 'image')}",
        f"Features: {described}" + (f", images of {side} × {side} pixels" if side else ""),
        *([f"Chosen because {features['why']}"] if features.get("why") else []),
        *([f"Extractor: {features['checksum'][:16]} (models with the same one can be merged)"] if features["checksum"] else []),
        *([] if info.margins else ["Margins: 0 for every class"]),
        f"Created {info.created}, changed {info.changed} (change {info.generation}), amgc {info.amgc}",
        f"Files, {byte_size(sum(info.bytes.values()))}:",
        *[f"  {name}: {byte_size(size)}" for name, size in info.bytes.items()],
        "Stored:",
        *[f"  {text}" for text in info.kept],
        "Never stored:",
        *[f"  {text}" for text in info.not_kept],
    ]
