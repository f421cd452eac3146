"""The paper's Figure 1, measured: test features of two classes in a plane after several tasks, on common axes.

The Gaussians that the method stores, and their enlarged versions, are drawn as ellipses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

from amgc.report.groups import Spread
from amgc.report.run_tables import evenly
from amgc.report.sections import Comparison, Table, render, section
from amgc.report.style import number
from amgc.runs.observed import Gaussian, Matrix, Observed, Plane, Point
from amgc.text import DASH

MAX_PANELS = 6  # tasks that are shown
SIDE = 250.0  # pixels of the longer side of a panel
MIN_ASPECT = 0.6  # shorter side of a panel divided by the longer one
SHARE = 0.995  # share of the points inside the axes, so that a few outliers do not determine the scale
MEASURED = ("mean x, y", "deviation x, y", "stored mean", "stored deviation")


@section("plane", "How features move", order=80)
def plane(comparison: Comparison) -> Markup | None:
    shown: list[dict[str, Any]] = []
    for method, run, planes in comparison.recorded(recorded_planes):
        chosen = [planes[place] for place in evenly(len(planes), MAX_PANELS)]
        one, two = chosen[0][1].classes
        names = run.class_names[one], run.class_names[two]
        gaussians = [gaussian for _, plane in chosen for gaussian in plane.gaussians if gaussian is not None]
        header = ["after", *[f"{name}, {what}" for name in names for what in MEASURED]]
        rows = [plane_row(f"T{task + 1}", plane) for task, plane in chosen]
        shown.append({
            "method": method,
            "run": run,
            "names": names,
            "panels": draw_planes(comparison.identity("plane", method), names, chosen),
            "numbers": Table(header, rows, f"{method.name}, features in the plane"),
            "stored": bool(gaussians),
            "enlarged": any(gaussian.enlarged is not None for gaussian in gaussians),
        })  # fmt: skip
    if not shown:
        return None
    first = next((item for item in shown if item["stored"]), shown[0])  # the paper's figure shows Gaussians
    return render(TEMPLATE, shown=shown, open=first, missing=comparison.missing([item["method"] for item in shown]))


def recorded_planes(observed: Sequence[Observed]) -> list[tuple[int, Plane]] | None:
    """Return the tasks (from 0) and their planes."""
    return [(after.task, after.plane) for after in observed if after.plane is not None] or None


def plane_row(name: str, plane: Plane) -> list[str]:
    """Return mean and deviation along x and y of the points and of the stored Gaussian, for both classes."""
    cells = [name]
    for points, gaussian in zip(plane.points, plane.gaussians, strict=True):
        spreads = [Spread.of([point[axis] for point in points]) for axis in (0, 1)]
        cells.append(", ".join(DASH if spread is None else f"{spread.mean:.3g}" for spread in spreads))
        cells.append(", ".join(DASH if spread is None or spread.std is None else f"{spread.std:.3g}" for spread in spreads))
        if gaussian is None:
            cells += [DASH, DASH]
        else:
            cells.append(", ".join(f"{value:.3g}" for value in gaussian.mean))
            cells.append(", ".join(f"{math.sqrt(max(0.0, gaussian.covariance[axis][axis])):.3g}" for axis in (0, 1)))
    return cells


def draw_planes(identity: str, names: tuple[str, str], planes: Sequence[tuple[int, Plane]]) -> list[tuple[str, Markup]]:
    """Draw the plane after each task, with common axes and the same scale for x and y. Returns titles and drawings."""
    (left, right), (low, high) = _limits([plane for _, plane in planes])
    scale = SIDE / max(right - left, high - low)
    width, height = scale * (right - left), scale * (high - low)

    def place(point: Point) -> Point:
        return scale * (point[0] - left), scale * (high - point[1])

    drawn = []
    for index, (task, plane) in enumerate(planes):
        after = f"after task {task + 1}"
        panel = render(
            PANEL,
            id=f"{identity}-{index}",
            width=width,
            height=height,
            title=f"{names[0]} and {names[1]}, {after}",
            text=_description(names, plane),
            dots=[_dots(which, map(place, points)) for which, points in enumerate(plane.points)],
            ellipses=[one for which in (0, 1) for one in _ellipses(which, plane.gaussians[which], place, scale)],
        )
        drawn.append((after, panel))
    return drawn


def ellipse(covariance: Matrix) -> tuple[float, float, float]:
    """Return the half axes of the ellipse at one standard deviation, and the angle of the first in radians.

    >>> ellipse(((4.0, 0.0), (0.0, 1.0)))
    (2.0, 1.0, 0.0)
    """
    (a, b), (_, c) = covariance
    middle, away = (a + c) / 2, math.hypot((a - c) / 2, b)
    return math.sqrt(max(0.0, middle + away)), math.sqrt(max(0.0, middle - away)), 0.5 * math.atan2(2 * b, a - c)


def _ellipses(
    which: int, gaussian: Gaussian | None, place: Callable[[Point], Point], scale: float
) -> Iterator[tuple[str, float, float, float, float, float]]:
    """Yield CSS class, x, y, angle in degrees and half axes of each ellipse: at one and two standard deviations."""
    if gaussian is None:
        return
    for covariance, kind in ((gaussian.covariance, "kept"), (gaussian.enlarged, "enlarged")):
        if covariance is not None:
            first, second, turn = ellipse(covariance)
            for radius in (scale, 2 * scale):
                yield f"{kind} p{which}", *place(gaussian.mean), -math.degrees(turn), radius * first, radius * second


def _dots(which: int, points: Iterable[Point]) -> str:
    """Return dots (lines of length zero with round ends) for the first class, crosses for the second."""
    shape = "h0" if which == 0 else "m-2-2l4 4m0-4l-4 4"
    return "".join(f"M{number(x)} {number(y)}{shape}" for x, y in points)


def _limits(planes: Sequence[Plane]) -> tuple[Point, Point]:
    limits = []
    for axis in (0, 1):
        values = sorted(point[axis] for plane in planes for points in plane.points for point in points)
        cut = int(len(values) * (1 - SHARE) / 2)
        ends = values[cut : len(values) - cut]
        for gaussian in (gaussian for plane in planes for gaussian in plane.gaussians if gaussian is not None):
            widest = gaussian.enlarged or gaussian.covariance
            reach = 2 * math.sqrt(max(0.0, widest[axis][axis]))
            ends += [gaussian.mean[axis] - reach, gaussian.mean[axis] + reach]
        margin = 0.04 * (max(ends) - min(ends)) or 1.0
        limits.append((min(ends) - margin, max(ends) + margin))
    shorter, longer = sorted(limits, key=lambda ends: ends[1] - ends[0])
    missing = max(0.0, MIN_ASPECT * (longer[1] - longer[0]) - (shorter[1] - shorter[0])) / 2
    limits[limits.index(shorter)] = shorter[0] - missing, shorter[1] + missing
    return limits[0], limits[1]


def _description(names: tuple[str, str], plane: Plane) -> str:
    parts = []
    for name, points in zip(names, plane.points, strict=True):
        if points:
            x, y = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
            parts.append(f"{len(points)} test images of {name} around ({x:.2f}, {y:.2f})")
    stored = [name for name, gaussian in zip(names, plane.gaussians, strict=True) if gaussian is not None]
    parts.append(f"with the stored Gaussians of {' and '.join(stored)}" if stored else "without a stored Gaussian")
    return ", ".join(parts) + "."


PANEL = """
{% call charts.drawing(id, width, height, title, text, "plane") %}
<rect class="panel" x="0.5" y="0.5" width="{{ (width - 1)|n }}" height="{{ (height - 1)|n }}"/>
{% for d in dots %}<path class="dots p{{ loop.index0 }}" d="{{ d }}"/>
{% endfor %}
{% for class, x, y, turn, rx, ry in ellipses %}
<ellipse class="{{ class }}" rx="{{ rx|n }}" ry="{{ ry|n }}" transform="translate({{ x|n }} {{ y|n }}) rotate({{ turn|n }})"/>
{% endfor %}
{% endcall %}
"""
TEMPLATE = """
<p>The paper’s Figure 1, measured: features of the same test images of two classes of task 1 after several tasks. The plane is
fixed: x passes through the means of the two classes after the first task shown, y is the direction of largest variance
orthogonal to it.</p>
{% set symbol = '<svg class="swatch" width="26" height="14" aria-hidden="true">'|safe %}
{% for item in shown %}
<details class="method"{{ " open" if item is sameas open }}>
  <summary>{{ parts.method(item.method) }}{{ parts.seed(item.method, item.run) }}</summary>
  <ul class="legend">
    <li>{{ symbol }}<path class="dots p0" d="M5 7h0M13 4h0M20 9h0"/></svg> {{ parts.named(item.names[0]) }}</li>
    <li>{{ symbol }}<path class="dots p1" d="M4 5l4 4m0-4l-4 4M16 5l4 4m0-4l-4 4"/></svg> {{ parts.named(item.names[1]) }}</li>
    {% if item.stored %}
    <li>{{ symbol }}<ellipse class="kept p0" cx="13" cy="7" rx="12" ry="6"/></svg> stored, 1 and 2 standard deviations</li>
    {% endif %}
    {% if item.enlarged %}
    <li>{{ symbol }}<ellipse class="enlarged p0" cx="13" cy="7" rx="12" ry="6"/></svg> enlarged</li>
    {% endif %}
  </ul>
  <div class="multiples planes">
    {% for title, figure in item.panels %}
    <figure>
      <figcaption>{{ title }}</figcaption>
      {{ figure }}
    </figure>
    {% endfor %}
  </div>
  {{ parts.numbers(item.numbers) }}
  {% if not item.stored %}<p class="soft">This method stores no Gaussians.</p>{% endif %}
</details>
{% endfor %}
{{ parts.missing(missing, "Runs of an older version of amgc, which did not record features") }}
"""
