"""`amgc run folder:PATH`: what is decoded and when, and where pictures are looked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from amgc.cli.main import main
from amgc.data import cache, decode

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
    """Four classes of ten pictures in the working folder."""
    for shade, name in enumerate(("ant", "bee", "cat", "dog")):
        place = Path("pics", name)
        place.mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (20, 20), (60 * shade, 10 * number, 128)).save(place / f"{number}.png")
    return Path("pics")


def test_a_dry_run_reads_no_picture_writes_nothing_and_tells_what_would_be_decoded(own_cache, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(decode, "decode", lambda path, size: pytest.fail("read"))
        assert main(["run", "folder:pics", *SMALL, "--dry-run"]) == 0
        told = capsys.readouterr().out
        assert f"data: 40 images, decoded once into {own_cache / 'images'}: 31 KB of disk more" in told  # 40 × 3 × 16 × 16
        assert main(["run", "folder:pics", *SMALL, "--dry-run", "--data.cache", "False", "--data.on-corrupt", "skip"]) == 0
        assert "decoded once" not in capsys.readouterr().out
        assert main(["compare", "amgc", "--data", "folder:pics", *SMALL[:2], *SMALL[4:], "--dry-run"]) == 0
    assert list(own_cache.iterdir()) == [] and [path.name for path in Path().iterdir()] == ["pics"]


def test_a_dry_run_promises_what_the_run_promises(capsys):
    promised = []
    for flags in (["--dry-run"], []):
        assert main(["run", "folder:pics", *SMALL, *flags]) == 0
        promised.append(re.search(r"amgc: (.* training\)).*, (.*) of disk", capsys.readouterr().out).groups())
    assert promised[0] == promised[1]


def test_it_is_told_once_that_pictures_are_decoded_and_where(own_cache, capsys):
    assert main(["run", "folder:pics", *SMALL, "--out", "one"]) == 0
    assert f"decoding 40 images of {Path('pics').resolve()} into {own_cache}" in capsys.readouterr().err
    assert main(["run", "folder:pics", *SMALL, "--out", "two"]) == 0
    assert "decoding" not in capsys.readouterr().err
