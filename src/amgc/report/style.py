"""What all figures share, those of matplotlib and those of the page: colours, markers, axes and positions of labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# Okabe and Ito's colour-blind safe palette without its yellow, which is too light for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # eight, with seven colours: 56 combinations
# The colours for dark mode; white replaces black.
DARK = ("#4BA6DD", "#F0803C", "#2BC49A", "#E39CC4", "#F0B640", "#8FD0F5", "#F2F2F2")
ACCURACY = "accuracy on all seen classes, %"  # names of axes
SEEN = "classes seen"
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # after seven colours, lines are dashed
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


def spread_labels(wanted: Sequence[float], gap: float) -> list[float]:
    """Return positions at least `gap` apart, in the order of the `wanted` ones and as close to them as possible.

    >>> spread_labels([0.0, 10.0, 10.0], gap=4.0)
    [0.0, 8.0, 12.0]
    """
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    blocks: list[tuple[float, list[int]]] = []  # start of a block of touching labels, and the labels
    for place in order:
        start, block = wanted[place], [place]
        while blocks and blocks[-1][0] + gap * len(blocks[-1][1]) > start:
            block = blocks.pop()[1] + block
            start = sum(wanted[label] - gap * rank for rank, label in enumerate(block)) / len(block)
        blocks.append((start, block))
    found = {label: start + gap * rank for start, block in blocks for rank, label in enumerate(block)}
    return [found[place] for place in range(len(wanted))]


def percent_limits(values: Sequence[float]) -> tuple[int, int]:
    """Return multiples of ten around the percentages, at least twenty apart.

    >>> percent_limits([71, 88.5]), percent_limits([99.0])
    ((70, 90), (80, 100))
    """
    low, high = 10 * math.floor(min(values) / 10), 10 * math.ceil(max(values) / 10)
    high = min(100, max(high, 20))
    return max(0, min(low, high - 20)), high


def percent_ticks(low: float, high: float) -> list[float]:
    """Return at most six ticks.

    >>> percent_ticks(70, 90), percent_ticks(0, 100)
    ([70, 75, 80, 85, 90], [0, 20, 40, 60, 80, 100])
    """
    step = next(step for step in (5, 10, 20, 25, 50) if (high - low) / step < 6)
    first = math.ceil(low / step) * step
    return [first + step * place for place in range(int((high - first) // step) + 1)]


def spaced(values: Sequence[float], gap: float) -> list[float]:
    """Thin out sorted values so that they are at least `gap` apart; the last one is kept.

    >>> spaced([2, 4, 5, 6, 10], 2)
    [2, 4, 6, 10]
    """
    kept = [values[-1]]
    for value in reversed(values[:-1]):
        if kept[-1] - value >= gap:
            kept.append(value)
    return kept[::-1]
