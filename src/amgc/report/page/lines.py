"""Accuracy after each task as lines: all methods in one chart, or old against new classes in a small one per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from amgc.report.groups import Spread
from amgc.report.page.marks import (
    Frame,
    dash,
    drawing,
    look,
    marker,
    number,
    percent_limits,
    percent_ticks,
    polygon,
    short,
    spaced,
    tag,
)
from amgc.report.plot import spread
from amgc.text import percent

ROW = 18.0  # pixels from label to label


@dataclass(frozen=True)
class Line:
    """A method's accuracies, as fractions, against the number of classes seen."""

    name: str
    place: int  # decides colour, marker and dashes
    seen: Sequence[int]
    values: Sequence[Spread]

    @property
    def end(self) -> float:
        return 100 * self.values[-1].mean


def accuracy_chart(identity: str, title: str, text: str, lines: Sequence[Line], seen: Sequence[int], narrow: bool) -> Markup:
    """All methods, with a band of one standard deviation, over the tasks after which `seen` classes are seen, finished or not.

    Wide: lines are named at their ends; narrow: the legend names them.
    """
    shown = [line for line in lines if line.values]
    values = [100 * edge for line in shown for value in line.values for edge in _edges(value)]
    frame = Frame(
        width=380 if narrow else 960,
        height=300 if narrow else max(420, ROW * len(shown) + 80),
        left=34 if narrow else 40,
        right=10 if narrow else 230,
        top=30,
        bottom=46,
        xs=_around(seen),
        ys=percent_limits([max(0, min(100, value)) for value in values]),
    )
    gap = (frame.xs[1] - frame.xs[0]) * (0.11 if narrow else 0.045)
    axes = frame.axes(spaced(seen, gap), percent_ticks(*frame.ys, most=6), "classes seen", "accuracy on all seen classes, %")
    series = [_series(frame, line, band=True) for line in shown]
    names = [] if narrow else _end_names(frame, shown)
    return drawing(
        identity,
        frame.width,
        frame.height,
        title,
        text,
        axes,
        *series,
        *names,
        class_="chart narrow" if narrow else "chart wide",
    )


def balance_chart(identity: str, title: str, text: str, old: Line, new: Line) -> Markup:
    """Old and new classes of one method: two lines that lie together if the classifier favours neither."""
    seen = sorted(set(new.seen))
    frame = Frame(width=280, height=190, left=32, right=8, top=26, bottom=40, xs=_around(seen), ys=(0, 100))
    axes = frame.axes(spaced(seen, (seen[-1] - seen[0]) / 5.5), [0, 25, 50, 75, 100], "classes seen", "%")
    series = [_series(frame, line, band=True) for line in (old, new) if line.values]
    return drawing(identity, frame.width, frame.height, title, text, axes, *series, class_="small")


def _around(seen: Sequence[int]) -> tuple[float, float]:
    margin = 0.02 * (seen[-1] - seen[0]) or 1.0
    return seen[0] - margin, seen[-1] + margin


def _edges(value: Spread) -> tuple[float, float]:
    return value.mean - (value.std or 0), value.mean + (value.std or 0)


def _series(frame: Frame, line: Line, band: bool) -> Markup:
    points = [(frame.x(count), frame.y(100 * value.mean)) for count, value in zip(line.seen, line.values, strict=False)]
    parts = []
    if band and any(value.std for value in line.values):
        low, high = zip(*(_edges(value) for value in line.values), strict=True)
        at = [x for x, _ in points]
        above = [(x, frame.y(min(100, 100 * edge))) for x, edge in zip(at, high, strict=True)]
        below = [(x, frame.y(max(0, 100 * edge))) for x, edge in zip(at, low, strict=True)]
        parts.append(tag("path", d=polygon([*above, *reversed(below)]), class_="band"))
    parts.append(tag("path", d=polygon(points, close=False), class_="line", stroke_dasharray=dash(line.place)))
    for (x, y), count, value in zip(points, line.seen, line.values, strict=False):
        said = f"{line.name}, {count} classes: {percent_spread(value)} %"
        size = 4.5 if len(points) <= 25 else 3.0
        parts.append(tag("g", tag("title", said), marker(line.place, x, y, size)))
    return tag("g", *parts, class_=f"series {look(line.place)}")


def _end_names(frame: Frame, lines: Sequence[Line]) -> list[Markup]:
    """Each line's name and last accuracy right of the chart, joined to its end by dots."""
    right = frame.width - frame.right
    ends = [frame.y(line.end) for line in lines]
    places = spread(ends, ROW)
    for rank, place in enumerate(sorted(range(len(lines)), key=lambda place: -places[place])):
        places[place] = min(places[place], frame.height - 8 - ROW * rank)  # the lowest must not leave the drawing
    names = []
    for line, end, at in zip(lines, ends, places, strict=True):
        start = frame.x(line.seen[len(line.values) - 1]) + 6
        names.append(
            tag(
                "g",
                tag("path", d=f"M{number(start)} {number(end)}L{number(right + 18)} {number(at)}", class_="lead"),
                marker(line.place, right + 24, at),
                tag(
                    "text",
                    tag("title", line.name),
                    tag("tspan", f"{line.end:.1f}", class_="value"),
                    tag("tspan", short(line.name, 21), dx=7),
                    x=right + 34,
                    y=at + 4.5,
                    class_="name",
                ),
                class_=look(line.place),
            )
        )
    return names


def percent_spread(value: Spread | None) -> str:
    """
    >>> percent_spread(Spread(0.5, 0.0123, 3)), percent_spread(Spread(0.5, None, 1)), percent_spread(None)
    ('50.0 ± 1.2', '50.0', '–')
    """
    if value is None:
        return percent(None)
    return percent(value.mean) + (f" ± {percent(value.std)}" if value.std is not None else "")
