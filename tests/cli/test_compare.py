"""`amgc compare`. Jobs run in this process, except in tests of processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from cli.helpers import TINY, figures
from in_process import Here

import amgc
from amgc.cli import compare
from amgc.cli.jobs.executors import Local
from amgc.cli.jobs.worker import Job, work
from amgc.cli.main import main
from amgc.cli.progress import Quiet
from amgc.methods import registry
from amgc.methods.registry import methods
from amgc.runs import find_runs
from amgc.runs.folder import RunFolder

SHORT = ["--classes", "0", "1", "2", "3", "--features.dim", "8", "--first.epochs", "1", "--later.epochs", "2"]
DIGITS = ["--data", "digits", "--tasks", "2", "--out", "x", *SHORT]

BROKEN = '''
from amgc.methods.contract import Hyper, Method
from amgc.methods.registry import method


@method("broken", Hyper())
class Broken(Method[Hyper]):
    """Cannot begin."""

    def begin(self, task, generator):
        raise RuntimeError("I cannot")
'''


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    executor = Here()
    monkeypatch.setattr(compare, "make_executor", lambda *_: (executor, 1))
    return executor


def run_config(folder: str) -> dict[str, object]:
    return json.loads((Path(folder) / "run.json").read_text())["config"]


def test_the_grid_has_every_method_number_of_tasks_and_seed():
    own, run_flags = compare.split_flags(
        ["amgc", "lda", "--data", "digits", "--tasks", "2", "5", "--seeds", "2", "--later.epochs", "7"]
    )
    given = compare.tyro.cli(compare.Compare, args=own)
    cells = compare.make_cells(given, run_flags)
    assert [cell.folder.as_posix() for cell in cells] == [
        f"runs/compare/digits-t{tasks}-s{seed}/{method}"
        for seed in (1993, 1994)
        for tasks in (2, 5)
        for method in ("amgc", "lda")
    ]
    assert [(cell.config.tasks, cell.config.seed) for cell in cells[::2]] == [(2, 1993), (5, 1993), (2, 1994), (5, 1994)]
    assert {cell.config.hyper.later.epochs for cell in cells} == {7}
    assert cells[0].config.hyper.later.head_lr == 0.2  # of the preset digits


def test_all_is_every_method_and_data_can_be_presets():
    given = compare.tyro.cli(compare.Compare, args=["--all", "--data", "digits", "fast-digits", "--seeds", "7", "5"])
    cells = compare.make_cells(given, [])
    assert len(cells) == 2 * 2 * len(methods()) and {cell.method for cell in cells} == set(methods())
    assert {cell.column for cell in cells} == {("digits", "5"), ("fast-digits", "5")}
    assert {cell.config.features for cell in cells} == {"convnet", "patches"}
    assert {cell.seed for cell in cells} == {7, 5}


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--seeds", "1993"], "--seed 1993"),
        (["--seeds", "5", "5"], "distinct seeds"),
        (["--tasks", "0"], "positive"),
        (["--tasks", "2", "--increment", "2", "--first-classes", "2"], "--first-classes both define"),
        (["--data", "digits", "amgc"], "methods come first: amgc compare amgc --data"),
        (["--method", "amgc"], "methods come first"),
        (["--address", "auto"], "--on ray"),
        (["--jobs", "-1"], "negative"),
        (["--on", "slurm", "--devices", "2"], "a job is one process"),
        (["--data", "digitz"], "did you mean 'digits'"),
        (["--data", "digits", "digits"], "two columns"),
        (["--data", "digits", "--later.epoch", "3"], "later.epoch"),
    ],
)
def test_settings_that_do_not_fit_are_reported_before_anything_is_written(arguments, output, capsys):
    assert main(["compare", *arguments]) == 2
    assert output in re.sub(r"[\s│]+", " ", capsys.readouterr().err)
    assert list(Path().iterdir()) == []


def test_a_cell_is_the_run_that_amgc_run_makes(here, capsys):
    command = ["compare", "amgc", "joint", "pass", *DIGITS, "--seeds", "2"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert main(["run", *TINY, "--method", "amgc", "joint", "pass", "--seed", "1994", "--quiet", "--out", "y"]) == 0
    for method in ("amgc", "joint", "pass"):
        assert figures(f"x/digits-t2-s1994/{method}") == figures(f"y/{method}")
    last = []
    for seed in (1993, 1994):
        correct, total = figures(f"x/digits-t2-s{seed}/amgc")[-1]
        last.append(100 * sum(correct) / sum(total))
    assert re.search(rf"^amgc +{statistics.mean(last):.1f} ± {statistics.stdev(last):.1f} ", output, re.MULTILINE)
    assert json.loads(Path("x/digits-t2-s1993/amgc/run.json").read_text())["command"] == ["amgc", *command]
    kept = json.loads(Path("x/compare.json").read_text())
    assert kept == {"version": 1, "commands": [command]}
    assert main(["show", "x"]) == 0
    assert capsys.readouterr().out.count("seed=1994") == 3
    assert main(["show", "x/digits-t2-s1993/amgc"]) == 0
    assert main(["resume", "x"]) == 2
    assert "amgc compare amgc joint pass --data digits" in capsys.readouterr().err


def test_task_1_is_trained_once_where_it_is_the_same(here):
    assert main(["compare", "joint", "pass", "amgc", "finetune", *DIGITS]) == 0
    assert [name.partition("/")[2] for name in here.names] == ["pass", "amgc", "joint", "finetune"]  # joint cannot give it
    place = Path("x/digits-t2-s1993")
    assert [path.parent.name for path in place.glob("*/task-1.safetensors")] == ["amgc"]
    starts = {name: run_config(str(place / name))["machine"]["start"] for name in ("joint", "pass", "amgc", "finetune")}
    giver = str((place / "amgc").resolve())
    assert starts == {"joint": giver, "pass": None, "amgc": None, "finetune": giver}


def test_methods_that_train_alike_in_all_tasks_train_once(here):
    """LwF itself has another weight of the distillation. SDC starts from the first that has task 1, and keeps all tasks."""
    assert main(["compare", "finetune", "sdc", "lwf", "dpcr", "amgc-drift", *DIGITS]) == 0
    place = Path("x/digits-t2-s1993")
    starts = {name: run_config(str(place / name))["machine"]["start"] for name in ("sdc", "lwf", "dpcr", "amgc-drift")}
    first, all_tasks = (str((place / name).resolve()) for name in ("finetune", "sdc"))
    assert starts == {"sdc": first, "lwf": first, "dpcr": all_tasks, "amgc-drift": all_tasks}
    assert [path.parent.name for path in place.glob("*/task-2.safetensors")] == ["sdc"]


def test_the_same_command_again_does_what_is_missing(here, capsys):
    command = ["compare", "amgc", "finetune", *DIGITS]
    assert main(command) == 0
    assert here.names == ["digits-t2-s1993/amgc", "digits-t2-s1993/finetune"]
    first = capsys.readouterr().out
    assert main(command) == 0
    assert here.names == []
    assert capsys.readouterr().out == first[first.index("\nmethod") :]  # the table alone
    shutil.rmtree("x/digits-t2-s1993/amgc")
    Path("x/digits-t2-s1993/amgc").mkdir()
    assert main([*command, "--seeds", "2"]) == 0
    assert here.names == ["digits-t2-s1993/amgc", "digits-t2-s1994/amgc", "digits-t2-s1994/finetune"]
    assert main(["compare", "lda", *DIGITS]) == 0
    assert here.names == ["digits-t2-s1993/lda"]
    kept = json.loads(Path("x/compare.json").read_text())["commands"]
    assert kept == [command, [*command, "--seeds", "2"], ["compare", "lda", *DIGITS]]


def test_a_stopped_job_is_resumed_with_the_same_result(here, monkeypatch):
    def end_task(self: Quiet, *_: object) -> None:
        self.stop = True

    with monkeypatch.context() as patch:
        patch.setattr(Quiet, "end_task", end_task)
        assert main(["compare", "amgc", *DIGITS]) == 0
    assert here.names == 2 * ["digits-t2-s1993/amgc"]
    assert main(["run", *TINY, "--method", "amgc", "--quiet", "--out", "y"]) == 0
    assert figures("x/digits-t2-s1993/amgc") == figures("y")
    assert "from task 2, step 1" in Path("x/digits-t2-s1993/amgc/log.txt").read_text()


def test_a_run_with_other_settings_is_refused_with_what_differs(here, capsys):
    assert main(["compare", "amgc", "lda", *DIGITS]) == 0
    before = {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["compare", "amgc", "lda", "finetune", *DIGITS, "--later.epochs", "3"]) == 2
    output = capsys.readouterr().err
    assert "'x/digits-t2-s1993/amgc' contains a run with other settings: later.epochs is 2 instead of 3." in output
    assert "The same applies to 1 more run." in output and "another --out" in output
    assert {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()} == before


def test_a_failure_does_not_stop_the_rest_and_is_reported_at_the_end(here, capsys):
    Path("broken.py").write_text(BROKEN)
    command = ["compare", "broken.py", "finetune", "amgc", *DIGITS]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert err.count("failed: ") == 1 and "broken, digits, T = 2, seed 1993: RuntimeError: I cannot" in err
    log = Path("x/digits-t2-s1993/broken.log")
    assert str(log) in err and "Traceback" in log.read_text()
    assert re.search(r"^broken +failed +– *$", out, re.MULTILINE) and re.search(r"^amgc +\d", out, re.MULTILINE)
    # broken was to train task 1 for all; the next did, for the rest
    assert Path("x/digits-t2-s1993/finetune/task-1.safetensors").exists()
    assert run_config("x/digits-t2-s1993/amgc")["machine"]["start"] == str(Path("x/digits-t2-s1993/finetune").resolve())
    here.names  # noqa: B018 - begins a new list
    Path("broken.py").write_text(BROKEN.replace('raise RuntimeError("I cannot")', "super().begin(task, generator)"))
    main(command)
    assert here.names == ["digits-t2-s1993/broken"]


def test_two_comparisons_in_one_folder_at_the_same_time_are_refused(here, capsys):
    Path("x").mkdir()
    with RunFolder(Path("x")).locked():
        assert main(["compare", "amgc", *DIGITS]) == 2
    assert "another process is working on 'x'" in capsys.readouterr().err
    assert here.names == []
    assert main(["run", *TINY, "--method", "amgc", "--quiet", "--out", "y"]) == 0
    assert main(["compare", "amgc", *DIGITS[:-2], "--out", "y"]) == 2
    assert "contains a run of `amgc run`" in capsys.readouterr().err


def test_a_dry_run_lists_the_runs_and_writes_nothing(here, capsys):
    assert main(["compare", "amgc", *DIGITS]) == 0
    before = {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["compare", "amgc", "lda", *DIGITS, "--seeds", "2", "--dry-run", "--jobs", "2"]) == 0
    output = capsys.readouterr().out
    assert "amgc, digits, T = 2, seed 1993: done\n" in output
    assert re.search(r"^lda, digits, T = 2, seed 1994: new: about [\d.]+ s$", output, re.MULTILINE)
    assert re.search(r"^1 of 4 runs done; the others: about [\d.]+ s, about [\d.]+ s with 2 at a time$", output, re.MULTILINE)
    assert {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_all_methods_end_without_a_warning(here, monkeypatch, capsys):
    """`amgc compare --all --data digits`, with four of its classes and one of its epochs."""
    ours = {name: entry for name, entry in methods().items() if entry.kind.__module__.startswith("amgc.")}  # not tests'
    monkeypatch.setattr(registry.METHODS, "entries", ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["compare", "--all", *DIGITS, "--later.epochs", "1"]) == 0
    out, err = capsys.readouterr()
    rows = dict(re.findall(r"^(\S+) +(\d+\.\d) +\d+\.\d *$", out[out.rindex("\nmethod ") :], re.MULTILINE))
    assert list(rows) == list(ours) and err == ""
    runs = find_runs("x")
    assert len(runs) == len(rows) and all(run.finished for run in runs)
    for run in runs:
        assert rows[run.method] == f"{100 * run.metrics.last_accuracy:.1f}"
        assert (run.path.with_suffix(".log")).read_text() == ""  # no warning, nothing else either


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_however_a_comparison_ends_its_jobs_save_themselves_and_end(number):
    """Two jobs at a time, each in its own process."""
    long = ["amgc", "finetune", *DIGITS, "--later.epochs", "400", "--jobs", "2"]
    environment = os.environ | {"PYTHONPATH": str(Path(amgc.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "amgc", "compare", *long]
    folders = [Path("x/digits-t2-s1993") / name for name in ("amgc", "finetune")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        deadline = time.monotonic() + 300
        while not all((folder / "metrics.jsonl").exists() and figures(folder) for folder in folders):  # task 1 is done
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        output = process.communicate(timeout=300)[1]
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert ("Stopped; continue with the same command: amgc compare amgc finetune" in output) == (number == signal.SIGINT)
    pids = [int(re.search(r"pid (\d+)", (folder / "log.txt").read_text())[1]) for folder in folders]
    while number == signal.SIGKILL and any(map(alive, pids)):  # the system signals them, and they save a checkpoint
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not any(map(alive, pids))
    assert [len(figures(folder)) for folder in folders] == [1, 1]
    for folder in folders:
        with RunFolder(folder).locked():
            pass
        assert re.search(r"Stopped; continue with: amgc resume", folder.with_suffix(".log").read_text())


def test_jobs_take_turns_on_the_gpus(monkeypatch):
    class Process:
        code: int | None = None

        def __init__(self, command, env, **_):
            started.append((self, env["CUDA_VISIBLE_DEVICES"]))

        def poll(self):
            return self.code

    started: list[tuple[Process, str]] = []
    monkeypatch.setattr("amgc.cli.jobs.executors.subprocess.Popen", Process)
    place, job = Local(3, ["4", "7"]), Job("x", "log", None, ".", {})
    for _ in range(3):
        place.submit(job)
    started[1][0].code = 0
    place.submit(job)  # in the place of the second
    assert [gpu for _, gpu in started] == ["4", "7", "4", "7"]


def test_a_job_ends_with_the_exit_code_of_amgc_resume(tmp_path, capsys):
    job = Job(str(tmp_path / "nothing"), str(tmp_path / "log"), None, str(tmp_path), {})
    assert work(job) == 2
    assert "there is no run in" in capsys.readouterr().err
