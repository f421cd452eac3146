"""Numbers, paths, markers and dashes of the page's SVG figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from amgc.report.plot import COLOURS, MARKERS

DASHES = ("", "7 3", "2 3", "9 3 2 3")
# Corners of matplotlib's markers, in a circle of radius 1; "o" is drawn as a circle.
PLUS = [(-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4), (1, 0.4), (0.4, 0.4)]
PLUS += [(-x, -y) for x, y in PLUS]
CORNERS: dict[str, Sequence[tuple[float, float]]] = {
    "s": ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
    "^": ((0, -1), (0.95, 0.75), (-0.95, 0.75)),
    "D": ((0, -1.05), (1.05, 0), (0, 1.05), (-1.05, 0)),
    "v": ((0, 1), (0.95, -0.75), (-0.95, -0.75)),
    "P": PLUS,
    "X": [((x - y) * math.sqrt(0.5), (x + y) * math.sqrt(0.5)) for x, y in PLUS],
    "*": [(r * math.sin(turn), -r * math.cos(turn)) for turn, r in
          ((math.pi * corner / 5, 0.5 if corner % 2 else 1.15) for corner in range(10))],
}  # fmt: skip


def number(value: float) -> str:
    """Format a coordinate with at most one decimal.

    >>> number(12.04), number(-0.01), number(7.25)
    ('12', '0', '7.2')
    """
    return f"{value:.1f}".removesuffix(".0").removeprefix("-" if abs(value) < 0.05 else " ")


def polygon(points: Iterable[tuple[float, float]], close: bool = True) -> str:
    """Return a path through the points."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + "Z" * close


def dashes(place: int) -> str:
    """Return the dash pattern of the line of the method at this place; "" for a solid line."""
    return DASHES[place // len(COLOURS) % len(DASHES)]


def marker(place: int, x: float, y: float, size: float) -> str:
    """Return the path of a method's marker; seven colours and eight markers distinguish 56 methods."""
    shape = MARKERS[place % len(MARKERS)]
    if shape == "o":
        r = 0.95 * size
        half = f"a{number(r)} {number(r)} 0 0 1 0 "
        return f"M{number(x)} {number(y - r)}{half}{number(2 * r)}{half}{number(-2 * r)}"
    return polygon((x + size * dx, y + size * dy) for dx, dy in CORNERS[shape])


def opacity(value: float) -> str:
    """Return the opacity of a heat map's cell; zero is faintly visible."""
    return f"{0.04 + 0.96 * value:.2f}"
