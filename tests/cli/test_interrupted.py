from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli.helpers import TINY, figures, saved_in_task_2

import amgc
from amgc.cli.errors import reported
from amgc.cli.main import main
from amgc.cli.progress import Quiet, stoppable

# Task 2 takes some seconds, so that there is something to interrupt.
LONG = [*TINY, "--method", "amgc", "--later.epochs", "25", "--quiet"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(["run", *LONG, "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_like_one_that_was_not(number, whole):
    """tests/contract/test_resume.py has kill -9."""
    environment = os.environ | {"PYTHONPATH": str(Path(amgc.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "amgc", "run", *LONG, "--out", "x", "--checkpoint-minutes", "0"]  # one after every step
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 300
        while not saved_in_task_2("x"):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        _, output = process.communicate(timeout=300)
    assert process.returncode == 130
    assert output == "amgc: stopping …; the same signal again ends it immediately.\nStopped; continue with: amgc resume x\n"
    assert len(figures("x")) == 1
    assert main(["resume", "x", "--quiet", "--checkpoint-minutes", "5"]) == 0
    assert figures("x") == figures(whole)


def test_the_first_signal_requests_a_stop_and_the_second_ends_at_once(capsys):
    before = signal.getsignal(signal.SIGINT)
    watch = Quiet()
    with reported() as outcome, stoppable(watch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # another signal is not a second time: torchrun sends both
        assert watch.stop
        signal.raise_signal(signal.SIGINT)
        pytest.fail("still here")
    output = capsys.readouterr().err
    assert outcome.code == 130 and "Traceback" not in output and output.count("amgc: stopping …") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_that_is_stopped_before_it_starts_writes_nothing(monkeypatch, capsys):
    monkeypatch.setattr(Quiet, "stop", True)
    assert main(["run", *LONG, "--out", "x"]) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert not Path("x").exists()
