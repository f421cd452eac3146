"""Figures that several sections of the page use: line charts of accuracies, and heat maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from amgc.report.groups import MethodRuns, Spread, percent_spread
from amgc.report.plot import percent_limits, percent_ticks, spaced, spread_labels
from amgc.report.svg import Frame, colour_class, dashes, drawing, marker, number, polygon, tag
from amgc.runs import Metrics
from amgc.text import shorten

LABEL_GAP = 18.0  # pixels between the labels at the ends of lines
MAX_NUMBERED = 12  # a heat map with at most this many rows shows a number in each cell
MAX_NAMED = 30  # a heat map with at most this many rows shows the names of rows and columns, a larger one those of blocks
LEVELS = 10  # strengths of colour in a large heat map
LETTER = 7.0  # approximate width of a letter in pixels


# ---- lines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """Accuracies, as fractions, against the number of classes seen."""

    name: str
    place: int  # determines colour, marker and dashes
    seen: Sequence[int]
    values: Sequence[Spread]

    @classmethod
    def of(cls, method: MethodRuns, numbers: Callable[[Metrics], Sequence[float | None]], name: str, place: int) -> Line:
        """Return the values of a metric after each task for which it is defined."""
        seen = method.runs[0].metrics.seen
        known = [(count, value) for count, value in zip(seen, method.after(numbers), strict=False) if value is not None]
        return cls(name, place, [count for count, _ in known], [value for _, value in known])

    @property
    def end(self) -> float:
        return 100 * self.values[-1].mean


def line_chart(
    identity: str,
    title: str,
    text: str,
    lines: Sequence[Line],
    seen: Sequence[int],
    kind: Literal["wide", "narrow", "small"],
) -> Markup:
    """Draw lines with bands of one standard deviation.

    Lines of a wide chart are named at their ends; narrow and small charts need a legend. Small charts range from 0 to 100 %.
    """
    lines = [line for line in lines if line.values]
    edges = [max(0, min(100, 100 * edge)) for line in lines for value in line.values for edge in _edges(value)]
    margin = 0.02 * (seen[-1] - seen[0]) or 1.0
    xs = seen[0] - margin, seen[-1] + margin
    if kind == "small":
        frame = Frame(280, 190, left=32, right=8, top=26, bottom=40, xs=xs, ys=(0, 100))
        axes = frame.axes(spaced(seen, (seen[-1] - seen[0]) / 5.5), [0, 25, 50, 75, 100], "classes seen", "%")
    else:
        narrow = kind == "narrow"
        frame = Frame(
            width=380 if narrow else 960,
            height=300 if narrow else max(420, LABEL_GAP * len(lines) + 80),
            left=34 if narrow else 40,
            right=10 if narrow else 230,
            top=30,
            bottom=46,
            xs=xs,
            ys=percent_limits(edges),
        )
        ticks = spaced(seen, (xs[1] - xs[0]) * (0.11 if narrow else 0.045))
        axes = frame.axes(ticks, percent_ticks(*frame.ys), "classes seen", "accuracy on all seen classes, %")
    names = _end_labels(frame, lines) if kind == "wide" else []
    series = [_series(frame, line) for line in lines]
    classes = "small" if kind == "small" else f"chart {kind}"
    return drawing(identity, frame.width, frame.height, title, text, axes, *series, *names, class_=classes)


def _edges(value: Spread) -> tuple[float, float]:
    return value.mean - (value.std or 0), value.mean + (value.std or 0)


def _series(frame: Frame, line: Line) -> Markup:
    points = [(frame.x(count), frame.y(100 * value.mean)) for count, value in zip(line.seen, line.values, strict=True)]
    parts = []
    if any(value.std for value in line.values):
        low, high = zip(*(_edges(value) for value in line.values), strict=True)
        above = [(x, frame.y(min(100, 100 * edge))) for (x, _), edge in zip(points, high, strict=True)]
        below = [(x, frame.y(max(0, 100 * edge))) for (x, _), edge in zip(points, low, strict=True)]
        parts.append(tag("path", d=polygon([*above, *reversed(below)]), class_="band"))
    parts.append(tag("path", d=polygon(points, close=False), class_="line", stroke_dasharray=dashes(line.place)))
    size = 4.5 if len(points) <= 25 else 3.0
    for (x, y), count, value in zip(points, line.seen, line.values, strict=True):
        tooltip = f"{line.name}, {count} classes: {percent_spread(value)} %"
        parts.append(tag("g", tag("title", tooltip), marker(line.place, x, y, size)))
    return tag("g", *parts, class_=f"series {colour_class(line.place)}")


def _end_labels(frame: Frame, lines: Sequence[Line]) -> list[Markup]:
    """Return the name and the last accuracy of each line, right of the chart, with a dotted line to the line's end."""
    right = frame.width - frame.right
    ends = [frame.y(line.end) for line in lines]
    places = spread_labels(ends, LABEL_GAP)
    for rank, place in enumerate(sorted(range(len(lines)), key=lambda place: -places[place])):
        places[place] = min(places[place], frame.height - 8 - LABEL_GAP * rank)  # keep the lowest inside the drawing
    labels = []
    for line, end, at in zip(lines, ends, places, strict=True):
        start = frame.x(line.seen[-1]) + 6
        name = tag(
            "text",
            tag("title", line.name),
            tag("tspan", f"{line.end:.1f}", class_="value"),
            tag("tspan", shorten(line.name, 21), dx=7),
            x=right + 34,
            y=at + 4.5,
            class_="name",
        )
        leader = tag("path", d=f"M{number(start)} {number(end)}L{number(right + 18)} {number(at)}", class_="lead")
        labels.append(tag("g", leader, marker(line.place, right + 24, at), name, class_=colour_class(line.place)))
    return labels


# ---- heat maps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heat:
    """A square map: values from 0 to 1 by (row, column). Cells without a value are empty."""

    names: Sequence[str]  # of rows and columns
    cells: Mapping[tuple[int, int], float]
    written: Mapping[tuple[int, int], str]  # text in each cell of a small map
    rows: str  # name of the vertical axis
    columns: str  # name of the horizontal axis
    scale: Sequence[tuple[float, str]]  # values and their meanings, for the legend of a large map
    blocks: Sequence[tuple[str, int]] = ()  # names and lengths of blocks of rows, such as tasks

    @property
    def count(self) -> int:
        return len(self.names)


def heat_map(identity: str, title: str, text: str, heat: Heat) -> Markup:
    """Draw a heat map; a value is the opacity of its cell."""
    left, top, cell = cell_geometry(heat.names)
    side = cell * heat.count
    numbered = heat.count <= MAX_NUMBERED
    inside = [_numbered_cells(heat, cell) if numbered else _merged_cells(heat, cell), _boundaries(heat, cell)]
    inside += _names(heat, cell) if heat.count <= MAX_NAMED else _block_names(heat, cell)
    inside += [] if numbered else _legend(heat, side)
    parts = [
        tag("text", heat.columns, x=left, y=12.0, class_="axis"),
        tag("text", heat.rows, class_="axis end", transform=f"translate(11 {number(top)}) rotate(-90)"),
        tag("g", *inside, transform=f"translate({number(left)} {number(top)})"),
    ]
    height = top + side + (4 if numbered else 40)
    return drawing(identity, left + max(side, 0 if numbered else 260) + 4, height, title, text, *parts, class_="heat")


def cell_geometry(names: Sequence[str]) -> tuple[float, float, float]:
    """Return x and y of the first cell of a map, and the side of a cell."""
    count, letters = len(names), min(12, max(map(len, names)))
    if count > MAX_NAMED:
        return 48.0, 42.0, max(2.0, min(12.0, 500 / count))
    cell = max(30.0, min(36.0, 240 / count)) if count <= MAX_NUMBERED else 16.0 if letters > 3 else 12.0
    return 24 + letters * LETTER, 26 + (letters * LETTER if letters > 3 else 16.0), cell


def _opacity(value: float) -> str:
    return f"{0.04 + 0.96 * value:.2f}"


def _numbered_cells(heat: Heat, cell: float) -> Markup:
    parts = []
    for (row, column), value in heat.cells.items():
        x, y = column * cell, row * cell
        box = tag("rect", x=x, y=y, width=cell - 1, height=cell - 1, class_="cell", fill_opacity=_opacity(value))
        ink = "low" if value < 0.625 else "mid" if value < 0.795 else "high"  # page.css: readable in light and dark mode
        words = tag("text", heat.written[row, column], x=x + (cell - 1) / 2, y=y + cell / 2 + 3.5, class_=f"in middle {ink}")
        parts += [box, words]
    return Markup("").join(parts)


def _merged_cells(heat: Heat, cell: float) -> Markup:
    """Draw all cells of one strength as one path and merge neighbours; this takes 1 % of the bytes of a rectangle each."""
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
        tag("path", d="".join(squares), class_="cell", fill_opacity=_opacity(level / LEVELS), transform=scale)
        for level, squares in levels.items()
        if level
    ]
    return Markup("").join([ground, *paths])


def _legend(heat: Heat, side: float) -> list[Markup]:
    """Draw the meaning of the colours below the map."""
    parts = []
    for place, (value, meaning) in enumerate(heat.scale):
        x = 52.0 * place
        parts.append(tag("rect", x=x, y=side + 14, width=12, height=12, class_="ground"))
        parts.append(tag("rect", x=x, y=side + 14, width=12, height=12, class_="cell", fill_opacity=_opacity(value)))
        parts.append(tag("text", meaning, x=x + 16, y=side + 24, class_="tick"))
    return parts


def _boundaries(heat: Heat, cell: float) -> Markup:
    """Draw lines between the blocks."""
    lines, at, side = [], 0, number(heat.count * cell)
    for _, length in heat.blocks[:-1]:
        at += length
        place = number(at * cell)
        lines.append(f"M{place} 0V{side}M0 {place}H{side}")
    return tag("path", d="".join(lines), class_="boundary") if lines else Markup("")


def _names(heat: Heat, cell: float) -> list[Markup]:
    """Write names beside rows and columns; short ones are upright and thinned out, long ones are rotated."""
    parts = []
    upright = max(map(len, heat.names)) <= 3
    for place, name in enumerate(heat.names):
        middle = (place + 0.5) * cell
        full = tag("title", name) if len(name) > 12 else ""
        if not upright or place % math.ceil(24 / cell) == 0:
            turn = f"translate({number(middle)} -6)" if upright else f"translate({number(middle + 4)} -6) rotate(-90)"
            parts.append(tag("text", full, shorten(name, 12), class_="tick middle" if upright else "tick", transform=turn))
        if not upright or place % math.ceil(12 / cell) == 0:
            parts.append(tag("text", full, shorten(name, 12), x=-6.0, y=middle + 4, class_="tick end"))
    return parts


def _block_names(heat: Heat, cell: float) -> list[Markup]:
    parts, at, last = [], 0, -math.inf
    for name, length in heat.blocks:
        middle = (at + length / 2) * cell
        if middle - last >= 22:
            parts.append(tag("text", name, x=-6.0, y=middle + 4, class_="tick end"))
            parts.append(tag("text", name, x=middle, y=-6.0, class_="tick middle"))
            last = middle
        at += length
    return parts
