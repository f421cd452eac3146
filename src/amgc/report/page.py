"""Write the report page: one HTML file that needs no network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import amgc
from amgc.files import write_text
from amgc.report.groups import Comparison, comparisons, named_runs
from amgc.report.html import environment, without_forbidden
from amgc.report.run_tables import run_facts, run_state
from amgc.report.sections import Section, sections
from amgc.runs import RunError, RunRecord
from amgc.text import plural


def write_report(
    folders: Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    section_files: Sequence[str | os.PathLike[str]] = (),
) -> list[RunError]:
    """Write a report of the runs in `folders` (see `named_runs`) to `path`, with the sections in `section_files` added.

    Returns the errors of unreadable runs, which the page lists. If no run can be read, the first error is raised.
    """
    shown = sections(section_files)
    damaged: list[RunError] = []
    runs = named_runs(folders, damaged)
    if not runs:
        raise damaged[0] if damaged else ValueError("There is no run to report; specify the folder of a run.")
    write_text(path, render_page(comparisons(runs, damaged), shown, damaged))
    return damaged


def render_page(found: Sequence[Comparison], shown: Sequence[Section], damaged: Sequence[RunError] = ()) -> str:
    """Return the HTML of the page."""
    now = datetime.now(timezone.utc)
    made = [
        (comparison, [(section, html) for section in shown if (html := section.html(comparison)) is not None])
        for comparison in found
    ]
    page = environment().get_template("page.html").render(
        title=f"Class-incremental learning on {' and '.join(dict.fromkeys(comparison.data for comparison in found))}",
        lead=_summary(found),
        contents=_contents(made),
        damaged=[str(error) for error in damaged],
        comparisons=made,
        runs=[_settings(method.name, run) for comparison in found for method in comparison.methods for run in method.runs],
        version=amgc.__version__,
        made=f"{now.day} {now:%B %Y, %H:%M} UTC",
    )  # fmt: skip
    return without_forbidden(page)


def _summary(found: Sequence[Comparison]) -> str:
    """Describe the runs in one sentence."""
    groups = [method for comparison in found for method in comparison.methods]
    names = list(dict.fromkeys(method.name for method in groups))
    methods = plural(len(names), "method") if len(names) > 1 else names[0]
    tasks = "; ".join(dict.fromkeys(comparison.tasks for comparison in found))
    counts = sorted({len(method.runs) for method in groups})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else plural(counts[0], "seed")
    features = ", ".join(dict.fromkeys(str(run.config.get("features")) for method in groups for run in method.runs))
    unfinished = sum(not run.finished for method in groups for run in method.runs)
    state = f" {plural(unfinished, 'run')} not finished." if unfinished else ""
    return f"{methods} on {tasks}, {seeds}{' each' * (len(names) > 1)}; features from {features}.{state}"


def _contents(made: Sequence[tuple[Comparison, Sequence[tuple[Section, Any]]]]) -> list[tuple[str, str]]:
    """Return the names and anchors of the navigation."""
    if len(made) > 1:
        links = [(f"{comparison.data}: {comparison.tasks}", f"comparison-{comparison.number}") for comparison, _ in made]
    else:
        links = [(one.title, f"{one.name}-{comparison.number}-heading") for comparison, inside in made for one, _ in inside]
    return [*links, ("Settings of all runs", "runs-heading")]


def _settings(name: str, run: RunRecord) -> dict[str, Any]:
    facts = [*run_facts(run), ("classes, in order of arrival", ", ".join(run.class_names))]
    return {"name": name, "summary": f"seed {run.config.get('seed')}, {run_state(run)}", "facts": facts}
