"""`amgc compare` on Ray, and on Slurm as simulated by submitit with local processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.helpers import TINY, figures, saved_in_task_2
from in_process import Here

import amgc
from amgc.cli import compare
from amgc.cli.jobs.executors import OnSlurm
from amgc.cli.main import main

SHORT = ["--classes", "0", "1", "2", "3", "--features.dim", "8", "--first.epochs", "1"]
DIGITS = ["--data", "digits", "--tasks", "2", "--out", "x", *SHORT]
PLACE = Path("x/digits-t2-s1993")


def pids(folder: Path) -> list[int]:
    """Return the ids of the processes that have worked on a run, in order."""
    log = folder / "log.txt"
    return [int(pid) for pid in re.findall(r"; pid (\d+);", log.read_text())] if log.exists() else []


def wait_until(seen: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not seen():
        assert time.monotonic() < deadline and process.poll() is None, process.communicate(timeout=60)
        time.sleep(0.02)


def on_ray(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(amgc.__file__).parents[1])}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-W", "error", "-m", "amgc", "compare", *arguments, "--on", "ray", "--jobs", "2"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_ray_worker_loses_nothing_and_counts_nothing_twice(monkeypatch):
    """One of two workers is killed in task 2, another takes over, and Ctrl-C ends that one. The rest is done without Ray."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'amgc[ray]'")
    long = ["--later.epochs", "20"]
    arguments = ["ncm", "finetune", *DIGITS, *long, "--checkpoint-minutes", "0"]  # a checkpoint after every step
    with on_ray(*arguments) as process:
        wait_until(lambda: saved_in_task_2(PLACE / "finetune"), process)
        killed = pids(PLACE / "finetune")[-1]
        os.kill(killed, signal.SIGKILL)
        lines = PLACE / "ncm" / "metrics.jsonl"
        wait_until(lambda: len(pids(PLACE / "finetune")) == 2 and lines.exists() and len(figures(PLACE / "ncm")) == 2, process)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=180)
    assert process.returncode == 130 and "continue with the same command: amgc compare ncm" in output, output
    assert len(figures(PLACE / "finetune")) == 1
    monkeypatch.setattr(compare, "make_executor", lambda *_: (Here(), 1))
    assert main(["compare", *arguments]) == 0
    workers = pids(PLACE / "finetune")
    assert workers[0] == killed and len(set(workers)) == 3 and len(set(pids(PLACE / "ncm"))) == 1
    assert main(["run", *TINY, "--method", "ncm", "finetune", *long, "--quiet", "--out", "y"]) == 0
    for method in ("ncm", "finetune"):
        assert figures(PLACE / method) == figures(Path("y") / method)
    assert not list(Path("x").rglob(".*.partial"))


@pytest.mark.slow
def test_slurm_jobs_run_fail_and_continue(monkeypatch, capsys):
    """With submitit's own pickling and processes, but without Slurm."""
    pytest.importorskip("submitit", reason="needs submitit: pip install 'amgc[slurm]'")
    monkeypatch.setenv("PYTHONPATH", str(Path(amgc.__file__).parents[1]))
    monkeypatch.setattr(
        compare, "make_executor", lambda given, folder: (OnSlurm(folder.resolve(), 2, 1, 0, None, 10, cluster="local"), 1)
    )
    Path("unable.py").write_text(
        "from amgc.methods.contract import Hyper, Method\nfrom amgc.methods.registry import method\n\n\n"
        "@method('unable', Hyper())\nclass Unable(Method[Hyper]):\n    '''Cannot.'''\n\n"
        "    def begin(self, task, generator):\n        raise RuntimeError('I cannot')\n"
    )
    assert main(["compare", "amgc", "unable.py", *DIGITS, "--later.epochs", "2", "--on", "slurm"]) == 1
    out, err = capsys.readouterr()
    assert re.search(r"^amgc +\d", out, re.MULTILINE) and "unable, digits, T = 2, seed 1993: RuntimeError: I cannot" in err
    assert "Traceback" in (PLACE / "unable.log").read_text()
    assert main(["run", *TINY, "--method", "amgc", "--quiet", "--out", "y"]) == 0
    assert figures(PLACE / "amgc") == figures("y")


@pytest.mark.parametrize(("place", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_the_error_for_a_missing_package_says_what_to_install(place, module, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["compare", "amgc", *DIGITS, "--on", place]) == 2
    assert f"pip install 'amgc[{place}]'" in capsys.readouterr().err


def test_a_missing_slurm_is_reported(monkeypatch, capsys):
    pytest.importorskip("submitit", reason="needs submitit: pip install 'amgc[slurm]'")
    monkeypatch.setenv("PATH", "")
    assert main(["compare", "amgc", *DIGITS, "--on", "slurm"]) == 2
    assert "there is no Slurm here" in capsys.readouterr().err
