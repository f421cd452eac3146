"""Names of classes: any text, in one spelling."""

from __future__ import annotations

import unicodedata
from typing import Any

from amgc.text import visible


def checked_name(label: Any) -> str:
    """Return the normalised name of a class; raise an error if it cannot be one."""
    if not isinstance(label, str):
        raise TypeError(f"the name of a class must be a string, not {label!r}.")
    try:
        label.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the class name {label!r} is not valid Unicode; rename it.") from None
    if "\0" in label or not visible(label):
        raise ValueError(f"the class name {label!a} is empty, cannot be seen, or contains a null character; rename it.")
    return normal(label)


def normal(label: str) -> str:
    """Return a name in Unicode's composed form. macOS stores é in file names as two characters."""
    return unicodedata.normalize("NFC", label)
