"""What stands in each section of the page, ready for its template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from amgc.report.details import bytes_text, time_text
from amgc.report.groups import Spread
from amgc.report.page.entries import Stream
from amgc.report.page.heat import Heat, heat_map
from amgc.report.page.lines import accuracy_chart, balance_chart, percent_spread
from amgc.report.page.per_class import confused, margins, moving
from amgc.report.table import DASH, evenly, percent
from amgc.runs import DEFINITIONS, Metrics

MATRIX = 20  # tasks that a task × task map shows
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
    for kind, title, content in (("margins", "Margins", margins(stream)), ("plane", "How features move", moving(stream))):
        if content["shown"]:
            yield Section(kind, title, content)
    yield Section("spent", "Time and memory", spent(stream))


def results(stream: Stream) -> dict[str, Any]:
    rows = []
    for entry in stream.entries:
        so_far = entry.after(lambda metrics: metrics.accuracy)[-1] if entry.done and not entry.group.finished else None
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
        "wide": accuracy_chart(f"accuracy-{stream.number}", title, text, lines, seen, narrow=False),
        "narrow": accuracy_chart(f"accuracy-narrow-{stream.number}", title, text, lines, seen, narrow=True),
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
        scale = [(share / 100, f"{share} %") for share in (0, 25, 50, 75, 100)]
        heat = Heat(names, cells, written, rows="after task", columns="on the classes of task", scale=scale)
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
    rows: list[dict[str, Any]] = []
    for entry in stream.begun:
        forgot = [value for run in entry.counted if (value := run.metrics.forgetting) is not None]
        backward = [value for run in entry.counted if (value := run.metrics.backward_transfer) is not None]
        if forgot:
            rows.append({"entry": entry, "value": Spread.of(forgot), "BWT": Spread.of(backward)})
    highest = max([0.01, *[row["value"].mean + (row["value"].std or 0) for row in rows]])
    return {
        "rows": rows,
        "scale": 100 / highest,
        "definitions": [(name, DEFINITIONS[name]) for name in ("forgetting", "BWT")],
        "unfinished": any(not row["entry"].group.finished for row in rows),
    }


def balance(stream: Stream) -> dict[str, Any]:
    shown = []
    for entry in stream.begun:
        if entry.done < 2:
            continue
        old = entry.line(OLD, "old classes", lambda metrics: metrics.old_accuracy)
        new = entry.line(NEW, "new classes", lambda metrics: metrics.new_accuracy)
        ends = [percent(line.values[-1].mean) for line in (old, new)]
        text = f"After task {entry.done}: old classes {ends[0]} %, new classes {ends[1]} %."
        identity = f"balance-{stream.number}-{entry.place}"
        before: list[Spread | None] = [None, *old.values]
        rows = [(f"T{task + 1}", percent_spread(before[task]), percent_spread(value)) for task, value in enumerate(new.values)]
        figure = balance_chart(identity, f"Accuracy of {entry.name} on old and on new classes", text, old, new)
        shown.append({"entry": entry, "figure": figure, "header": ["after", "old", "new"], "rows": rows})
    return {"shown": shown, "definitions": [(name, DEFINITIONS[name]) for name in ("old", "new")]}


def spent(stream: Stream) -> dict[str, Any]:
    kinds = list(dict.fromkeys(name for entry in stream.begun for name in entry.seconds))
    rows: list[dict[str, Any]] = []
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
                "peak": DASH if entry.peak is None else bytes_text(entry.peak),
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
        "unfinished": any(not entry.group.finished for entry in stream.begun),
    }
