"""Square heat maps: task × task, class × class. Values from 0 to 1 are the strength of one colour, in light and dark alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from amgc.report.page.marks import drawing, number, short, tag

NUMBERED = 12  # a map of at most so many rows has a number in each cell
NAMED = 30  # and of at most so many has the rows' and columns' names; beyond, blocks stand for them
LEVELS = 10  # strengths of colour in a map of many cells
LETTER = 7.0  # pixels of a letter of a name, about


@dataclass(frozen=True)
class Heat:
    """The cells that are there, by (row, column), from 0 to 1."""

    names: Sequence[str]
    cells: Mapping[tuple[int, int], float]
    written: Mapping[tuple[int, int], str]  # in each cell, if they are few
    rows: str  # what a row is
    columns: str
    scale: Sequence[tuple[float, str]]  # values and what they mean, for the strip below a map without numbers
    blocks: Sequence[tuple[str, int]] = ()  # names and lengths of what the rows fall into, where they have no names: tasks

    @property
    def count(self) -> int:
        return len(self.names)


def heat_map(identity: str, title: str, text: str, heat: Heat) -> Markup:
    """Rows downwards, columns to the right."""
    left, top, cell = cell_place(heat.names)
    side = cell * heat.count
    numbered = heat.count <= NUMBERED
    inside = [_numbered(heat, cell) if numbered else _levels(heat, cell), _boundaries(heat, cell)]
    inside += _names(heat, cell) if heat.count <= NAMED else _block_names(heat, cell)
    inside += [] if numbered else _scale(heat, side)
    parts = [
        tag("text", heat.columns, x=left, y=12.0, class_="axis"),
        tag("text", heat.rows, class_="axis end", transform=f"translate(11 {number(top)}) rotate(-90)"),
        tag("g", *inside, transform=f"translate({number(left)} {number(top)})"),
    ]
    height = top + side + (4 if numbered else 40)
    return drawing(identity, left + max(side, 0 if numbered else 260) + 4, height, title, text, *parts, class_="heat")


def cell_place(names: Sequence[str]) -> tuple[float, float, float]:
    """Where the cells of a map begin (x, y), and how large one is."""
    count, letters = len(names), min(12, max(map(len, names)))
    if count > NAMED:
        return 48.0, 42.0, max(2.0, min(12.0, 500 / count))
    cell = max(30.0, min(36.0, 240 / count)) if count <= NUMBERED else 16.0 if letters > 3 else 12.0
    return 24 + letters * LETTER, 26 + (letters * LETTER if letters > 3 else 16.0), cell


def _numbered(heat: Heat, cell: float) -> Markup:
    parts = []
    for (row, column), value in heat.cells.items():
        x, y = column * cell, row * cell
        box = tag("rect", x=x, y=y, width=cell - 1, height=cell - 1, class_="cell", fill_opacity=_strength(value))
        ink = "low" if value < 0.625 else "mid" if value < 0.795 else "high"  # page.css: readable on it, in light and dark
        words = tag("text", heat.written[row, column], x=x + (cell - 1) / 2, y=y + cell / 2 + 3.5, class_=f"in middle {ink}")
        parts += [box, words]
    return Markup("").join(parts)


def _levels(heat: Heat, cell: float) -> Markup:
    """All cells of one strength as one path, neighbours as one piece: a hundredth of the bytes of a rectangle each."""
    levels: dict[int, list[str]] = {}
    pieces: list[list[int]] = []  # level, row, column, length
    for (row, column), value in sorted(heat.cells.items()):
        level = max(1, round(value * LEVELS)) if value > 0 else 0
        if pieces and pieces[-1][:2] == [level, row] and sum(pieces[-1][2:]) == column:
            pieces[-1][3] += 1
        else:
            pieces.append([level, row, column, 1])
    for level, row, column, length in pieces:
        levels.setdefault(level, []).append(f"M{column} {row}h{length}v1h-{length}z")
    ground = tag("rect", x=0.0, y=0.0, width=heat.count * cell, height=heat.count * cell, class_="ground")
    scale = f"scale({cell:.4g})"
    paths = [
        tag("path", d="".join(squares), class_="cell", fill_opacity=_strength(level / LEVELS), transform=scale)
        for level, squares in levels.items()
        if level
    ]
    return Markup("").join([ground, *paths])


def _scale(heat: Heat, side: float) -> list[Markup]:
    """What the colours mean, below the map."""
    parts = []
    for place, (value, meaning) in enumerate(heat.scale):
        x = 52.0 * place
        parts.append(tag("rect", x=x, y=side + 14, width=12, height=12, class_="ground"))
        parts.append(tag("rect", x=x, y=side + 14, width=12, height=12, class_="cell", fill_opacity=_strength(value)))
        parts.append(tag("text", meaning, x=x + 16, y=side + 24, class_="tick"))
    return parts


def _strength(value: float) -> str:
    return f"{0.04 + 0.96 * value:.2f}"


def _boundaries(heat: Heat, cell: float) -> Markup:
    """Lines between the blocks."""
    lines, at, side = [], 0, number(heat.count * cell)
    for _, length in heat.blocks[:-1]:
        at += length
        place = number(at * cell)
        lines.append(f"M{place} 0V{side}M0 {place}H{side}")
    return tag("path", d="".join(lines), class_="boundary") if lines else Markup("")


def _names(heat: Heat, cell: float) -> list[Markup]:
    """Left of each row, and above each column: turned, or, if they are numbers, as many as there is room for."""
    parts = []
    upright = max(map(len, heat.names)) <= 3
    for place, name in enumerate(heat.names):
        middle = (place + 0.5) * cell
        full = tag("title", name) if len(name) > 12 else ""
        if not upright or place % math.ceil(24 / cell) == 0:
            turn = f"translate({number(middle)} -6)" if upright else f"translate({number(middle + 4)} -6) rotate(-90)"
            parts.append(tag("text", full, short(name, 12), class_="tick middle" if upright else "tick", transform=turn))
        if not upright or place % math.ceil(12 / cell) == 0:
            parts.append(tag("text", full, short(name, 12), x=-6.0, y=middle + 4, class_="tick end"))
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
