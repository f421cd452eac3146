"""Format durations, sizes, percentages and names as text. The only place in the package that does."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters and a symbol that are not visible
DASH = "–"  # stands for a value that is undefined or not yet known


def duration(seconds: float) -> str:
    """Format a time span with two units at most.

    >>> duration(0.034), duration(2), duration(42.4), duration(75), duration(7320), duration(3e5)
    ('0.03 s', '2.0 s', '42 s', '1 min 15 s', '2 h 2 min', '3 d 11 h')
    """
    if seconds < 59.5:
        return f"{seconds:.{2 if seconds < 0.1 else 1 if seconds < 9.95 else 0}f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def byte_size(count: float) -> str:
    """Format a number of bytes in decimal units (1 kB = 1000 bytes), as disks and downloads are measured.

    >>> byte_size(900), byte_size(65536), byte_size(20_500_000), byte_size(3e9)
    ('900 B', '65.5 kB', '20.5 MB', '3.0 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.99995 * size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} B"


def percent(value: float | None) -> str:
    """Format a fraction as a percentage with one decimal; None and NaN become a dash.

    >>> percent(0.12345), percent(-0.0001), percent(None), percent(float("nan"))
    ('12.3', '0.0', '–', '–')
    """
    if value is None or value != value:
        return DASH
    return f"{round(100 * value, 1) + 0.0:.1f}"  # + 0.0 turns -0.0 into 0.0


def per_second(rate: float) -> str:
    """Return a rate with two digits below ten, so that a slow one is not 0.

    >>> per_second(63.7), per_second(2.345), per_second(0.0234)
    ('64', '2.3', '0.023')
    """
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "image"), plural(2, "known class"), plural(1200, "image")
    ('1 image', '2 known classes', '1,200 images')
    """
    return f"{count:,} {noun if count == 1 else noun + ('es' if noun.endswith('s') else 's')}"


def printable(text: str) -> str:
    """Replace control characters, which names of folders may contain and a terminal would execute.

    >>> printable("a\\x1b[31mb")
    'a?[31mb'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def cell(text: str) -> str:
    """Return a text for a cell of a CSV file. After an apostrophe, spreadsheets do not take =, +, - or @ for a formula.

    >>> cell("=1+1"), cell("cat")
    ("'=1+1", 'cat')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and text else text


def visible(text: str) -> bool:
    """Return whether a text has a visible character: not a space, control character, mark or filler.

    >>> visible("cat"), visible(" "), visible("\\u200b\\u2060"), visible("\\u3164")
    (True, False, False, False)
    """
    return any(unicodedata.category(letter)[0] not in "ZCM" and letter not in FILLERS for letter in text)


def shorten(text: str, length: int) -> str:
    """Cut a text to `length` characters, the last of which is then an ellipsis.

    >>> shorten("aquarium fish", 8), shorten("crab", 8)
    ('aquariu…', 'crab')
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def first_few(names: Sequence[str], most: int = 5) -> str:
    """Join the first few names of a list.

    >>> first_few(list("abcdefg"))
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def listing(labels: Sequence[object], most: int = 10) -> str:
    """Format labels for a message.

    >>> listing(["cat", "dog"]), listing(range(12), most=2), listing([])
    ("'cat', 'dog'", '0, 1 and 10 more', 'none')
    """
    return first_few([repr(label) for label in labels], most) or "none"
