"""The live table of a comparison, and Ctrl-C during a comparison, without any run."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from amgc.cli.jobs import schedule
from amgc.cli.jobs.board import Board, cell_text, results, time_left
from amgc.cli.jobs.schedule import Work, must_wait, run_all
from amgc.cli.progress import Quiet


def a_work(method: str, state: Any = "waiting", *, seed: int = 1, la: float = 0.5, done: int = 0, **more: Any) -> Work:
    cell: Any = SimpleNamespace(
        method=method,
        seed=seed,
        column=("digits", "5"),
        can_share_start=True,
        begun=False,
        first_task=Path("nowhere"),
        folder=Path(method),
    )
    metrics = SimpleNamespace(last_accuracy=la, average_incremental_accuracy=la + 0.1)
    run: Any = SimpleNamespace(metrics=metrics, done=done, sizes=(2,) * 5) if state in ("running", "done") else None
    return Work(cell, "key", state, run, **more)


def test_a_cell_shows_the_progress_of_its_seeds():
    assert cell_text([a_work("amgc")]) == ["–", "–"]
    assert cell_text([a_work("amgc", "running", done=3)]) == ["3/5 tasks", "–"]
    assert cell_text([a_work("amgc", "failed")]) == ["failed", "–"]
    two = [a_work("amgc", "done", la=0.4), a_work("amgc", "done", la=0.6)]
    assert cell_text(two) == ["50.0 ± 14.1", "60.0 ± 14.1"]
    more = [*two, a_work("amgc", "running"), a_work("amgc", "failed")]
    assert cell_text(more) == ["50.0 ± 14.1 (2/4) 0/5 tasks 1 failed", "60.0 ± 14.1"]


def test_time_left_goes_by_the_same_method_or_the_mean_of_the_others():
    works = [a_work("a", "done", seconds=10.0), a_work("b", "done", seconds=30.0)]
    assert time_left(works, 2, now=100.0) is None  # nothing is left
    works += [a_work("a"), a_work("c")]  # 10 and the mean, 20
    assert time_left(works, 1, now=100.0) == 30.0
    assert time_left(works, 9, now=100.0) == 20.0  # no sooner than the longest
    works.append(a_work("b", "running", submitted=75.0))  # 5 of 30 are left
    assert time_left(works, 1, now=100.0) == 35.0
    assert time_left([a_work("a")], 1, now=0.0) is None


def test_a_terminal_has_a_table_that_changes_and_leaves_nothing_behind():
    stream = io.StringIO()
    works = [a_work("amgc", "done", la=0.875, seconds=4.0), a_work("lda", "running", done=2), a_work("ncm")]
    with Board(Console(file=stream, force_terminal=True, width=100), works, 1) as board:
        board.show()
        shown = stream.getvalue()
        assert "digits, T = 5" in shown and "87.5" in shown and "2/5 tasks" in shown
        assert "1 of 3 runs done, 1 running, about " in shown
    assert stream.getvalue().count("\x1b[2K") >= 6  # every line is erased


def test_elsewhere_there_is_a_line_for_each_run_that_ends():
    stream = io.StringIO()
    works = [a_work("amgc", "done"), a_work("lda"), a_work("ncm")]
    with Board(Console(file=stream, width=200), works, 1) as board:
        board.show()
        assert stream.getvalue() == ""  # amgc was done before
        works[1].state, works[1].run, works[1].seconds = "done", works[0].run, 2.0
        works[2].state, works[2].reason = "failed", "no space"
        board.show()
        board.show()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 and "LA 50.0 % (2.0 s; 2 of 3 runs done, 1 failed)" in lines[0] and "failed: no space" in lines[1]


def test_the_results_have_means_and_definitions():
    stream = io.StringIO()
    works = [a_work("amgc", "done", la=0.4, seed=1), a_work("amgc", "done", la=0.6, seed=2), a_work("lda", "failed", seed=1)]
    Console(file=stream, width=120).print(results([*works, a_work("lda", "done", la=0.3, seed=2)]))
    shown = stream.getvalue()
    assert "50.0 ± 14.1" in shown and "60.0 ± 14.1" in shown and "30.0 (1/2)" in shown
    assert "last accuracy" in shown and "over 2 seeds" in shown


def test_jobs_wait_for_the_run_that_trains_task_1():
    giver, taker, joint = (a_work(name) for name in ("ncm", "amgc", "joint"))
    joint.cell.can_share_start = False  # type: ignore[misc]
    works = [joint, giver, taker]
    assert [must_wait(one, works) for one in works] == [True, False, False]
    giver.state = "running"
    assert [must_wait(one, works) for one in (joint, taker)] == [True, True]
    giver.state = "failed"
    assert [must_wait(one, works) for one in (joint, taker)] == [True, False]
    taker.state = "failed"
    assert not must_wait(joint, works)


class Endless:
    """A job that ends if it is killed, or if it is interrupted and `polite`."""

    def __init__(self, polite: bool) -> None:
        self.polite, self.asked, self.killed = polite, 0, 0

    def poll(self) -> int | str | None:
        return 130 if self.polite and self.asked else None

    def stop(self, at_once: bool = False) -> None:
        self.asked, self.killed = self.asked + (not at_once), self.killed + at_once


def test_ctrl_c_stops_every_job_once_and_a_second_kills_them():
    watch = Quiet()
    jobs = [Endless(polite=True), Endless(polite=False)]
    works = [a_work("a", "running", job=jobs[0]), a_work("b", "running", job=jobs[1]), a_work("c")]
    for one in works:
        one.cell.record = lambda: None  # type: ignore[method-assign]
    shown = []

    def show() -> None:
        shown.append([one.state for one in works])
        watch.stop = True
        if len(shown) == 5:
            raise KeyboardInterrupt

    nowhere: Any = SimpleNamespace(slots=2)
    with pytest.raises(KeyboardInterrupt):
        run_all(works, nowhere, {}, watch, show)
    assert (jobs[0].asked, jobs[0].killed) == (1, 0) and (jobs[1].asked, jobs[1].killed) == (1, 1)
    assert shown[-1] == ["waiting", "running", "waiting"]  # c was not started


def test_jobs_do_not_use_more_threads_than_the_user_allows(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("AMGC_DATA", "/somewhere")
    assert schedule.job_environment(["compare", "--all"], 8)["OMP_NUM_THREADS"] == "3"
    output = schedule.job_environment(["compare", "--all"], 2)
    assert (output["OMP_NUM_THREADS"], output["AMGC_DATA"], output["AMGC_COMMAND"]) == (
        "2",
        "/somewhere",
        '["compare", "--all"]',
    )
