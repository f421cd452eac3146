"""A run that is interrupted in any way and at any moment, and resumed, is bit-identical to one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import documented
import pytest
import tiny
from tiny import FAMILIES

from amgc.engine import cost as cost_module
from amgc.engine import run as run_module
from amgc.engine import session as session_module
from amgc.engine.checkpoint import read
from amgc.engine.run import resume, run
from amgc.engine.session import Session
from amgc.engine.watch import Stopped, Watch
from amgc.methods import registry
from amgc.methods.contract import Method, Task
from amgc.methods.registry import find, methods
from amgc.runs.folder import CHECKPOINT, METRICS

# Two epochs of three steps per task: in the middle of an epoch, at an epoch's end, at the end of the training.
MOMENTS = [(0, 2), (1, 3), (2, 6)]
MORE_MOMENTS = [(0, 3), (0, 6), (1, 1), (1, 2), (1, 5), (2, 4)]


class StopAt(Watch):
    """Request a stop after a step of a task."""

    def __init__(self, task: int, step: int) -> None:
        self.when, self.now = (task, step), (0, 0)

    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.now = task.index, done

    def wants_progress(self) -> bool:
        self.now = self.now[0], self.now[1] + 1
        self.stop = self.now >= self.when
        return False


class AccidentError(Exception):
    pass


def go_on(config: Any, folder: Path, watch: Watch | None = None) -> None:
    if (folder / "run.json").exists():
        resume(folder, watch, tiny.images())
    else:
        run(config, folder, watch, tiny.images())


@pytest.mark.cpus
def test_stopped_at_several_moments_and_resumed_it_ends_the_same(method: str, finished: Path, tmp_path: Path) -> None:
    stop_and_resume(method, MOMENTS, finished, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", tiny.SOME_METHODS, indirect=True)
def test_stopped_at_other_moments_and_resumed_it_ends_the_same(method: str, finished: Path, tmp_path: Path) -> None:
    stop_and_resume(method, MORE_MOMENTS, finished, tmp_path)


def stop_and_resume(method: str, moments: list[tuple[int, int]], finished: Path, tmp_path: Path) -> None:
    config, stops = tiny.config(method), 0
    for moment in moments:
        try:
            go_on(config, tmp_path, StopAt(*moment))
            break  # a method that does not train later tasks is done
        except Stopped:
            stops += 1
    assert stops, "it was never stopped"
    resume(tmp_path, dataset=tiny.images())
    tiny.assert_same_bits(tmp_path, finished)


@pytest.mark.parametrize("method", FAMILIES, indirect=True)
def test_a_stop_is_saved_at_the_step_of_the_request(method: str, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(tiny.config(method), tmp_path, StopAt(0, 2), tiny.images())
    assert read(tmp_path / CHECKPOINT)[0]["position"] == {"task": 0, "step": 2, "begun": True, "stage": 0, "earlier": 0}


@pytest.mark.parametrize("method", FAMILIES, indirect=True)
def test_a_checkpoint_after_every_step_changes_nothing(method: str, finished: Path, tmp_path: Path) -> None:
    run(tiny.config(method, machine={"checkpoint_minutes": 0.0}), tmp_path, dataset=tiny.images())
    tiny.assert_same_bits(tmp_path, finished)


@pytest.mark.parametrize("method", FAMILIES, indirect=True)
def test_after_a_failed_write_it_resumes_to_the_same_end(
    method: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_and_resume(method, "write", 1, finished, tmp_path, monkeypatch)


@pytest.mark.parametrize(("place", "task"), [("end", 0), ("evaluate", 1)])
@pytest.mark.parametrize("method", tiny.SOME_METHODS, indirect=True)
def test_after_an_exception_it_resumes_to_the_same_end(
    method: str, place: str, task: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_and_resume(method, place, task, finished, tmp_path, monkeypatch)


def fail_and_resume(
    method: str, place: str, task: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(AccidentError):
        PLACES[place](patched, method, task)
        run(tiny.config(method), tmp_path, dataset=tiny.images())
    assert not list(tmp_path.glob(".*.partial"))
    resume(tmp_path, dataset=tiny.images())
    tiny.assert_same_bits(tmp_path, finished)
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert tiny.untimed(lines) == tiny.saved(finished)[0]["lines"]


def _fail_in_end(patched: pytest.MonkeyPatch, method: str, task: int) -> None:
    kind = find(method).kind
    whole = kind.end

    def end(self: Method[Any], at: Task, features: Any, generator: Any) -> None:
        whole(self, at, features, generator)
        if at.index == task:
            raise AccidentError

    patched.setattr(kind, "end", end)


def _fail_in_evaluate(patched: pytest.MonkeyPatch, method: str, task: int) -> None:
    whole = run_module.evaluate

    def evaluate(session: Session, at: Task, see: Any) -> Any:
        if at.index == task:
            raise AccidentError
        return whole(session, at, see)

    patched.setattr(run_module, "evaluate", evaluate)


def _fail_in_write(patched: pytest.MonkeyPatch, method: str, task: int) -> None:
    whole, written = os.replace, []

    def replace(source: Any, target: Any) -> None:
        if Path(target).name == CHECKPOINT:
            written.append(target)
            if len(written) == task + 1:
                raise AccidentError
        whole(source, target)

    patched.setattr(os, "replace", replace)


PLACES = {"end": _fail_in_end, "evaluate": _fail_in_evaluate, "write": _fail_in_write}


@pytest.mark.parametrize("method", FAMILIES, indirect=True)
def test_progress_and_cost_estimates_change_nothing(
    method: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_module, "PATIENCE", 0.0)
    costs: list[Any] = []

    class Curious(Watch):
        def begin_run(self, class_names: Any, sizes: Any, cost: Any) -> None:
            costs.append(cost())

        def wants_progress(self) -> bool:
            return True

        def progress(self, now: Any) -> None:
            costs.append(now)

    run(tiny.config(method), tmp_path, Curious(), tiny.images())
    assert len(costs) > 6 and costs[0].trained > 0
    tiny.assert_same_bits(tmp_path, finished)


# ---- kill -9 -------------------------------------------------------------------------------------------------------------

# Which call of os.fsync or os.replace is the last thing that a process does. Checkpoints are written after every step;
# the first process writes run.json, metrics.jsonl and then checkpoints, a resumed one metrics.jsonl first.
KILLS = [("replace", 1), ("fsync", 2), ("replace", 4), ("fsync", 5), ("fsync", 3), ("replace", 3), ("fsync", 6), ("replace", 7)]


def killed_process(folder: Path, method: str, function: str, call: int) -> None:
    """Run in a forked process, which kills itself if the run makes this many calls."""
    whole, calls = getattr(os, function), []

    def deadly(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == call:
            os.kill(os.getpid(), 9)
        whole(*arguments)

    setattr(os, function, deadly)
    go_on(tiny.config(method, machine={"checkpoint_minutes": 0.0}), folder)


def in_a_process_of_its_own(root: Path, names: list[str], kills: int) -> None:
    """For each of the methods: a process that is killed while it writes, the next one too, and at last one that is not."""
    os.environ["OMP_NUM_THREADS"] = "1"
    registry.METHODS.entries[documented.NAME] = documented.entry()
    for method in names:
        folder = root / method
        for function, call in KILLS[:kills]:
            child = os.fork()
            if not child:
                killed_process(folder, method, function, call)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert status in (9, 0), status
            with (root / "statuses").open("a") as file:
                file.write(f"{method} {status} {len(list(folder.glob('.*.partial')))}\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kill -9 is POSIX's")
@pytest.mark.parametrize("which", ["some methods", pytest.param("the others", marks=pytest.mark.slow)])
def test_killed_again_and_again_while_writing_it_resumes_to_the_same_end(
    which: str, _finished: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.METHODS.entries, documented.NAME, documented.entry())
    ours = [name for name, entry in methods().items() if entry.kind.__module__.startswith("amgc.")]  # other tests register more
    kills = len(KILLS) if which == "some methods" else 2
    others = [*sorted({*FAMILIES} & set(ours) - set(tiny.SOME_METHODS)), documented.NAME]
    names = tiny.SOME_METHODS if which == "some methods" else others
    paths = [str(Path(tiny.__file__).parent), str(Path(__file__).parent), str(Path(session_module.__file__).parents[2])]
    code = f"import sys; sys.path[:0] = {paths!r}; from pathlib import Path; import test_resume; "
    code += f"test_resume.in_a_process_of_its_own(Path({str(tmp_path)!r}), {names!r}, {kills})"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [line.rsplit(" ", 2) for line in (tmp_path / "statuses").read_text().splitlines()]
    for method in names:
        fates = [(int(status), int(partial)) for name, status, partial in rows if name == method]
        assert len(fates) == kills and fates[:4] == [(9, 1)] * min(kills, 4), f"{method} is killed in the middle of a write"
        resume(tmp_path / method, dataset=tiny.images())
        tiny.assert_same_bits(tmp_path / method, _finished(method))
        assert not [path for path in (tmp_path / method).rglob("*") if path.name.endswith(".partial")]
