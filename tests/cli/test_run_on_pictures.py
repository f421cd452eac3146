"""`amgc run folder:PATH`: which images are decoded and when, and where images are searched."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cli.helpers import figures
from in_process import Here
from PIL import Image

from amgc.cli import compare
from amgc.cli.main import main
from amgc.cli.progress import Shown
from amgc.data import cache, image_files
from amgc.engine import cost

SMALL = ["--tasks", "2", "--method", "amgc", "--features", "convnet", "--features.dim", "8", "--data.size", "16"]
SMALL += ["--first.epochs", "1", "--later.epochs", "1"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AMGC_CACHE", str(folder))
    monkeypatch.setattr(cache, "SPARE", 0)
    return folder


@pytest.fixture(autouse=True)
def pics() -> Path:
    """Write four classes of ten images to the working directory."""
    for shade, name in enumerate(("ant", "bee", "cat", "dog")):
        place = Path("pics", name)
        place.mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (20, 20), (60 * shade, 10 * number, 128)).save(place / f"{number}.png")
    return Path("pics")


def test_a_dry_run_reads_a_few_images_writes_nothing_and_reports_what_would_be_decoded(own_cache, monkeypatch, capsys):
    read: set[str] = set()
    whole = image_files.decode
    monkeypatch.setattr(image_files, "decode", lambda path, size: (read.add(path), whole(path, size))[1])
    monkeypatch.setattr(cost, "FORWARD", 4)
    few = [*SMALL, "--first.batch-size", "4", "--later.batch-size", "4"]
    Path("pics/ant/0.png").write_bytes(b"damaged")
    assert main(["run", "folder:pics", *few, "--dry-run"]) == 0
    output = capsys.readouterr().out
    place = f"decoded once into {own_cache / 'images'}, which takes 30.7 kB of disk"  # 40 × 3 × 16 × 16
    assert f"data: 40 images will be {place}" in output
    assert main(["run", "folder:pics", *few, "--dry-run", "--data.cache", "False", "--data.on-corrupt", "skip"]) == 0
    assert "decoded once" not in capsys.readouterr().out
    assert main(["compare", "amgc", "--data", "folder:pics", *few[:2], *few[4:], "--dry-run"]) == 0
    assert 0 < len(read) < 20, "half of the images are enough"
    assert list(own_cache.iterdir()) == [] and [path.name for path in Path().iterdir()] == ["pics"]


def test_a_dry_run_promises_what_the_run_promises(capsys):
    promised = []
    for flags in (["--dry-run"], []):
        assert main(["run", "folder:pics", *SMALL, *flags]) == 0
        promised.append(re.search(r"amgc: (.* training\)).*, (.*) of disk", capsys.readouterr().out).groups())
    assert promised[0] == promised[1]


def test_decoding_and_its_place_are_reported_once(own_cache, capsys):
    assert main(["run", "folder:pics", *SMALL, "--out", "one"]) == 0
    assert f"decoding 40 images of {Path('pics').resolve()} into {own_cache}" in capsys.readouterr().err
    assert main(["run", "folder:pics", *SMALL, "--out", "two"]) == 0
    assert "decoding" not in capsys.readouterr().err


def test_a_run_is_resumed_from_another_working_directory(monkeypatch):
    def end_task(self: Shown, *_: Any) -> None:
        self.stop = True

    with monkeypatch.context() as patch:
        patch.setattr(Shown, "end_task", end_task)
        assert main(["run", "folder:pics", *SMALL, "--feature-cache", "rows", "--out", "x"]) == 130
    config = json.loads(Path("x/run.json").read_text())["config"]
    assert (config["data"], config["machine"]["feature_cache"]) == (
        f"folder:{Path('pics').resolve()}",
        str(Path("rows").resolve()),
    )
    folder = Path("x").resolve()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert len(figures(folder)) == 2


def test_missing_images_are_reported_with_the_searched_place(monkeypatch, capsys):
    assert main(["run", "folder:nowhere", *SMALL]) == 2
    assert f"{str(Path('nowhere').resolve())!r} is missing" in capsys.readouterr().err
    assert main(["run", "npz:nowhere.npz"]) == 2
    assert str(Path("nowhere.npz").resolve()) in capsys.readouterr().err


def test_a_comparison_finds_runs_that_were_made_with_a_relative_path(monkeypatch):
    monkeypatch.setattr(compare, "make_executor", lambda *_: (Here(), 1))
    command = ["compare", "amgc", "--data", "folder:pics", *SMALL[:2], *SMALL[4:], "--out", "all"]
    assert main(command) == 0
    path = next(Path("all").glob("*/amgc/run.json"))
    old = path.read_text().replace(f"folder:{Path('pics').resolve()}", "folder:pics")
    path.write_text(old)
    before = path.stat().st_mtime_ns
    assert '"folder:pics"' in old and main(command) == 0 and path.stat().st_mtime_ns == before


@pytest.mark.parametrize("place", ["pics", "."])
def test_a_name_that_is_not_utf8_is_reported_before_anything_is_written(place, own_cache, pics, capsys):
    """The name of a class, or of the folder of all classes."""
    strange = Path(place, os.fsdecode(b"caf\xe9"))
    try:
        (pics / "ant" if place == "pics" else pics).rename(strange)
    except OSError:
        pytest.skip("this file system wants UTF-8")
    source = "pics" if place == "pics" else "link"
    if source == "link":
        Path("link").symlink_to(strange)
    assert main(["run", f"folder:{source}", *SMALL, "--out", "x"]) == 2
    output = capsys.readouterr().err
    assert "caf\\udce9' is not UTF-8" in output and "rename" in output
    assert not Path("x").exists() and list(own_cache.iterdir()) == []


def test_several_files_that_cannot_be_read_are_one_sentence(pics, capsys):
    for name in "01":
        (pics / "bee" / f"{name}.png").write_bytes(b"no picture")
    assert main(["run", "folder:pics", *SMALL]) == 1
    assert "; 2 of 40 files cannot be read, and this is the first); repair or remove it" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_decoding_is_interrupted_at_once_and_leaves_nothing_behind(workers, own_cache, monkeypatch, capsys):
    whole, count = image_files.decode, Counter()

    def interrupted(path: str, size: int) -> Any:
        count["decoded"] += 1
        if count["decoded"] == 3:
            signal.raise_signal(signal.SIGINT)
        elif count["decoded"] > 3:
            time.sleep(0.05)
        return whole(path, size)

    monkeypatch.setattr(image_files, "decode", interrupted)
    assert main(["run", "folder:pics", *SMALL, "--data.workers", workers, "--out", "x"]) == 130
    output = capsys.readouterr().err
    assert "amgc: stopping …" in output and output.endswith("Stopped; nothing was written.\n")
    assert count["decoded"] < 30 and not Path("x").exists()
    assert not [path for path in own_cache.rglob("*") if path.is_file()]
