"""A bar with the time left, for commands that go through many pictures; on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def bar(screen: Console, text: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function to be told how many of how many pictures are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = screen.is_terminal and not quiet
    with Progress(*columns, TextColumn("left"), console=screen, transient=True, disable=not shown) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def size_text(count: int) -> str:
    """Bytes for people.

    >>> size_text(999), size_text(20_500_000)
    ('999 bytes', '20.5 MB')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def plural(count: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> plural(1, "picture"), plural(2, "class", "classes"), plural(1200, "picture")
    ('1 picture', '2 classes', '1,200 pictures')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
