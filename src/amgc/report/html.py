"""HTML of the report page: templates with escaped values, and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from amgc.report.groups import MethodRuns, percent_spread
from amgc.report.style import COLOURS, DARK, SEEN, dashes, marker, number, opacity, polygon
from amgc.report.table import Table
from amgc.text import percent, shorten

# Control characters, characters that reverse the direction of text, and surrogates (from undecodable file names).
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def render(template: str, **values: Any) -> Markup:
    """Fill in a Jinja template; values that are not Markup are escaped.

    The macros of templates/parts.html are available as `parts` (`parts.table(table)`, `parts.method(runs)`, …), those of
    templates/charts.html as `charts`.

    >>> render("<p>{{ name }}: {{ percent(share) }} %</p>", name="a < b", share=0.5)
    Markup('<p>a &lt; b: 50.0 %</p>')
    """
    shared = {"parts": macros("parts.html"), "charts": macros("charts.html")}
    return Markup(environment().from_string(template).render(**shared, **values))


def html_table(table: Table, main: bool = False, classes: Mapping[int, str] | None = None) -> Markup:
    """Write a table as HTML, with its title as the caption. Cells that are Markup are not escaped.

    A `main` table has full width and a hidden caption. `classes` are CSS classes of columns by index.
    """
    return Markup(macros("parts.html").table(table, main, classes or {}))


def bar(text: str, widths: Sequence[float], error: tuple[float, float] | None = None) -> Markup:
    """Return a cell with a number and a bar. `widths` of its parts and the ends of the `error` bar are in percent."""
    return Markup(macros("parts.html").bar(text, widths, error))


def method_cell(method: MethodRuns) -> Markup:
    """Return the name of a method with its marker."""
    return Markup(macros("parts.html").method(method))


def without_forbidden(text: str) -> str:
    """Replace characters that are not allowed in HTML or that reverse text; class names may contain them.

    >>> without_forbidden("a\\x1bb\\u202ec\\udcff\\n")
    'a?b?c?\\n'
    """
    return FORBIDDEN.sub("?", text)


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["n"] = number
    made.globals |= {
        "dashes": dashes,
        "marker": marker,
        "opacity": opacity,
        "polygon": polygon,
        "shorten": shorten,
        "spread": percent_spread,
        "percent": percent,
        "light": COLOURS,
        "dark": DARK,
        "SEEN": SEEN,
    }
    return made


@cache
def macros(template: str) -> Any:
    """Return the macros of a template as functions."""
    return environment().get_template(template).module
