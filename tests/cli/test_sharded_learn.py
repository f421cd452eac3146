"""`amgc learn` in shards: --jobs, --on ray, going on after a stop."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cli.test_own_images import folder

import amgc
from amgc.cli import workers
from amgc.cli.main import main
from amgc.cli.progress import console
from amgc.distributed import ShardProgress, executors
from amgc.model import Model
from amgc.model.state import State

QUICK = ["--filters", "6"]


def bits(path: str) -> dict[str, bytes]:
    """Return the statistics of a model."""
    return {name: tensor.numpy().tobytes() for name, tensor in Model.open(path).state.classifier.statistics_.tensors().items()}


def test_a_folder_is_learned_in_shards(capsys):
    folder("photos", "cat", "dog")
    assert main(["learn", "model", "photos", *QUICK, "--jobs", "1", "--shard-files", "7"]) == 0
    told = capsys.readouterr().out
    assert "4 shards, 1 worker on this machine." in told and "Learned 2 classes from 24 images" in told
    assert re.search(r"About 24 images at [\d.,]+ images/s a worker: about", told) and "Memory: about" in told
    assert "here for 2 classes." in told
    assert main(["learn", "chosen", "photos", "--jobs", "1"]) == 0
    assert "Features: patches, because the images are small" in capsys.readouterr().out
    assert not Path("model/.shards").exists()


def test_the_estimated_rate_is_that_of_a_worker_with_one_thread(monkeypatch):
    folder("photos", "cat", "dog")
    threads, encoded, before = [], State.encoded, torch.get_num_threads()
    monkeypatch.setattr(State, "encoded", lambda *given: (threads.append(torch.get_num_threads()), encoded(*given))[1])
    try:
        torch.set_num_threads(2)
        assert main(["learn", "model", "photos", *QUICK, "--jobs", "1"]) == 0
        assert set(threads) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_progress_has_the_rate_of_this_call_and_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(workers, "LINE_SECONDS", 0.0)
    with workers.shown(console(), quiet=False) as show:
        show(ShardProgress(2, 8, 500, 0.25))  # an earlier call has done a quarter
        now[0] = 20.0
        show(ShardProgress(4, 8, 1000, 0.5))
    assert "4 of 8 shards, 1,000 images merged, 25 images/s; about 40 s left." in " ".join(capsys.readouterr().out.split())


def test_a_lesson_that_was_stopped_goes_on_with_the_same_command(monkeypatch, capsys):
    folder("photos", "cat", "dog")
    command = ["learn", "model", "photos", *QUICK, "--jobs", "1", "--shard-files", "7", "--quiet"]
    whole, computed = executors.here, []

    def stopping(job, shards):
        for number, part in whole(job, shards):
            computed.append(number)
            yield number, part
            if len(computed) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(executors, "here", stopping)
    assert main(command) == 130
    assert not Model.open("model").classes and Path("model/.shards").is_dir()
    assert main(command) == 0
    assert computed == [0, 1, 2, 3] and Model.open("model").classes == {"cat": 12, "dog": 12}
    assert main(["learn", "other", "photos", *QUICK, "--jobs", "1", "--shard-files", "7", "--quiet"]) == 0
    assert bits("model") == bits("other")


def test_a_first_lesson_that_fails_at_once_leaves_no_model(monkeypatch):
    folder("photos", "cat", "dog")
    monkeypatch.setattr(executors, "here", lambda job, shards: iter([(0, "it cannot be read.")]))
    assert main(["learn", "model", "photos", *QUICK, "--jobs", "1", "--quiet"]) == 2
    assert not Path("model").exists()


def test_vectors_are_learned_in_shards_too():
    import numpy as np

    for number in range(2):
        x = np.random.default_rng(number).normal(size=(20, 5))
        np.savez(f"{number}.npz", x=x, y=np.arange(20) % 2)
    assert main(["learn", "model", "0.npz", "1.npz", "--jobs", "1", "--quiet"]) == 0
    assert Model.open("model").classes == {"0": 20, "1": 20}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--shard-files", "0", "--jobs", "1"], "--shard-files must be at least 1"),
        (["--gpus", "1"], "need --on ray"),
        (["--label-column", "x"], "need a source"),
    ],
)
def test_flags_that_do_not_fit_are_errors(flags, said, capsys):
    folder("photos", "cat", "dog")
    assert main(["learn", "model", "photos", *flags]) == 2
    assert said in capsys.readouterr().err


def test_the_error_without_ray_says_what_to_install(monkeypatch, capsys):
    folder("photos", "cat", "dog")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["learn", "model", "photos", *QUICK, "--on", "ray"]) == 1
    assert "pip install 'amgc[ray]'" in capsys.readouterr().err
    assert not Path("model/manifest.json").exists()


WITH_A_KILLER = """
import os, signal, sys
from dataclasses import dataclass
from amgc.cli import learn
from amgc.cli.main import main

@dataclass(frozen=True)
class Killer:
    driver: int = os.getpid()
    name: str = "the killer"
    size: int = 1
    unit: str = "images"
    def stamp(self):
        return "1"
    def samples(self):
        if os.getpid() != self.driver:
            os.kill(os.getpid(), signal.SIGKILL)
        return iter(())

whole = learn.shards_of
def shards_of(*given):
    shards, left_out = whole(*given)
    return [Killer(), *shards], left_out
learn.shards_of = shards_of
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ray_gives_the_same_bits_and_a_shard_that_kills_its_worker_is_named(monkeypatch):
    """Ray Data with two actors. tests/distributed kills the driver, which does not depend on where the workers are."""
    pytest.importorskip("ray.data", reason="needs Ray Data: pip install 'amgc[ray]'")
    folder("photos", "cat", "dog")
    monkeypatch.setenv("PYTHONPATH", str(Path(amgc.__file__).parents[1]))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    flags = ["photos", *QUICK, "--shard-files", "7", "--quiet"]
    Path("killer.py").write_text(WITH_A_KILLER)
    command = [sys.executable, "killer.py", "learn", "model", *flags, "--on", "ray", "--jobs", "2", "--skip-shards"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "left out: the killer: its worker was killed 3 times" in done.stderr
    assert main(["learn", "other", *flags, "--jobs", "1"]) == 0
    assert Model.open("model").classes == {"cat": 12, "dog": 12}
    assert bits("model") == bits("other")
