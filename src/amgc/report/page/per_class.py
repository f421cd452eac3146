"""What stands in the sections on classes: who is confused with whom, margins, and two classes' features in a plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from amgc.report.groups import Spread
from amgc.report.page.bars import class_bars
from amgc.report.page.classes import Confusion, class_margins, confusion, planes
from amgc.report.page.entries import Entry, Stream
from amgc.report.page.heat import NAMED, NUMBERED, Heat, cell_place, heat_map
from amgc.report.page.plane import Panel, plane_panels
from amgc.report.table import DASH, evenly
from amgc.runs import RunRecord
from amgc.runs.observed import Margins, Plane

PANELS = 6  # tasks that Figure 1 shows
PAIRS = 10  # confused pairs that are listed
MEASURED = ("mean x, y", "deviation x, y", "remembered mean", "remembered deviation")


def confused(stream: Stream) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    for entry in stream.begun:
        found = confusion(entry)
        if found is None:
            continue
        pairs = found.pairs(PAIRS)
        often = "; ".join(f"{one} taken for {other}, {count} times" for one, other, count, _ in pairs[:3])
        text = f"Most often: {often}." if pairs else "No mistake."
        identity = f"confusion-{stream.number}-{entry.place}"
        shown.append(
            {
                "entry": entry,
                "figure": heat_map(identity, f"Confusion of {entry.name}", text, confusion_map(found)),
                "run": found.run,
                "pairs": pairs,
                "classes": found.rows(),
                "pointer": pointer(found) if len(found.totals) > NUMBERED else None,
            }
        )
    rooted = any(item["pointer"] for item in shown)
    return {"shown": shown, "missing": missing(stream, shown), "rooted": rooted}


def confusion_map(found: Confusion) -> Heat:
    names = found.run.class_names[: len(found.totals)]
    cells, written = found.shares, {}
    if len(names) <= NUMBERED:  # empty cells too
        everywhere = [(i, j) for i in range(len(names)) for j in range(len(names))]
        cells = {cell: cells.get(cell, 0.0) for cell in everywhere}
        written = {cell: f"{100 * share:.0f}" if share else "" for cell, share in cells.items()}
    else:  # without numbers a few percent have to show
        cells = {cell: math.sqrt(share) for cell, share in cells.items()}
    scale = [(math.sqrt(share / 100), f"{share} %") for share in (1, 5, 25, 50, 100)]
    blocks = task_blocks(found.run, names)
    return Heat(names, cells, written, rows="test images of", columns="taken for", scale=scale, blocks=blocks)


def pointer(found: Confusion) -> dict[str, Any]:
    """What page.js needs to say which cell is pointed at."""
    names = found.run.class_names[: len(found.totals)]
    left, top, cell = cell_place(names)
    counts = [[*at, count] for at, count in found.counts.items()]
    return {"left": left, "top": top, "cell": cell, "names": names, "totals": found.totals, "counts": counts}


def task_blocks(run: RunRecord, names: Sequence[str]) -> list[tuple[str, int]]:
    """The tasks and how many of the classes each brought, for figures in which classes have no name of their own."""
    return [(f"T{task + 1}", size) for task, size in enumerate(run.sizes[: run.done])] if len(names) > NAMED else []


def missing(stream: Stream, shown: list[dict[str, Any]]) -> list[str]:
    """The methods that are not among the shown ones."""
    return [entry.name for entry in stream.begun if not any(item["entry"] is entry for item in shown)]


def margins(stream: Stream) -> dict[str, Any]:
    shown = []
    for entry in stream.begun:
        found = class_margins(entry)
        if found is None:
            continue
        run, values = found
        names = run.class_names[: len(values.own)]
        largest, whose = max(zip(values.own, names, strict=True))
        text = f"From {min(values.own):.3g} to {largest:.3g}, which is that of {whose}."
        identity = f"margins-{stream.number}-{entry.place}"
        sizes = run.sizes[: run.done]
        shown.append(
            {
                "entry": entry,
                "run": run,
                "figure": class_bars(identity, f"Margins of {entry.name}", text, names, values.own, "margin", sizes),
                "pairs": pair_map(f"{identity}-pairs", entry, run, values),
                "header": ["class", "own margin", *(["largest against", "by"] if values.pairs else [])],
                "rows": [margin_row(label, names, values) for label in range(len(names))],
            }
        )
    return {"shown": shown, "missing": missing(stream, shown)}


def margin_row(label: int, names: Sequence[str], values: Margins) -> tuple[str, ...]:
    row = (names[label], f"{values.own[label]:.3g}")
    if not values.pairs:
        return row
    largest, other = max((value, -j) for j, value in enumerate(values.pairs[label]))
    return (*row, names[-other] if largest else DASH, f"{largest:.3g}")


def pair_map(identity: str, entry: Entry, run: RunRecord, margins: Margins) -> Markup | None:
    """By how much the row's class must beat the column's; the largest is full colour."""
    values = {(i, j): value for i, row in enumerate(margins.pairs or ()) for j, value in enumerate(row) if i != j}
    if not values:
        return None
    names = run.class_names[: len(margins.own)]
    (one, two), highest = max(values.items(), key=lambda item: item[1])
    strength = {cell: value / (highest or 1) for cell, value in values.items()}
    written = {cell: f"{value:.1f}" if highest >= 1 else f"{value:.2f}" for cell, value in values.items()}
    scale = [(part, f"{part * highest:.2g}") for part in (0.25, 0.5, 0.75, 1)]
    blocks = task_blocks(run, names)
    heat = Heat(names, strength, written, rows="class k", columns="must beat class j by", scale=scale, blocks=blocks)
    text = f"The largest: {names[one]} must beat {names[two]} by {highest:.3g}."
    return heat_map(identity, f"Pairwise margins of {entry.name}", text, heat)


def moving(stream: Stream) -> dict[str, Any]:
    shown = []
    for entry in stream.begun:
        found = planes(entry)
        if found is None:
            continue
        run, kept = found
        chosen = [kept[place] for place in evenly(len(kept), PANELS)]
        one, two = chosen[0][1].classes
        names = run.class_names[one], run.class_names[two]
        panels = [Panel(f"after task {task + 1}", plane.points, plane.gaussians) for task, plane in chosen]
        drawn = plane_panels(f"plane-{stream.number}-{entry.place}", names, panels)
        gaussians = [gaussian for _, plane in chosen for gaussian in plane.gaussians if gaussian is not None]
        shown.append(
            {
                "entry": entry,
                "run": run,
                "names": names,
                "panels": drawn,
                "header": ["after", *[f"{name}, {what}" for name in names for what in MEASURED]],
                "rows": [plane_row(f"T{task + 1}", plane) for task, plane in chosen],
                "kept": bool(gaussians),
                "enlarged": any(gaussian.enlarged is not None for gaussian in gaussians),
            }
        )
    first = next((item for item in shown if item["kept"]), None)  # the paper's figure has Gaussians
    return {"shown": shown, "missing": missing(stream, shown), "open": first or (shown[0] if shown else None)}


def plane_row(name: str, plane: Plane) -> tuple[str, ...]:
    """Of both classes: mean and deviation of the points and of the remembered Gaussian, along x and y."""
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
    return tuple(cells)
