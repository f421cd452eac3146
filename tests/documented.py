"""The method that docs/add-a-method.md adds: tested like those of the package, of which it is none."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from amgc.methods import registry
from amgc.methods.registry import Entry, find

PAGE = Path(__file__).parents[1] / "docs" / "add-a-method.md"
NAME = "elwf"


def code() -> str:
    """What is to be saved as elwf.py."""
    found = re.search(r"^```python\n(# elwf\.py\n.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert found
    return found[1]


@cache
def entry() -> Entry:
    """The method, registered nowhere: tests of all that are registered do not meet it unless they want to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "elwf.py"
        path.write_text(code())
        found = find(str(path))
    del registry.METHODS.entries[found.name]
    assert found.name == NAME
    return found
