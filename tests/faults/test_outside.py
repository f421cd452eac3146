"""Commands under signals, closed outputs, other encodings, read-only disks and hostile files."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.helpers import TINY
from model.drawing import draw
from PIL import Image

from amgc.cli import progress
from amgc.cli.main import main
from amgc.cli.progress import Quiet, Shown, lasting_output, stoppable
from amgc.data import load, storage
from amgc.features.weights import read_weights
from amgc.files import FileFormatError
from amgc.model import Model
from amgc.runs import load_run


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has none")
def test_a_closed_terminal_saves_and_stops_a_run(monkeypatch, capsys):
    monkeypatch.setattr(Shown, "end_task", lambda *_: signal.raise_signal(signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        assert main(["run", *TINY, "--method", "finetune", "--out", "x"]) == 130
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "amgc resume x" in capsys.readouterr().err
    assert load_run("x").done == 1


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has none")
def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable(Quiet()):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class Closing(io.StringIO):
    """An output whose reader leaves after the first line."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def write(self, text: str) -> int:
        if "\n" in self.getvalue():
            raise OSError(self.code, os.strerror(self.code))
        return super().write(text)


@pytest.mark.parametrize("code", [errno.EPIPE, errno.EIO], ids=["pipe", "terminal"])
def test_a_run_whose_output_is_closed_goes_on_and_says_so(monkeypatch, capsys, code):
    monkeypatch.setattr(sys, "stdout", Closing(code))
    assert main(["run", *TINY, "--method", "finetune", "--out", "x"]) == 0
    assert load_run("x").finished
    assert capsys.readouterr().err.count("the output was closed; the run continues") == 1


def test_a_full_disk_behind_the_output_is_still_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Closing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"), lasting_output():
        print("one\n")
        print("two")
        progress.sys.stdout.flush()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_names_that_the_terminal_cannot_show_are_escaped(model, monkeypatch, encoding, tmp_path):
    Model.open(model).rename("cat", "Kätzchen 猫")
    name = os.fsdecode(b"caf\xe9.png")  # not UTF-8
    for number, file in enumerate((name, "ü.png", "plain.png")):
        Image.fromarray(draw("cat", 3)[number]).save(tmp_path / file)
    files = [name, "ü.png", "plain.png"]
    for flags in ([], ["--json"], ["--csv"]):
        shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", shown)
        assert main(["predict", "model", *files, *flags]) == 0
        shown.flush()
        text = shown.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
        if flags == ["--json"]:
            found = [json.loads(line) for line in text.splitlines()]
            assert len(found) == 3 and {one["answer"] for one in found} <= {"Kätzchen 猫", "dog"}
        else:
            assert "plain.png" in text and "caf" in text
    for command in (["info", "model"], ["info", "model", "--json"]):
        shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", shown)
        assert main(command) == 0


def test_resume_shows_a_finished_run_on_a_read_only_disk(run, monkeypatch, capsys):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "run/accuracy.png")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert main(["resume", "run"]) == 0
    shown = capsys.readouterr().out
    assert "amgc-closed" in shown and "read-only" in shown


def test_a_small_npz_that_unpacks_to_gigabytes_is_refused_before_it_is_read(monkeypatch):
    with zipfile.ZipFile("x.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("train_x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (6_000_000,)})
        file.write(bytes(6_000_000))
    monkeypatch.setattr(storage, "LARGE", 5_000_000)  # to write less
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=r"x\.npz.*would unpack to 6"):
        load("npz:x.npz")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_refused_pickle_does_not_advise_to_switch_safety_off(writer):
    if writer == "torch":
        torch.save({"state_dict": Evil()}, "x.pth")
    else:
        Path("x.pth").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(FileFormatError, match=r"x\.pth") as caught:
        read_weights("x.pth")
    shown = str(caught.value)
    for advice in ("weights_only", "add_safe_globals", "safe_globals", "trust", "two options"):
        assert advice not in shown
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["\u200b", "\u2060\ufeff", "\u3164", "\u2800", "\u00ad", "\u0301", "\u202e \u202c", "\x07"])
def test_class_names_that_cannot_be_seen_are_refused(model, name):
    opened = Model.open(model)
    with pytest.raises(ValueError, match="cannot be seen"):
        opened.rename("cat", name)
    with pytest.raises(ValueError, match="cannot be seen"):
        opened.learn(draw("cat", 2), name)
    assert list(opened.classes) == ["cat", "dog"]


def test_class_names_with_joiners_and_marks_are_taken(model):
    opened = Model.open(model)
    for name in ("👩\u200d🚀", "é", "می\u200cخواهم"):
        opened.rename(next(iter(opened.classes)), name)
        assert name in opened.classes


ABSURD = {
    "--first.batch-size": ("100000000000", "batch_size"),
    "--later.epochs": ("1000000000000000000000", "epochs"),
    "--features.dim": ("10000000000", "dim"),
    "--threads": ("100000000000", "threads"),
    "--tasks": ("1000000000000", "tasks"),
}


@pytest.mark.parametrize("flag", ABSURD)
def test_absurd_sizes_are_one_message(flag, capsys):
    value, name = ABSURD[flag]
    assert main(["run", *TINY, "--out", "x", "--quiet", flag, value]) == 2
    assert name in capsys.readouterr().err and not Path("x").exists()


def test_absurd_numbers_of_filters_are_one_message(capsys):
    Path("photos/cat").mkdir(parents=True)
    Image.fromarray(draw("cat", 1)[0]).save("photos/cat/1.png")
    assert main(["learn", "x", "photos", "--filters", "1000000000"]) == 2
    assert main(["run", "fast-digits", "--features.filters", "1000000000", "--out", "y", "--quiet"]) == 2
    assert capsys.readouterr().err.count("filters must be from 0 to 1,000,000") == 2


def test_memory_that_torch_does_not_get_is_one_message():
    from amgc.cli.errors import exit_code, message

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 58)
    assert exit_code(caught.value) == 1 and "out of memory" in message(caught.value)
    assert exit_code(RuntimeError("a bug")) is None


def test_names_of_folders_are_utf_8_in_any_locale(tmp_path):
    for name in ("été", "猫"):
        place = tmp_path / "photos" / name
        place.mkdir(parents=True)
        for number, pixels in enumerate(draw("cat", 3)):
            Image.fromarray(pixels).save(place / f"{number}.png")
    variables = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "amgc", "learn", "model", "photos", "--filters", "2"]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode("utf-8", "backslashreplace")
    assert set(Model.open(tmp_path / "model").classes) == {"été", "猫"}
