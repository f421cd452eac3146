"""Tables of runs: their values, their width, and dashes for undefined numbers."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from amgc.report import accuracy_table, details
from amgc.report.run_tables import evenly
from amgc.report.table import Table, as_csv, as_latex, as_markdown, as_text
from amgc.runs import DEFINITIONS, RunRecord, load_run

WriteRun = Callable[..., Path]


def markdown_table(runs: Sequence[RunRecord]) -> str:
    return as_markdown(accuracy_table(runs))


def shown(renderable: RenderableType, width: int = 100) -> str:
    """Return the output of the terminal, without colours."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    """Return the cells of the first line that begins with `name`."""
    return next(line for line in text.splitlines() if line.strip("| ").startswith(name)).replace("|", " ").split()


def falling(tasks: int, done: int | None = None) -> list[list[int]]:
    return [[max(0, 90 - task)] * (task + 1) for task in range(tasks if done is None else done)]


def test_a_row_holds_the_percentages_of_each_task_and_of_the_run(write_run: WriteRun) -> None:
    run = load_run(write_run("amgc", [2, 1], [[90], [70, 80]]))
    for text in (shown(accuracy_table([run])), markdown_table([run])):
        assert row(text, "method") == ["method", "T1", "T2", "LA", "AIA", "forgetting", "first", "task"]
        assert row(text, "amgc") == ["amgc", "90.0", "73.3", "73.3", "81.7", "20.0", "70.0"]


def test_every_column_is_defined_below_the_table(write_run: WriteRun) -> None:
    run = load_run(write_run("amgc", [2, 1], [[90], [70, 80]]))
    for text in (shown(accuracy_table([run])), markdown_table([run])):
        for name in ("Tn", "LA", "AIA", "forgetting", "first task"):
            assert DEFINITIONS[name] in text


def test_the_forgetting_of_a_single_task_is_a_dash_and_not_zero(write_run: WriteRun) -> None:
    run = load_run(write_run("joint", [3], [[90]]))
    assert row(markdown_table([run]), "joint") == ["joint", "90.0", "90.0", "90.0", "–", "90.0"]
    assert "BWT –" in shown(details(run))


def test_runs_still_going_are_marked_with_how_far_they_are(write_run: WriteRun) -> None:
    runs = [
        load_run(write_run("amgc", [1, 1, 1], falling(3))),
        load_run(write_run("lwf", [1, 1, 1], falling(3, done=1))),
        load_run(write_run("ewc", [1, 1, 1], [])),
    ]
    text = markdown_table(runs)
    assert row(text, "amgc")[1] == "3/3"
    assert row(text, "lwf") == ["lwf", "1/3", "90.0", "–", "–", "90.0", "90.0", "–", "90.0"]
    assert row(text, "ewc") == ["ewc", "0/3", *"–––––––"]
    assert "Unfinished runs" in text
    assert "Unfinished runs" not in markdown_table(runs[:1])


@pytest.mark.parametrize("tasks", [1, 2, 8, 9, 20, 100])
@pytest.mark.parametrize("width", [80, 100])
def test_a_table_fits_its_width_and_shows_the_first_and_the_last_task(write_run: WriteRun, tasks: int, width: int) -> None:
    runs = [
        load_run(write_run("amgc", [1] * tasks, falling(tasks), folder="a", seed=1)),
        load_run(write_run("amgc", [1] * tasks, falling(tasks, done=tasks // 2), folder="b", seed=2)),
    ]
    for text in (shown(accuracy_table(runs, width), width), shown(details(runs[0], width), width)):
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text.replace("1, 2, …", "").replace(" … (", "")
        header = next(line for line in text.splitlines() if "forgetting" in line).split()
        assert {"T1", f"T{tasks}"} <= set(header)
    lines = [line for line in markdown_table(runs).splitlines() if line.startswith("|")]
    assert max(map(len, lines)) <= 100
    assert len(set(map(len, lines))) == 1


@pytest.mark.parametrize("count", range(1, 60))
def test_tasks_are_chosen_evenly_without_repeats(count: int) -> None:
    for wanted in range(2, 10):
        chosen = evenly(count, wanted)
        assert len(chosen) == min(count, wanted)
        assert (chosen[0], chosen[-1]) == (0, count - 1)
        gaps = {after - before for before, after in pairwise(chosen)}
        assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)


@pytest.mark.parametrize(("tasks", "width", "left_out"), [(5, 100, False), (10, 120, False), (10, 60, True), (20, 100, True)])
def test_a_table_says_if_tasks_have_no_column(write_run: WriteRun, tasks: int, width: int, left_out: bool) -> None:
    run = load_run(write_run("amgc", [1] * tasks, falling(tasks)))
    assert (f"of {tasks} tasks have a column" in shown(accuracy_table([run], width), width)) == left_out
    assert (f"of {tasks} tasks have a column" in shown(details(run, width), width)) == left_out


def test_runs_that_do_not_compare_are_noted(write_run: WriteRun) -> None:
    runs = [
        load_run(write_run("amgc", [2, 1], [], data="digits")),
        load_run(write_run("lwf", [1, 2], [], data="cifar100", seed=7)),
    ]
    text = markdown_table(runs)
    assert "differ in data: digits, cifar100" in text
    assert "differ in seed: 1993, 7" in text
    assert "different tasks" in text
    assert "differ" not in markdown_table(runs[:1])


def test_names_reach_the_table_as_they_are_but_for_control_characters(write_run: WriteRun) -> None:
    names = ["[red]rose", "a|b", "\x1b[2Jgone"]
    run = load_run(write_run("[bold]|x", [3], [[50]], folder="odd", names=names))
    text = shown(details(run))
    assert "[red]rose" in text
    assert "[bold]|x" in text
    assert "\x1b" not in text
    assert "?[2Jgone" in text
    assert r"\[bold\]\|x" in markdown_table([run])


def test_no_runs_are_an_error() -> None:
    with pytest.raises(ValueError, match="no run to show"):
        markdown_table([])


def test_details_hold_settings_matrix_classes_time_and_memory(write_run: WriteRun) -> None:
    text = shown(details(load_run(write_run("amgc", [2, 1], [[90], [70, 80]], names=["cat", "dog", "hen"]))))
    assert row(text, "hyper") == ["hyper.margin", "0.4"]
    assert " ".join(row(text, "tasks")) == "tasks 3 classes in 2 tasks (2 + 1)"
    assert "23 s (train 20 s, remember 1.0 s, evaluate 2.0 s)" in text
    assert "1.0 kB per class, 3.1 kB in total" in text
    assert row(text, "T1") == ["T1", "90.0", "–", "90.0", "90.0"]
    assert row(text, "T2") == ["T2", "73.3", "70.0", "80.0", "70.0", "80.0"]
    assert "BWT -20.0" in text
    assert row(text, "hen") == ["hen", "80.0"]
    assert "amgc run --method amgc" in text
    assert "abc1234" in text


def test_details_name_the_five_best_and_the_five_worst_classes(write_run: WriteRun) -> None:
    run = load_run(write_run("amgc", [1] * 12, [[50 + label for label in range(task + 1)] for task in range(12)]))
    text = shown(details(run))
    assert "class 11      61.0  class 0      50.0" in text
    assert "class 7       57.0  class 4      54.0" in text
    assert "class 6 " not in text


def test_details_of_a_run_that_has_just_begun_say_so(write_run: WriteRun) -> None:
    text = shown(details(load_run(write_run("amgc", [2, 1], []))))
    assert "0 of 2 tasks finished" in text
    assert row(text, "time") == ["time", "–"]


def test_one_description_of_a_table_has_every_format() -> None:
    table = Table(
        ["method", ("digits", "LA"), ("digits", "AIA")], [["a_b", "9.5", "10.0"]], "Title", [("LA", "last")], ["Note."]
    )
    lines = [line.split() for line in as_text(table).splitlines() if line and "─" not in line]
    assert lines[:4] == [["Title"], ["digits"], ["method", "LA", "AIA"], ["a_b", "9.5", "10.0"]]
    assert lines[-2:] == [["LA", "last"], ["Note."]]
    assert "| method | digits: LA |  AIA |" in as_markdown(table) and r"| a\_b   |" in as_markdown(table)
    assert r"\multicolumn{2}{c}{digits}" in as_latex(table) and r"a\_b & 9.5 & 10.0 \\" in as_latex(table)
    assert as_csv(table) == "method,LA,AIA\na_b,9.5,10.0\n"
