"""What the commands print: lines, tables and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from amgc.text import printable


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON. Characters that the output cannot encode are escaped as JSON does it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent)
    print(text)


def show(*lines: str) -> None:
    """Print lines, with control characters replaced."""
    from amgc.cli.progress import console

    for line in lines:
        console().print(printable(line), markup=False, highlight=False, soft_wrap=True)


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> None:
    """Print a table; `left` are the columns that are aligned to the left."""
    from amgc.cli.progress import console
    from amgc.report.table import grid

    console().print(grid(header, rows, left=left))
