"""Square heat maps: task × task, class × class. Values from 0 to 1 are the strength of one colour, in light and dark alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from amgc.report.page.marks import drawing, number, short, tag

NUMBERED = 12  # a map of at most so many rows has a number in each cell
NAMED = 30  # and of at most so many has the rows' and columns' names; beyond, blocks stand for them
LEVELS = 10  # strengths of colour in a map of many cells
LETTER = 6.2  # pixels of a letter of a name, about


@dataclass(frozen=True)
class Heat:
    """The cells that are there, by (row, column), from 0 to 1, and what is written in them and said of them."""

    names: Sequence[str]
    cells: Mapping[tuple[int, int], float]
    written: Mapping[tuple[int, int], str]
    rows: str  # what a row is
    columns: str
    blocks: Sequence[tuple[str, int]] = ()  # names and lengths of what the rows fall into: tasks

    @property
    def count(self) -> int:
        return len(self.names)


def heat_map(identity: str, title: str, text: str, heat: Heat) -> Markup:
    """Rows downwards, columns to the right."""
    left, top, cell = cell_place(heat.names)
    named = heat.count <= NAMED
    side = cell * heat.count
    inside = [_numbered(heat, cell) if heat.count <= NUMBERED else _levels(heat, cell)]
    inside.append(_boundaries(heat, cell))
    inside += _names(heat, cell) if named else _block_names(heat, cell)
    parts = [
        tag("text", heat.columns, x=left, y=12.0, class_="axis"),
        tag("text", heat.rows, x=0.0, y=0.0, class_="axis end", transform=f"translate(11 {number(top)}) rotate(-90)"),
        tag("g", *inside, transform=f"translate({number(left)} {number(top)})"),
    ]
    return drawing(identity, left + side + 4, top + side + 4, title, text, *parts, class_="heat")


def cell_place(names: Sequence[str]) -> tuple[float, float, float]:
    """Where the cells of a map begin (x, y), and how large one is."""
    count, letters = len(names), min(12, max(map(len, names)))
    if count > NAMED:
        return 42.0, 42.0, max(2.0, min(12.0, 560 / count))
    cell = max(30.0, min(40.0, 240 / count)) if count <= NUMBERED else 16.0
    return 26 + letters * LETTER, 26 + (letters * LETTER if letters > 3 else 16.0), cell


def _numbered(heat: Heat, cell: float) -> Markup:
    parts = []
    for (row, column), value in heat.cells.items():
        x, y = column * cell, row * cell
        box = tag("rect", x=x, y=y, width=cell - 1, height=cell - 1, class_="cell", fill_opacity=_strength(value))
        ink = "low" if value < 0.65 else "mid" if value < 0.92 else "high"  # page.css: readable on it, in light and dark
        words = tag("text", heat.written[row, column], x=x + (cell - 1) / 2, y=y + cell / 2 + 3.5, class_=f"in middle {ink}")
        parts += [box, words]
    return Markup("").join(parts)


def _levels(heat: Heat, cell: float) -> Markup:
    """All cells of one strength as one path: a hundredth of the bytes of a rectangle each."""
    levels: dict[int, list[str]] = {}
    size = number(cell - (0.5 if cell > 6 else 0))
    for (row, column), value in heat.cells.items():
        if value > 0:
            square = f"M{number(column * cell)} {number(row * cell)}h{size}v{size}h-{size}z"
            levels.setdefault(max(1, round(value * LEVELS)), []).append(square)
    ground = tag("rect", x=0.0, y=0.0, width=heat.count * cell, height=heat.count * cell, class_="ground")
    paths = [
        tag("path", d="".join(squares), class_="cell", fill_opacity=_strength(level / LEVELS))
        for level, squares in levels.items()
    ]
    return Markup("").join([ground, *paths])


def _strength(value: float) -> str:
    return f"{0.04 + 0.96 * value:.2f}"


def _boundaries(heat: Heat, cell: float) -> Markup:
    """Lines between the blocks."""
    lines, at, side = [], 0, number(heat.count * cell)
    for _, length in heat.blocks[:-1]:
        at += length
        place = number(at * cell - (0.5 if cell > 6 else 0))
        lines.append(f"M{place} 0V{side}M0 {place}H{side}")
    return tag("path", d="".join(lines), class_="boundary") if lines else Markup("")


def _names(heat: Heat, cell: float) -> list[Markup]:
    parts = []
    upright = max(map(len, heat.names)) <= 3
    for place, name in enumerate(heat.names):
        middle = (place + 0.5) * cell
        full = tag("title", name)
        parts.append(tag("text", full, short(name, 12), x=-6.0, y=middle + 4, class_="tick end"))
        turn = f"translate({number(middle)} -6)" if upright else f"translate({number(middle + 4)} -6) rotate(-90)"
        parts.append(tag("text", full, short(name, 12), class_="tick middle" if upright else "tick", transform=turn))
    return parts


def _block_names(heat: Heat, cell: float) -> list[Markup]:
    parts, at, room = [], 0, -1e9
    for name, length in heat.blocks:
        middle = (at + length / 2) * cell
        if middle - room >= 22:
            parts.append(tag("text", name, x=-6.0, y=middle + 4, class_="tick end"))
            parts.append(tag("text", name, x=middle, y=-6.0, class_="tick middle"))
            room = middle
        at += length
    return parts
