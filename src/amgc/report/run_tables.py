"""Tables of runs: several runs side by side, and one run in full. rich is imported when a table is shown."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amgc.report.groups import describe_sizes
from amgc.report.table import WIDTH, Table, definition_list, grid
from amgc.runs import DEFINITIONS, RunRecord, flat, labels
from amgc.text import DASH, byte_size, duration, percent, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_TASKS = 10  # maximum number of tasks with their own column
RANKED = 5  # number of best and of worst classes that are listed


def accuracy_table(runs: Sequence[RunRecord], width: int = WIDTH) -> Table:
    """Return a table with a row per run, in percent, with columns for as many tasks as fit into `width`."""
    if not runs:
        raise ValueError("there is no run to show.")
    count = max(len(run.sizes) for run in runs)
    names = labels(runs)
    for shown in range(MAX_TASKS, 1, -1):
        tasks = evenly(count, shown)
        header = ["method", "done", *[f"T{task + 1}" for task in tasks], "LA", "AIA", "forgetting", "first task"]
        rows = [_row(printable(name), run, tasks) for name, run in zip(names, runs, strict=True)]
        if all(run.finished for run in runs):
            del header[1]
            for row in rows:
                del row[1]
        if sum(max(map(len, column)) + 3 for column in zip(header, *rows, strict=True)) < width:  # 3: Markdown's gap
            break
    defined = [("Tn", DEFINITIONS["Tn"]), *[(name, DEFINITIONS[name]) for name in header if name in DEFINITIONS]]
    return Table(header, rows, definitions=defined, notes=[*_notes(runs), *_left_out(tasks, count)])


def details(run: RunRecord, width: int = WIDTH) -> RenderableType:
    """Return all of a run: settings, accuracies, task × task matrix, best and worst classes, time and memory."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    facts = RichTable.grid(padding=(0, 2))
    for name, value in run_facts(run):
        facts.add_row(Text(name, style="bold"), Text(printable(value), overflow="fold"))
    parts: list[RenderableType] = [facts, "", accuracy_table([run], width)]
    if run.done:
        parts += ["", Text("Accuracy after each task, on the classes of each task", style="bold"), _matrix(run, width)]
        backward = f"BWT {percent(run.metrics.backward_transfer)}"
        shown = [("1, 2, …", "matrix"), ("all", "Tn"), ("old", "old"), ("new", "new"), (backward, "BWT")]
        parts += ["", definition_list([(name, DEFINITIONS[key]) for name, key in shown])]
        parts += [Text(note) for note in _left_out(_matrix_tasks(run, width), run.done)]
        parts += ["", Text("Classes", style="bold"), _classes(run)]
        parts += ["", definition_list([("accuracy", DEFINITIONS["per class"])])]
    return Group(*parts)


def evenly(count: int, shown: int) -> list[int]:
    """Choose at most `shown` (two or more) of 0..count-1: the first, the last, and others evenly between them.

    >>> evenly(3, 8), evenly(20, 5), evenly(1, 2)
    ([0, 1, 2], [0, 5, 10, 14, 19], [0])
    """
    if count <= shown:
        return list(range(count))
    return [round(place * (count - 1) / (shown - 1) + 1e-9) for place in range(shown)]


def _row(name: str, run: RunRecord, tasks: Sequence[int]) -> list[str]:
    metrics = run.metrics
    after = [metrics.accuracy[task] if task < run.done else None for task in tasks]
    first = metrics.first_task_accuracy[-1] if run.done else None
    ends = [metrics.last_accuracy, metrics.average_incremental_accuracy, metrics.forgetting, first]
    return [name, f"{run.done}/{len(run.sizes)}", *map(percent, after + ends)]


def _notes(runs: Sequence[RunRecord]) -> list[str]:
    """Warn of what makes the rows hard to compare."""
    notes = ["Numbers are percentages; forgetting is in percentage points."]
    if any(not run.finished for run in runs):
        notes.append("Unfinished runs (done: finished tasks/all tasks) show the numbers after their last finished task.")
    if len({run.sizes for run in runs}) > 1:
        notes.append("The runs split the classes into different tasks, so their columns are not comparable.")
    for key in ("data", "features", "seed"):
        values = list(dict.fromkeys(str(run.config.get(key)) for run in runs))
        if len(values) > 1:
            notes.append(f"The runs differ in {key}: {printable(', '.join(values))}.")
    return notes


def _left_out(tasks: Sequence[int], count: int) -> list[str]:
    """Say that some of `count` tasks have no column."""
    if len(tasks) == count:
        return []
    return [f"{len(tasks)} of {count} tasks have a column; LA, AIA and forgetting include all tasks."]


def _matrix_tasks(run: RunRecord, width: int) -> list[int]:
    return evenly(run.done, max(2, width // 7 - 4))


def _matrix(run: RunRecord, width: int) -> RenderableType:
    """Return accuracies after each task (rows) on all, old and new classes and on those of each task (columns)."""
    metrics = run.metrics
    tasks = _matrix_tasks(run, width)
    rows = []
    for row in tasks:
        seen = (metrics.accuracy[row], metrics.old_accuracy[row], metrics.new_accuracy[row])
        single = ["" if column > row else percent(metrics.matrix[row][column]) for column in tasks]
        rows.append([f"T{row + 1}", *map(percent, seen), *single])
    return grid(["after", "all", "old", "new", *[str(task + 1) for task in tasks]], rows)


def run_state(run: RunRecord) -> str:
    return "finished" if run.finished else f"{run.done} of {len(run.sizes)} tasks finished"


def run_facts(run: RunRecord) -> list[tuple[str, str]]:
    """Return names and values of everything that describes a run, except its accuracies: settings, time, memory, versions."""
    facts = [("folder", str(run.path)), ("state", run_state(run)), ("tasks", describe_sizes(run.sizes))]
    for key, value in flat(run.config).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        facts.append((key, DASH if value is None else text))
    spent: Counter[str] = Counter()
    for task in run.seconds:
        spent.update(task)
    each = ", ".join(f"{name} {duration(seconds)}" for name, seconds in spent.items())
    facts.append(("time", f"{duration(sum(spent.values()))} ({each})" if run.done else DASH))
    if run.done:
        kept, seen = run.kept_bytes[-1], run.metrics.seen[run.done - 1]
        facts.append(("stored", f"{byte_size(kept / seen)} per class, {byte_size(kept)} in total"))
    facts += [("created", run.created), ("commit", run.commit or "unknown")]
    facts.append(("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())))
    return [*facts, ("command", shlex.join(run.command))]


def _classes(run: RunRecord) -> RenderableType:
    """Return the best and the worst classes, or all if there are few."""
    ranked = sorted(zip(run.class_names, run.metrics.per_class, strict=False), key=lambda pair: -pair[1])
    if len(ranked) <= 2 * RANKED:
        return grid(["best first", "accuracy"], [[name, percent(value)] for name, value in ranked])
    rows = [
        [best, percent(high), worst, percent(low)]
        for (best, high), (worst, low) in zip(ranked[:RANKED], reversed(ranked[-RANKED:]), strict=True)
    ]
    return grid(["best", "accuracy", "worst", "accuracy"], rows, left=(0, 2))
