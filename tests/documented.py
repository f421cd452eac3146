"""The method of docs/add-a-method.md, for the tests of all methods."""

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
    """Return the code that the page saves as elwf.py."""
    found = re.search(r"^```python\n(# elwf\.py\n.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert found
    return found[1]


@cache
def entry() -> Entry:
    """Return the method without registering it, so that other tests of all registered methods do not see it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "elwf.py"
        path.write_text(code())
        found = find(str(path))
    del registry.METHODS.entries[found.name]
    assert found.name == NAME
    return found
