"""The paper's Figure 1, measured: test features of two classes in a plane after several tasks, on common axes.

With the Gaussians that the method remembers, and the enlarged ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from amgc.report.page.marks import drawing, number, tag
from amgc.runs.observed import Gaussian, Matrix, Point

SIDE = 250.0  # pixels of a panel's longer side
FLATTEST = 0.6  # a panel's shorter side, in its longer one
SHARE = 0.995  # of the points that the axes hold: a single far one must not squeeze the others into a dot


@dataclass(frozen=True)
class Panel:
    """Both classes after one task."""

    title: str
    points: tuple[Sequence[Point], Sequence[Point]]
    gaussians: tuple[Gaussian | None, Gaussian | None]


def plane_panels(identity: str, names: tuple[str, str], panels: Sequence[Panel]) -> list[tuple[str, Markup]]:
    """A drawing for each panel, with its title; all on the same axes, x and y on the same scale."""
    (left, right), (low, high) = _limits(panels)
    scale = SIDE / max(right - left, high - low)
    width, height = scale * (right - left), scale * (high - low)

    def place(point: Point) -> Point:
        return scale * (point[0] - left), scale * (high - point[1])

    drawn = []
    for index, panel in enumerate(panels):
        inside: list[object] = [tag("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, class_="panel")]
        for which in (0, 1):
            inside.append(tag("path", d=_dots(which, [place(point) for point in panel.points[which]]), class_=f"dots p{which}"))
        for which in (0, 1):
            gaussian = panel.gaussians[which]
            if gaussian is not None:
                inside += _ellipses(which, gaussian, place, scale)
        text = _said(names, panel)
        svg = drawing(
            f"{identity}-{index}", width, height, f"{names[0]} and {names[1]}, {panel.title}", text, *inside, class_="plane"
        )
        drawn.append((panel.title, svg))
    return drawn


def ellipse(covariance: Matrix) -> tuple[float, float, float]:
    """Half the axes of the ellipse at one standard deviation, and the angle of the first, in radians.

    >>> ellipse(((4.0, 0.0), (0.0, 1.0)))
    (2.0, 1.0, 0.0)
    """
    (a, b), (_, c) = covariance
    middle, away = (a + c) / 2, math.hypot((a - c) / 2, b)
    return math.sqrt(max(0.0, middle + away)), math.sqrt(max(0.0, middle - away)), 0.5 * math.atan2(2 * b, a - c)


def _ellipses(which: int, gaussian: Gaussian, place: Callable[[Point], Point], scale: float) -> list[Markup]:
    x, y = place(gaussian.mean)
    parts = []
    for covariance, kind in ((gaussian.covariance, "kept"), (gaussian.enlarged, "enlarged")):
        if covariance is None:
            continue
        first, second, turn = ellipse(covariance)
        for deviations in (1, 2):
            parts.append(
                tag(
                    "ellipse",
                    rx=deviations * scale * first,
                    ry=deviations * scale * second,
                    transform=f"translate({number(x)} {number(y)}) rotate({number(-math.degrees(turn))})",
                    class_=f"{kind} p{which}",
                )
            )
    return parts


def _dots(which: int, points: Sequence[Point]) -> str:
    """Round dots for the first class (a line of no length with round ends), crosses for the second."""
    shape = "h0" if which == 0 else "m-2-2l4 4m0-4l-4 4"
    return "".join(f"M{number(x)} {number(y)}{shape}" for x, y in points)


def _limits(panels: Sequence[Panel]) -> tuple[Point, Point]:
    limits = []
    for axis in (0, 1):
        values = sorted(point[axis] for panel in panels for points in panel.points for point in points)
        cut = int(len(values) * (1 - SHARE) / 2)
        ends = values[cut : len(values) - cut]
        for panel in panels:
            for gaussian in panel.gaussians:
                if gaussian is not None:
                    widest = gaussian.enlarged or gaussian.covariance
                    reach = 2 * math.sqrt(max(0.0, widest[axis][axis]))
                    ends += [gaussian.mean[axis] - reach, gaussian.mean[axis] + reach]
        margin = 0.04 * (max(ends) - min(ends)) or 1.0
        limits.append((min(ends) - margin, max(ends) + margin))
    shorter, longer = sorted(limits, key=lambda ends: ends[1] - ends[0])
    missing = max(0.0, FLATTEST * (longer[1] - longer[0]) - (shorter[1] - shorter[0])) / 2
    place = limits.index(shorter)
    limits[place] = shorter[0] - missing, shorter[1] + missing
    return limits[0], limits[1]


def _said(names: tuple[str, str], panel: Panel) -> str:
    """How far apart the classes lie, in words."""
    said = []
    for name, points in zip(names, panel.points, strict=True):
        if points:
            x, y = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
            said.append(f"{len(points)} test images of {name} around ({x:.2f}, {y:.2f})")
    kept = [name for name, gaussian in zip(names, panel.gaussians, strict=True) if gaussian is not None]
    said.append(f"with the remembered Gaussians of {' and '.join(kept)}" if kept else "without a remembered Gaussian")
    return ", ".join(said) + "."
