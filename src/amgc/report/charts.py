"""Figures that several sections of the page use: line charts of accuracies, and heat maps. The SVG is in templates/charts.html.

Colours are CSS classes (`s0` … `s6`, page.css), so the same drawing works in light and dark mode and in print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from markupsafe import Markup

from amgc.report.groups import MethodRuns, Spread, percent_spread
from amgc.report.html import macros
from amgc.report.style import ACCURACY, percent_limits, percent_ticks, spaced, spread_labels
from amgc.runs import Metrics

LABEL_GAP = 18.0  # pixels between the labels at the ends of lines
MAX_SMALL = 20  # rows of a heat map that shows the names of rows and columns and a number in each cell
LEVELS = 10  # strengths of colour in a large heat map
LETTER = 7.0  # approximate width of a letter in pixels


@dataclass(frozen=True)
class Frame:
    """The size of a chart, its margins, and the limits of both axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]

    @property
    def end(self) -> float:
        """The right end of the x axis."""
        return self.width - self.right

    @property
    def floor(self) -> float:
        """The y position of the x axis."""
        return self.height - self.bottom

    def x(self, value: float) -> float:
        low, high = self.xs
        return self.left + (self.end - self.left) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.ys
        return self.floor - (self.floor - self.top) * (value - low) / (high - low)


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

    @property
    def mark_size(self) -> float:
        return 4.5 if len(self.values) <= 25 else 3.0

    @property
    def has_band(self) -> bool:
        return any(value.std for value in self.values)

    def edges(self, side: Literal[-1, 1]) -> list[float]:
        """Return the lower or upper edge of the band of one standard deviation, in percent."""
        return [max(0, min(100, 100 * (value.mean + side * (value.std or 0)))) for value in self.values]

    def points(self, frame: Frame) -> list[tuple[float, float]]:
        return [(frame.x(count), frame.y(100 * value.mean)) for count, value in zip(self.seen, self.values, strict=True)]

    def band(self, frame: Frame) -> list[tuple[float, float]]:
        above, below = (
            [(frame.x(count), frame.y(edge)) for count, edge in zip(self.seen, self.edges(side), strict=True)]
            for side in (1, -1)
        )
        return [*above, *reversed(below)]

    def marks(self, frame: Frame) -> list[tuple[tuple[float, float], str]]:
        """Return the points with their tooltips."""
        numbers = zip(self.points(frame), self.seen, self.values, strict=True)
        return [(point, f"{self.name}, {count} classes: {percent_spread(value)} %") for point, count, value in numbers]


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
    margin = 0.02 * (seen[-1] - seen[0]) or 1.0
    xs = seen[0] - margin, seen[-1] + margin
    ys = percent_limits([edge for line in lines for edge in (*line.edges(-1), *line.edges(1))])
    axis, yticks = ACCURACY, percent_ticks(*ys)
    if kind == "small":
        frame = Frame(280, 190, left=32, right=8, top=26, bottom=40, xs=xs, ys=(0, 100))
        gap, axis, yticks = 0.18, "%", [0, 25, 50, 75, 100]
    elif kind == "narrow":
        frame = Frame(380, 300, left=34, right=10, top=30, bottom=46, xs=xs, ys=ys)
        gap = 0.11
    else:
        height = max(420, LABEL_GAP * len(lines) + 80)
        frame = Frame(960, height, left=40, right=230, top=30, bottom=46, xs=xs, ys=ys)
        gap = 0.045
    xticks = spaced(seen, gap * (xs[1] - xs[0]))
    labels = end_labels(frame, lines) if kind == "wide" else []
    classes = "small" if kind == "small" else f"chart {kind}"
    drawn = macros("charts.html").line_chart(identity, title, text, classes, frame, xticks, yticks, axis, lines, labels)
    return Markup(drawn)


def end_labels(frame: Frame, lines: Sequence[Line]) -> list[tuple[Line, float, float, float]]:
    """Return for each line where it ends (x and y), and the y position of its name right of the chart."""
    ends = [frame.y(line.end) for line in lines]
    places = spread_labels(ends, LABEL_GAP)
    for rank, place in enumerate(sorted(range(len(lines)), key=lambda place: -places[place])):
        places[place] = min(places[place], frame.height - 8 - LABEL_GAP * rank)  # keep the lowest inside the drawing
    return [(line, frame.x(line.seen[-1]) + 6, end, at) for line, end, at in zip(lines, ends, places, strict=True)]


@dataclass(frozen=True)
class Heat:
    """A square map: values from 0 to 1 by (row, column). Cells without a value are empty."""

    names: Sequence[str]  # of rows and columns
    cells: Mapping[tuple[int, int], float]
    written: Mapping[tuple[int, int], str]  # text in each cell of a small map
    rows: str  # name of the vertical axis
    columns: str  # name of the horizontal axis
    scale: Sequence[tuple[float, str]] = ()  # values and their meanings, for the legend of a large map
    blocks: Sequence[tuple[str, int]] = ()  # names and lengths of blocks of rows, such as tasks

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def small(self) -> bool:
        """Whether rows and columns are named and each cell shows its text. A large map names blocks and has a legend."""
        return self.count <= MAX_SMALL

    @property
    def name_width(self) -> float:
        return LETTER * min(12, max(map(len, self.names)))

    @property
    def turned(self) -> bool:
        """Whether the names of columns are rotated, because they are wider than a cell."""
        return self.small and self.name_width > 3 * LETTER

    @property
    def left(self) -> float:
        """The x position of the first cell."""
        return 24 + self.name_width if self.small else 48.0

    @property
    def top(self) -> float:
        """The y position of the first cell."""
        return 26 + self.name_width if self.turned else 42.0

    @property
    def cell(self) -> float:
        """The side of a cell."""
        return max(26.0, min(36.0, 240 / self.count)) if self.small else max(2.0, min(12.0, 500 / self.count))

    def merged_cells(self) -> list[tuple[float, str]]:
        """Return the cells of each strength as one path, with neighbours merged: 1 % of the bytes of a rectangle each."""
        pieces: list[list[int]] = []  # level, row, column, length
        for (row, column), value in sorted(self.cells.items()):
            level = max(1, round(value * LEVELS)) if value > 0 else 0
            if pieces and pieces[-1][:2] == [level, row] and sum(pieces[-1][2:]) == column:
                pieces[-1][3] += 1
            else:
                pieces.append([level, row, column, 1])
        paths: dict[int, str] = {}
        for level, row, column, length in pieces:
            paths[level] = paths.get(level, "") + f"M{column} {row}h{length}v1h-{length}z"
        return [(level / LEVELS, squares) for level, squares in paths.items() if level]

    def boundaries(self) -> list[float]:
        """Return the positions between the blocks."""
        return [at * self.cell for at in accumulate(length for _, length in self.blocks[:-1])]

    def labels(self) -> list[tuple[str, float]]:
        """Return the names of classes, or of blocks in a large map, with their positions along both axes."""
        if self.small:
            return [(name, (place + 0.5) * self.cell) for place, name in enumerate(self.names)]
        ends = accumulate(length for _, length in self.blocks)
        middles = [(end - length / 2) * self.cell for (_, length), end in zip(self.blocks, ends, strict=True)]
        kept = spaced(middles, 22) if middles else []
        return [(name, at) for (name, _), at in zip(self.blocks, middles, strict=True) if at in kept]


def heat_map(identity: str, title: str, text: str, heat: Heat) -> Markup:
    """Draw a heat map; a value is the opacity of its cell."""
    return Markup(macros("charts.html").heat_map(identity, title, text, heat))
