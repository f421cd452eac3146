"""Extension of griffe: docstrings here write `name : text` on one line, numpydoc has the text on lines of its own."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTIONS = ("Parameters", "Attributes", "Returns", "Raises")


class OneLineParameters(griffe.Extension):
    """Rewrite the docstring of every object before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """Move the text after `name : ` of a section to lines of its own.

    >>> print(rewritten("Parameters\\n----------\\nrank : of the factor;\\n    8 by default"))
    Parameters
    ----------
    rank
        of the factor;
        8 by default
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if re.fullmatch(r"-{3,}", line) and lines:
            inside = lines[-1] in SECTIONS
        found = re.match(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.+)", line) if inside else None
        lines += [found[1], f"    {found[2]}"] if found else [line]
    return "\n".join(lines)
