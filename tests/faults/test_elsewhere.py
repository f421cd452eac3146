"""What a stranger's folder or file makes a command write, delete or show elsewhere: nothing."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from amgc import FileFormatError, files, tensor_files
from amgc.cli.errors import say
from amgc.cli.main import main
from amgc.cli.moving import JOURNAL, undo
from amgc.locking import locked
from amgc.model.folder import unpack
from amgc.runs.folder import RunFolder

PRECIOUS = "the only copy\n"


@pytest.fixture
def folder(tmp_path):
    """A stranger's folder, next to a file of the user."""
    (tmp_path / "precious.txt").write_text(PRECIOUS)
    (tmp_path / "stranger").mkdir()
    return tmp_path / "stranger"


def untouched(folder: Path) -> bool:
    return (folder.parent / "precious.txt").read_text() == PRECIOUS


def test_a_lock_that_is_a_link_is_not_written_to(folder):
    (folder / ".lock").symlink_to("../precious.txt")
    with pytest.raises(FileFormatError, match="not a regular file"), locked(folder):
        pass
    assert untouched(folder)


def test_a_log_that_is_a_link_is_not_written_to(folder):
    (folder / "log.txt").symlink_to("../precious.txt")
    with pytest.raises(FileFormatError, match="not a regular file"):
        RunFolder(folder).log("resumed")
    assert untouched(folder)


def test_a_folder_of_observations_that_is_a_link_is_not_written_to(folder):
    (folder.parent / "home").mkdir()
    (folder / "observed").symlink_to("../home")
    with pytest.raises(FileFormatError, match="is a link"), RunFolder(folder).locked():
        pass


def journal(folder: Path, **line: object) -> None:
    lines = [{"sort": "2026-01-01"}, {"how": "move", "size": 1} | line, {"end": True}]
    (folder / JOURNAL).write_text("".join(json.dumps(one) + "\n" for one in lines))


@pytest.mark.parametrize("name", [".bashrc", "start.desktop", ".hidden.png", "run"])
def test_undoing_a_strangers_sorting_puts_no_program_anywhere(folder, name):
    (folder / "cat").mkdir()
    (folder / "cat" / "1.png").write_text("x")
    journal(folder, **{"from": str(folder.parent / name), "to": "cat/1.png"})
    (_, reason), *_ = undo(folder).kept
    assert not (folder.parent / name).exists() and (folder / "cat" / "1.png").exists() and "move it back yourself" in reason


def test_undoing_a_strangers_sorting_follows_no_link_out_of_the_folder(folder):
    (folder / "cat").symlink_to("..")
    (folder.parent / "copy.txt").write_text(PRECIOUS)
    journal(folder, **{"how": "copy", "from": str(folder.parent / "copy.txt"), "to": "cat/precious.txt", "size": 14})
    with pytest.raises(FileFormatError, match="line 2"):
        undo(folder)
    assert untouched(folder)


def zipped(
    change=lambda content: content, method: int = zipfile.ZIP_DEFLATED, names: tuple[str, ...] = ("manifest.json",)
) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as archive:
        for name in names:
            archive.writestr(name, "{}" * 500)
    return change(written.getvalue())


@pytest.mark.parametrize(
    "content",
    [
        zipped(lambda content: content.replace(content[43:60], b"\xff" * 17)),  # not a deflate stream
        zipped(method=zipfile.ZIP_LZMA),
        zipped(method=zipfile.ZIP_BZIP2),
        zipped(names=("manifest.json", "../classes-000001.safetensors")),
        zipped(names=("manifest.json", "/tmp/classes-000001.safetensors")),
        b"PK\x01\x02" * 2000,
    ],
    ids=["broken stream", "lzma", "bzip2", "parent", "absolute", "many entries"],
)
def test_a_strange_zip_file_is_refused(tmp_path, content):
    (tmp_path / "into").mkdir()
    with pytest.raises(FileFormatError):
        unpack(content, tmp_path / "into", 10_000_000)
    assert not any(path.suffix == ".safetensors" for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"version": ' + "9" * 5000 + "}", "\ud7ff{"], ids=["nested", "digits", "text"]
)
@pytest.mark.parametrize("read", [tensor_files.read, tensor_files.read_arrays, tensor_files.read_header])
def test_strange_metadata_of_tensors_are_damage(tmp_path, text, read):
    save_file({"x": np.zeros(1)}, tmp_path / "x.safetensors", {"amgc": text})
    with pytest.raises(FileFormatError, match="damaged"):
        read(tmp_path / "x.safetensors", "classifier")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has none")
def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # in the place of /dev/null, which the superuser could replace
    with pytest.raises(FileExistsError, match="is not replaced"):
        files.write_text(tmp_path / "pipe", "x")
    assert not (tmp_path / "pipe").is_file() and len(list(tmp_path.iterdir())) == 1


def test_names_cannot_control_the_terminal(capsys):
    say("no photo in a\x1b]0;title\x07b\x9b31m\nsecond line")
    assert capsys.readouterr().err == "amgc: no photo in a?]0;title?b?31m\nsecond line\n"


def test_names_are_no_formulas_in_csv(tmp_path, capsys, monkeypatch):
    from amgc.model import Model

    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    model = Model.create("model", "vectors")
    model.learn_all({"=1+1": random.normal(size=(20, 3)), "@b": random.normal(size=(20, 3)) + 9})
    np.save("new.npy", random.normal(size=(2, 3)))
    assert main(["predict", "model", "new.npy", "--csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[1][1] == "'=1+1"
