"""A bar for each class, in order of arrival."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from amgc.report.page.marks import Frame, drawing, number, short, tag

NAMED = 40  # bars that have their class's name below


def class_bars(
    identity: str,
    title: str,
    text: str,
    names: Sequence[str],
    values: Sequence[float | None],
    y_name: str,
    blocks: Sequence[int],
) -> Markup:
    """Vertical bars; `blocks` are the lengths of the tasks, whose bounds are marked. A class without a value has no bar."""
    count = len(names)
    named = count <= NAMED
    letters = min(12, max(map(len, names))) if named else 0
    step = max(7.0, min(44.0, 640 / count))
    highest = max((value for value in values if value is not None), default=0) or 1.0
    ticks = round_ticks(highest)
    frame = Frame(
        width=56 + step * count + 8,
        height=200 + (letters * 6.2 + 12 if named else 24),
        left=56,
        right=8,
        top=28,
        bottom=letters * 6.2 + 14 if named else 28,
        xs=(0, count),
        ys=(0, max(highest, ticks[-1])),
    )
    parts = [frame.axes([], ticks, "", y_name)]
    floor = frame.y(0)
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is not None:
            top = frame.y(value)
            bar = tag("rect", tag("title", f"{name}: {value:.3g}"), x=frame.x(place) + 0.15 * step, y=top, width=0.7 * step,
                      height=floor - top, class_="bar")  # fmt: skip
            parts.append(bar)
        if named:
            parts.append(_name_below(name, frame.x(place + 0.5), floor, upright=letters * 6.2 < step))
    parts.append(_tasks(frame, blocks, floor, named))
    return drawing(identity, frame.width, frame.height, title, text, *parts, class_="bars")


def round_ticks(highest: float) -> list[float]:
    """Zero and a few round values up to the highest.

    >>> round_ticks(0.47), round_ticks(12)
    ([0.0, 0.1, 0.2, 0.3, 0.4], [0.0, 5.0, 10.0])
    """
    size = 10.0 ** math.floor(math.log10(highest))
    step = next(size * part for part in (0.1, 0.2, 0.5, 1, 2) if highest / (size * part) < 5)
    return [float(f"{step * place:.6g}") for place in range(int(highest / step) + 1)]


def _name_below(name: str, x: float, floor: float, upright: bool) -> Markup:
    turn = (
        f"translate({number(x)} {number(floor + 16)})"
        if upright
        else f"translate({number(x + 4)} {number(floor + 8)}) rotate(-90)"
    )
    return tag("text", tag("title", name), short(name, 12), class_="tick middle" if upright else "tick end", transform=turn)


def _tasks(frame: Frame, blocks: Sequence[int], floor: float, named: bool) -> Markup:
    parts, at, room = [], 0, -1e9
    for task, length in enumerate(blocks, 1):
        if at:
            parts.append(tag("path", d=f"M{number(frame.x(at))} {number(frame.top)}V{number(floor)}", class_="boundary"))
        middle = frame.x(at + length / 2)
        if not named and middle - room >= 26:
            parts.append(tag("text", f"T{task}", x=middle, y=floor + 17, class_="tick middle"))
            room = middle
        at += length
    return Markup("").join(parts)
