"""The page as one HTML file: everything is inside it, nothing is fetched."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import amgc
from amgc.report.groups import named_runs
from amgc.report.page.entries import Stream, streams
from amgc.report.page.lines import percent_spread
from amgc.report.page.marks import short, swatch
from amgc.report.page.sections import sections
from amgc.report.plot import COLOURS
from amgc.report.table import DASH, percent
from amgc.report.writing import whole_file
from amgc.runs import RunError, RunRecord, flat

# The same hues on a dark ground; white is what black is on a light one.
DARK = ("#4BA6DD", "#F0803C", "#2BC49A", "#E39CC4", "#F0B640", "#8FD0F5", "#F2F2F2")
# Control characters, those that turn the text after them around, and halves of characters (undecodable file names).
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def write_report(folders: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str]) -> list[RunError]:
    """Write the report of the runs in `folders` (see `named_runs`) to `path`, whole or not at all.

    Returns what could not be read; the page names it and shows the rest. If there is no rest, that is an error.
    """
    damaged: list[RunError] = []
    runs = named_runs(folders, damaged)
    if not runs:
        raise damaged[0] if damaged else ValueError("there is no run to report; name a folder of one.")
    page = render(streams(runs, damaged), damaged)
    with whole_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return damaged


def render(found: Sequence[Stream], damaged: Sequence[RunError] = ()) -> str:
    """The page's text."""
    now = datetime.now(timezone.utc)
    parts = [(stream, list(sections(stream))) for stream in found]
    page = _environment().get_template("page.html").render(
        title=_title(found),
        lead=_lead(found),
        contents=_contents(parts),
        damaged=[str(error) for error in damaged],
        streams=parts,
        runs=[_about(entry.name, run) for stream in found for entry in stream.entries for run in entry.runs],
        version=amgc.__version__,
        made=f"{now.day} {now:%B %Y, %H:%M} UTC",
    )  # fmt: skip
    return harmless(page)


def harmless(text: str) -> str:
    """Without what no HTML file may hold, and without what turns text around: names come from folders.

    >>> harmless("a\\x1bb\\u202ec\\udcff\\n")
    'a?b?c?\\n'
    """
    return ODD.sub("?", text)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "swatch": swatch,
        "short": short,
        "spread": percent_spread,
        "percent": percent,
        "light": COLOURS,
        "dark": DARK,
    }
    return environment


def _title(found: Sequence[Stream]) -> str:
    data = list(dict.fromkeys(stream.data for stream in found))
    return f"Class-incremental learning on {' and '.join(data)}"


def _lead(found: Sequence[Stream]) -> str:
    """What was run, in one line."""
    entries = [entry for stream in found for entry in stream.entries]
    names = list(dict.fromkeys(entry.name for entry in entries))
    methods = f"{len(names)} method{'s' * (len(names) > 1)}" if len(names) > 1 else names[0]
    tasks = "; ".join(dict.fromkeys(stream.tasks for stream in found))
    counts = sorted({len(entry.runs) for entry in entries})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
    features = ", ".join(dict.fromkeys(str(run.config.get("features")) for entry in entries for run in entry.runs))
    going = sum(not run.finished for entry in entries for run in entry.runs)
    state = f" {going} run{'s' * (going > 1)} not finished." if going else ""
    return f"{methods} on {tasks}, {seeds}{' each' * (len(names) > 1)}; features from {features}.{state}"


def _contents(parts: Sequence[tuple[Stream, Sequence[Any]]]) -> list[tuple[str, str]]:
    if len(parts) > 1:
        links = [(f"{stream.data}: {stream.tasks}", f"stream-{stream.number}") for stream, _ in parts]
    else:
        links = [(section.title, f"{section.kind}-{stream.number}-heading") for stream, inside in parts for section in inside]
    return [*links, ("The runs, exactly", "runs-heading")]


def _about(name: str, run: RunRecord) -> dict[str, Any]:
    state = "finished" if run.finished else f"{run.done} of {len(run.sizes)} tasks finished"
    facts = [
        ("folder", str(run.path)),
        ("state", state),
        ("commit", run.commit or "unknown"),
        ("created", run.created),
        ("command", shlex.join(run.command)),
        ("versions", ", ".join(f"{package} {version}" for package, version in run.versions.items())),
        ("classes, in order of arrival", ", ".join(run.class_names)),
        *[(key, DASH if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
          for key, value in flat(run.config).items()],
    ]  # fmt: skip
    return {"name": name, "about": f"seed {run.config.get('seed')}, {state}", "facts": facts}
