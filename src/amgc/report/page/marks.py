"""What all figures are made of: escaped SVG elements, markers, scales and axes.

Colours are CSS classes (`s0` … `s6`, page.css), so that one drawing serves light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from amgc.report.plot import COLOURS, MARKERS

DASHES = ("", "7 3", "2 3", "9 3 2 3")
# Corners of each of plot.py's markers on a circle of radius 1, but for the round one.
CORNERS: dict[str, Sequence[tuple[float, float]]] = {
    "s": ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
    "^": ((0, -1), (0.95, 0.75), (-0.95, 0.75)),
    "D": ((0, -1.05), (1.05, 0), (0, 1.05), (-1.05, 0)),
    "v": ((0, 1), (0.95, -0.75), (-0.95, -0.75)),
    "P": tuple((x, y) for x, y in zip((-0.4, 0.4, 0.4, 1, 1, 0.4, 0.4, -0.4, -0.4, -1, -1, -0.4),
                                      (-1, -1, -0.4, -0.4, 0.4, 0.4, 1, 1, 0.4, 0.4, -0.4, -0.4), strict=True)),
    "*": tuple((r * math.sin(turn), -r * math.cos(turn)) for r, turn in
               ((1.15 if corner % 2 == 0 else 0.5, math.pi * corner / 5) for corner in range(10))),
}  # fmt: skip
CORNERS["X"] = [((x - y) * math.sqrt(0.5), (x + y) * math.sqrt(0.5)) for x, y in CORNERS["P"]]


def number(value: float) -> str:
    """A coordinate, as short as a tenth of a pixel allows.

    >>> number(12.04), number(-0.01), number(7.25)
    ('12', '0', '7.2')
    """
    return f"{value:.1f}".removesuffix(".0").removeprefix("-" if abs(value) < 0.05 else " ")


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is class, `stroke_width` stroke-width; None leaves an attribute out; text is escaped.

    >>> tag("text", "<b>", x=1.0, class_="axis")
    Markup('<text x="1" class="axis">&lt;b&gt;</text>')
    """
    said = ""
    for key, value in attributes.items():
        if value is not None:
            spelled = key.removesuffix("_").replace("_", "-").replace("viewbox", "viewBox")
            said += f' {spelled}="{number(value) if isinstance(value, float) else escape(value)}"'
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{said}>{inside}</{name}>" if children else f"<{name}{said}/>")


def drawing(identity: str, width: float, height: float, title: str, text: str, *children: object, class_: str = "") -> Markup:
    """A whole figure that says what it is (`title`) and what it shows (`text`) to those who do not see it."""
    return tag(
        "svg",
        tag("title", title, id=f"{identity}-title"),
        tag("desc", text, id=f"{identity}-text"),
        *children,
        id=identity,
        class_=class_ or None,
        viewbox=f"0 0 {number(width)} {number(height)}",
        width=number(width),
        height=number(height),
        role="img",
        aria_labelledby=f"{identity}-title",
        aria_describedby=f"{identity}-text",
    )


def look(place: int) -> str:
    """The class of the colour of the method at this place."""
    return f"s{place % len(COLOURS)}"


def dash(place: int) -> str | None:
    return DASHES[place // len(COLOURS) % len(DASHES)] or None


def marker(place: int, x: float, y: float, size: float = 4.5) -> Markup:
    """The marker of the method at this place; seven colours and eight markers make 56 look different."""
    shape = MARKERS[place % len(MARKERS)]
    if shape == "o":
        return tag("circle", cx=x, cy=y, r=0.95 * size, class_="mark")
    return tag("path", d=polygon((x + size * dx, y + size * dy) for dx, dy in CORNERS[shape]), class_="mark")


def swatch(place: int) -> Markup:
    """The method's line and marker in small, for tables and legends; the name stands beside it."""
    line = tag("path", d="M1 7h24", class_="line", stroke_dasharray=dash(place))
    return tag("svg", line, marker(place, 13, 7), class_=f"swatch {look(place)}", width=26, height=14, aria_hidden="true")


def polygon(points: Iterable[tuple[float, float]], close: bool = True) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + "Z" * close


def short(name: str, letters: int) -> str:
    """
    >>> short("aquarium fish", 8), short("crab", 8)
    ('aquariu…', 'crab')
    """
    return name if len(name) <= letters else name[: letters - 1] + "…"


@dataclass(frozen=True)
class Frame:
    """A rectangle for data: the drawing's size, what is left free around, and the limits of both axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.xs
        return self.left + (self.width - self.left - self.right) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.ys
        return self.height - self.bottom - (self.height - self.top - self.bottom) * (value - low) / (high - low)

    def axes(self, xticks: Sequence[float], yticks: Sequence[float], x_name: str, y_name: str) -> Markup:
        """Level lines with their values, ticks below, and the axes' names: below, and above the values."""
        bottom, right = self.height - self.bottom, self.width - self.right
        parts = []
        for value in yticks:
            at = self.y(value)
            parts.append(tag("path", d=f"M{number(self.left)} {number(at)}H{number(right)}", class_="level"))
            parts.append(tag("text", f"{value:g}", x=self.left - 8, y=at + 4, class_="tick end"))
        parts += [tag("text", f"{value:g}", x=self.x(value), y=bottom + 18, class_="tick middle") for value in xticks]
        parts.append(tag("text", x_name, x=(self.left + right) / 2, y=bottom + 36, class_="axis middle"))
        parts.append(tag("text", y_name, x=0.0, y=12.0, class_="axis"))
        return Markup("").join(parts)


def percent_limits(values: Sequence[float]) -> tuple[float, float]:
    """Multiples of ten around the percentages, at least twenty apart.

    >>> percent_limits([71, 88.5]), percent_limits([99.0])
    ((70, 90), (80, 100))
    """
    low, high = 10 * math.floor(min(values) / 10), 10 * math.ceil(max(values) / 10)
    high = min(100, max(high, 20))
    return max(0, min(low, high - 20)), high


def percent_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """
    >>> percent_ticks(70, 90), percent_ticks(0, 100)
    ([70, 75, 80, 85, 90], [0, 20, 40, 60, 80, 100])
    """
    step = next(step for step in (5, 10, 20, 25, 50) if (high - low) / step < most)
    first = math.ceil(low / step) * step
    return [first + step * place for place in range(int((high - first) // step) + 1)]


def spaced(values: Sequence[float], gap: float) -> list[float]:
    """Those of the sorted `values` that are at least `gap` apart, the last one among them.

    >>> spaced([2, 4, 5, 6, 10], 2)
    [2, 4, 6, 10]
    """
    kept = [values[-1]]
    for value in reversed(values[:-1]):
        if kept[-1] - value >= gap:
            kept.append(value)
    return kept[::-1]
