"""What stands in each section of the page, ready for its template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from amgc.report.details import bytes_text, time_text
from amgc.report.groups import Spread
from amgc.report.metrics import DEFINITIONS, Metrics
from amgc.report.page.bars import class_bars
from amgc.report.page.classes import class_margins, confusion, planes
from amgc.report.page.entries import Entry, Stream
from amgc.report.page.heat import NAMED, NUMBERED, Heat, cell_place, heat_map
from amgc.report.page.lines import accuracy_chart, balance_chart, percent_spread
from amgc.report.page.plane import Panel, plane_panels
from amgc.report.runs import RunRecord
from amgc.report.table import DASH, evenly, percent

MATRIX = 20  # tasks that a task × task map shows
PANELS = 6  # tasks that Figure 1 shows
PAIRS = 10  # confused pairs that are listed
OLD, NEW = 0, 1  # the looks of old and new classes


@dataclass(frozen=True)
class Section:
    """`kind` names its template, `content` what that needs."""

    kind: str
    title: str
    content: dict[str, Any]


def sections(stream: Stream) -> Iterator[Section]:
    """Those for which the runs have something, in reading order."""
    yield Section("results", "Results", results(stream))
    if not stream.begun:
        return
    yield Section("accuracy", "Accuracy after each task", accuracy(stream))
    yield Section("matrix", "Task by task", matrix(stream))
    if any(entry.done > 1 for entry in stream.entries):
        yield Section("forgetting", "Forgetting", forgetting(stream))
        yield Section("balance", "Old and new classes", balance(stream))
    yield Section("confusion", "Which classes are confused", confused(stream))
    yield Section("margins", "Margins", margins(stream))
    yield Section("plane", "How features move", moving(stream))
    yield Section("spent", "Time and memory", spent(stream))


def results(stream: Stream) -> dict[str, Any]:
    rows = []
    for entry in stream.entries:
        so_far = entry.group.accuracy[-1] if entry.done and not entry.group.finished else None
        rows.append(
            {
                "entry": entry,
                "LA": entry.group.last_accuracy,
                "AIA": entry.group.average_incremental_accuracy,
                "forgetting": entry.at_end(lambda metrics: metrics.forgetting),
                "first": entry.at_end(first_task),
                "so_far": None if so_far is None else f"{percent_spread(so_far)} so far",
            }
        )
    return {"rows": rows, "paper": any(entry.paper for entry in stream.entries), "definitions": definitions(stream)}


def definitions(stream: Stream) -> list[tuple[str, str]]:
    shown = [(name, DEFINITIONS[name]) for name in ("LA", "AIA", "forgetting", "first task")]
    if stream.several_seeds:
        shown.append(("±", "standard deviation over the seeds (n − 1) of the finished runs"))
    if any(entry.paper for entry in stream.entries):
        shown.append(("paper", "what the paper reports for this data and these tasks"))
    return shown


def first_task(metrics: Metrics) -> float | None:
    return metrics.first_task_accuracy[-1] if metrics.done else None


def accuracy(stream: Stream) -> dict[str, Any]:
    lines = [entry.line(entry.place, entry.name, lambda metrics: metrics.accuracy) for entry in stream.begun]
    text = "; ".join(f"{line.name} from {100 * line.values[0].mean:.1f} to {line.end:.1f} %" for line in lines) + "."
    title = "Accuracy on all seen classes after each task"
    seen = stream.entries[0].runs[0].metrics.seen
    rows = [
        (
            f"T{task + 1}",
            str(seen[task]),
            *[percent_spread(line.values[task]) if task < len(line.values) else "" for line in lines],
        )
        for task in range(max(entry.done for entry in stream.begun))
    ]
    return {
        "wide": accuracy_chart(f"accuracy-{stream.number}", title, text, lines, narrow=False),
        "narrow": accuracy_chart(f"accuracy-narrow-{stream.number}", title, text, lines, narrow=True),
        "bands": stream.several_seeds,
        "header": ["after", "classes seen", *[line.name for line in lines]],
        "rows": rows,
        "definition": DEFINITIONS["Tn"],
    }


def matrix(stream: Stream) -> dict[str, Any]:
    shown = []
    for entry in stream.begun:
        tasks = evenly(entry.done, MATRIX)
        names = [str(task + 1) for task in tasks]
        cells = {(i, j): entry.matrix[row][column] for i, row in enumerate(tasks) for j, column in enumerate(tasks[: i + 1])}
        written = {cell: f"{100 * value:.0f}" for cell, value in cells.items()}
        heat = Heat(names, cells, written, rows="after task", columns="on the classes of task")
        text = (
            f"After the last task: {', '.join(f'task {name} {written[len(names) - 1, j]} %' for j, name in enumerate(names))}."
        )
        identity = f"matrix-{stream.number}-{entry.place}"
        shown.append(
            {
                "entry": entry,
                "figure": heat_map(identity, f"Accuracy of {entry.name} on each task after each task", text, heat),
                "header": ["after", *[f"task {name}" for name in names]],
                "rows": [
                    (f"T{name}", *[percent(cells[i, j]) if j <= i else "" for j in range(len(names))])
                    for i, name in enumerate(names)
                ],
            }
        )
    sampled = any(entry.done > MATRIX for entry in stream.begun)
    return {"shown": shown, "definition": DEFINITIONS["matrix"], "sampled": MATRIX if sampled else None}


def forgetting(stream: Stream) -> dict[str, Any]:
    rows = []
    for entry in stream.begun:
        value = Spread.of([value for run in entry.runs if (value := run.metrics.forgetting) is not None])
        if value is not None:
            rows.append({"entry": entry, "value": value, "BWT": entry.at_end(lambda metrics: metrics.backward_transfer)})
    highest = max([0.01, *[row["value"].mean + (row["value"].std or 0) for row in rows]])  # type: ignore[attr-defined]
    return {
        "rows": rows,
        "scale": 100 / highest,
        "definitions": [(name, DEFINITIONS[name]) for name in ("forgetting", "BWT")],
        "unfinished": any(not row["entry"].finished for row in rows),  # type: ignore[attr-defined]
    }


def balance(stream: Stream) -> dict[str, Any]:
    shown = []
    for entry in stream.begun:
        if entry.done < 2:
            continue
        old = entry.line(OLD, "old classes", lambda metrics: metrics.old_accuracy)
        new = entry.line(NEW, "new classes", lambda metrics: metrics.new_accuracy)
        text = f"After task {entry.done}: old classes {percent(old.values[-1].mean)} %, new classes {percent(new.values[-1].mean)} %."
        identity = f"balance-{stream.number}-{entry.place}"
        before: list[Spread | None] = [None, *old.values]
        rows = [(f"T{task + 1}", percent_spread(before[task]), percent_spread(value)) for task, value in enumerate(new.values)]
        figure = balance_chart(identity, f"Accuracy of {entry.name} on old and on new classes", text, old, new)
        shown.append({"entry": entry, "figure": figure, "header": ["after", "old", "new"], "rows": rows})
    return {"shown": shown, "definitions": [(name, DEFINITIONS[name]) for name in ("old", "new")]}


def confused(stream: Stream) -> dict[str, Any]:
    shown = []
    for entry in stream.begun:
        found = confusion(entry)
        if found is None:
            continue
        names = list(found.run.class_names[: len(found.totals)])
        shares = found.shares
        blocks = task_blocks(found.run)
        heat = Heat(
            names,
            {(i, j): shares.get((i, j), 0.0) for i in range(len(names)) for j in range(len(names))}
            if len(names) <= NUMBERED
            else shares,
            {
                (i, j): f"{100 * shares[i, j]:.0f}" if (i, j) in shares else ""
                for i in range(len(names))
                for j in range(len(names))
            }
            if len(names) <= NUMBERED
            else {},
            rows="test images of",
            columns="taken for",
            blocks=blocks if len(names) > NAMED else (),
        )
        pairs = found.pairs(PAIRS)
        text = "Most often: " + "; ".join(f"{one} taken for {other}, {count} times" for one, other, count, _ in pairs[:3]) + "."
        identity = f"confusion-{stream.number}-{entry.place}"
        left, top, cell = cell_place(names)
        shown.append(
            {
                "entry": entry,
                "figure": heat_map(identity, f"Confusion of {entry.name}", text if pairs else "No mistake.", heat),
                "run": found.run,
                "pairs": pairs,
                "classes": found.rows(),
                "pointer": {
                    "left": left,
                    "top": top,
                    "cell": cell,
                    "names": names,
                    "totals": found.totals,
                    "counts": [[*at, count] for at, count in found.counts.items()],
                }
                if len(names) > NUMBERED
                else None,
            }
        )
    return {"shown": shown, "missing": missing(stream, shown)}


def task_blocks(run: RunRecord) -> list[tuple[str, int]]:
    return [(f"T{task + 1}", size) for task, size in enumerate(run.sizes[: run.done])]


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
        names = list(run.class_names[: len(values.own)])
        largest = max(zip(values.own, names, strict=True))
        text = f"From {min(values.own):.3g} to {largest[0]:.3g}, which is that of {largest[1]}; new classes have none."
        blocks = task_blocks(run)
        identity = f"margins-{stream.number}-{entry.place}"
        bars = class_bars(
            identity, f"Margins of {entry.name}", text, names, values.own, "margin m_k", [size for _, size in blocks]
        )
        shown.append(
            {
                "entry": entry,
                "run": run,
                "figure": bars,
                "pairs": None if values.pairs is None else pair_map(f"{identity}-pairs", entry, names, values.pairs, blocks),
                "header": ["class", "m_k", *(["largest against", "by"] if values.pairs else [])],
                "rows": [margin_row(label, names, values.own, values.pairs) for label in range(len(names))],
            }
        )
    return {"shown": shown, "missing": missing(stream, shown)}


def margin_row(label: int, names: list[str], own: tuple[float, ...], pairs: Any) -> tuple[str, ...]:
    row = (names[label], f"{own[label]:.3g}")
    if not pairs:
        return row
    value, other = max((value, -j) for j, value in enumerate(pairs[label]))
    return (*row, names[-other] if value else DASH, f"{value:.3g}")


def pair_map(identity: str, entry: Entry, names: list[str], pairs: Any, blocks: list[tuple[str, int]]) -> Any:
    """By how much the row's class must beat the column's; the largest is full colour."""
    values = {(i, j): value for i, row in enumerate(pairs) for j, value in enumerate(row) if i != j}
    highest = max(values.values(), default=0) or 1.0
    heat = Heat(
        names,
        {cell: value / highest for cell, value in values.items()},
        {cell: f"{value:.2g}" if value else "0" for cell, value in values.items()},
        rows="class k",
        columns="must beat class j by",
        blocks=blocks if len(names) > NAMED else (),
    )
    (one, two), value = max(values.items(), key=lambda item: item[1])
    text = f"The largest: {names[one]} must beat {names[two]} by {value:.3g}."
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
                "kept": bool(gaussians),
                "enlarged": any(gaussian.enlarged is not None for gaussian in gaussians),
            }
        )
    return {"shown": shown, "missing": missing(stream, shown)}


def spent(stream: Stream) -> dict[str, Any]:
    kinds = list(dict.fromkeys(name for entry in stream.begun for name in entry.seconds))
    rows = []
    for entry in stream.begun:
        seconds, kept = entry.seconds, entry.kept
        assert kept is not None
        rows.append(
            {
                "entry": entry,
                "seconds": [(name, seconds.get(name, 0.0)) for name in kinds],
                "total": sum(seconds.values()),
                "time": time_text(sum(seconds.values())),
                "times": [time_text(seconds[name]) if name in seconds else DASH for name in kinds],
                "kept": bytes_text(kept[0]),
                "per_class": kept[1],
                "per_class_text": bytes_text(kept[1]),
            }
        )
    return {
        "kinds": kinds,
        "rows": rows,
        "time_scale": 100 / max(max(row["total"] for row in rows), 1e-9),
        "kept_scale": 100 / max(max(row["per_class"] for row in rows), 1),
        "unfinished": any(not entry.finished for entry in stream.begun),
    }
