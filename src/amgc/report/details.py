"""One run in full, for `amgc show RUN`."""

from __future__ import annotations

import shlex
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from amgc.report.table import DASH, WIDTH, accuracy_table, evenly, grid, meanings, percent, printable
from amgc.runs import RunRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

ENDS = 5  # how many of the best and of the worst classes are named


def details(run: RunRecord, width: int = WIDTH) -> RenderableType:
    """What was run, its accuracies, the task × task matrix, the best and the worst classes, time and memory."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(run):
        facts.add_row(Text(name, style="bold"), Text(printable(value), overflow="fold"))
    parts: list[RenderableType] = [facts, "", accuracy_table([run], width)]
    if run.done:
        parts += ["", Text("Accuracy after each task, on the classes of each task", style="bold"), matrix_table(run, width)]
        backward = f"BWT {percent(run.metrics.backward_transfer)}"
        parts += ["", meanings([("1, 2, …", "matrix"), ("all", "Tn"), ("old", "old"), ("new", "new"), (backward, "BWT")])]
        parts += ["", Text("Classes", style="bold"), _classes(run), "", meanings([("accuracy", "per class")])]
    return Group(*parts)


def matrix_table(run: RunRecord, width: int = WIDTH) -> RenderableType:
    """Accuracy after each task (rows) on all, old and new classes, and on those of each task; the first, the last and
    some evenly between where there are too many tasks for `width`.
    """
    metrics = run.metrics
    tasks = evenly(run.done, max(2, width // 7 - 4))
    rows = []
    for row in tasks:
        seen = (metrics.accuracy[row], metrics.old_accuracy[row], metrics.new_accuracy[row])
        single = ["" if column > row else percent(metrics.matrix[row][column]) for column in tasks]
        rows.append([f"T{row + 1}", *map(percent, seen), *single])
    return grid(["after", "all", "old", "new", *[str(task + 1) for task in tasks]], rows)


def time_text(seconds: float) -> str:
    """
    >>> time_text(0.034), time_text(75), time_text(7320)
    ('0.03 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def bytes_text(count: float) -> str:
    """
    >>> bytes_text(900), bytes_text(65536), bytes_text(3.2e7)
    ('900 B', '64.0 KiB', '30.5 MiB')
    """
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1023.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"


def sizes_text(sizes: tuple[int, ...]) -> str:
    """
    >>> sizes_text((10, 10)), sizes_text((50, 10, 10, 5)), sizes_text((10,))
    ('20 classes in 2 tasks of 10', '75 classes in 4 tasks (50 + 2 × 10 + 5)', '10 classes in 1 task')
    """
    start = f"{sum(sizes)} class{'es' * (sum(sizes) > 1)} in {len(sizes)} task{'s' * (len(sizes) > 1)}"
    if len(sizes) == 1:
        return start
    if len(set(sizes)) == 1:
        return f"{start} of {sizes[0]}"
    pieces = [(size, len(list(alike))) for size, alike in groupby(sizes)]
    return f"{start} ({' + '.join(f'{count} × {size}' if count > 1 else str(size) for size, count in pieces)})"


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    config = run.config
    state = "finished" if run.finished else f"still going, or stopped: {run.done} of {len(run.sizes)} tasks finished"
    facts = [("run", str(run.path)), ("state", state), ("tasks", sizes_text(run.sizes))]
    facts += [(key, _value(value)) for key, value in config.items()]
    spent: Counter[str] = Counter()
    for task in run.seconds:
        spent.update(task)
    each = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in spent.items())
    facts.append(("time", f"{time_text(sum(spent.values()))} ({each})" if run.done else DASH))
    if run.done:
        kept, seen = run.kept_bytes[-1], run.metrics.seen[run.done - 1]
        facts.append(("kept", f"{bytes_text(kept / seen)} per class, {bytes_text(kept)} in all"))
    facts.append(("created", f"{run.created}, commit {run.commit or 'unknown'}"))
    facts.append(("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())))
    facts.append(("command", shlex.join(run.command)))
    return facts


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(inner)}" for key, inner in value.items()) or DASH
    if isinstance(value, list):
        few = [str(item) for item in value[:10]]
        return " ".join(few) + (f" … ({len(value)} in all)" if len(value) > len(few) else "")
    return DASH if value is None else str(value)


def _classes(run: RunRecord) -> RenderableType:
    """The best and the worst classes; all of them where there are few."""
    ranked = sorted(zip(run.class_names, run.metrics.per_class, strict=False), key=lambda pair: -pair[1])
    if len(ranked) <= 2 * ENDS:
        return grid(["best first", "accuracy"], [[name, percent(value)] for name, value in ranked])
    rows = [
        [best, percent(high), worst, percent(low)]
        for (best, high), (worst, low) in zip(ranked[:ENDS], reversed(ranked[-ENDS:]), strict=True)
    ]
    return grid(["best", "accuracy", "worst", "accuracy"], rows, left=(0, 2))
