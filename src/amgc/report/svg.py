"""Elements of the page's SVG figures: escaped tags, markers, axes.

Colours are CSS classes (`s0` … `s6`, page.css), so the same drawing works in light and dark mode and in print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

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


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element with escaped children. `class_` becomes class, `stroke_width` stroke-width; None is left out.

    >>> tag("text", "<b>", x=1.0, class_="axis")
    Markup('<text x="1" class="axis">&lt;b&gt;</text>')
    """
    written = ""
    for key, value in attributes.items():
        if value is not None:
            spelled = key.removesuffix("_").replace("_", "-").replace("viewbox", "viewBox")
            written += f' {spelled}="{number(value) if isinstance(value, float) else escape(value)}"'
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>" if children else f"<{name}{written}/>")


def drawing(identity: str, width: float, height: float, title: str, text: str, *children: object, class_: str = "") -> Markup:
    """Return a figure; screen readers read its `title` and `text`."""
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


def colour_class(place: int) -> str:
    """Return the CSS class of the colour of the method at this place."""
    return f"s{place % len(COLOURS)}"


def dashes(place: int) -> str | None:
    """Return the dash pattern of the line of the method at this place."""
    return DASHES[place // len(COLOURS) % len(DASHES)] or None


def marker(place: int, x: float, y: float, size: float = 4.5) -> Markup:
    """Return the marker of the method at this place; seven colours and eight markers distinguish 56 methods."""
    shape = MARKERS[place % len(MARKERS)]
    if shape == "o":
        return tag("circle", cx=x, cy=y, r=0.95 * size, class_="mark")
    return tag("path", d=polygon((x + size * dx, y + size * dy) for dx, dy in CORNERS[shape]), class_="mark")


def swatch(place: int) -> Markup:
    """Return the line and the marker of a method in small, for tables and legends."""
    line = tag("path", d="M1 7h24", class_="line", stroke_dasharray=dashes(place))
    classes = f"swatch {colour_class(place)}"
    return tag("svg", line, marker(place, 13, 7), class_=classes, width=26, height=14, aria_hidden="true")


def polygon(points: Iterable[tuple[float, float]], close: bool = True) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + "Z" * close


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

    def x(self, value: float) -> float:
        low, high = self.xs
        return self.left + (self.width - self.left - self.right) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.ys
        return self.height - self.bottom - (self.height - self.top - self.bottom) * (value - low) / (high - low)

    def axes(self, xticks: Sequence[float], yticks: Sequence[float], x_name: str, y_name: str) -> Markup:
        """Return horizontal grid lines, tick labels and the names of both axes."""
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
