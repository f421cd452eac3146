"""Small folders of image files. Each test has its own cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from amgc.data import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("AMGC_CACHE", str(folder))
    monkeypatch.setattr(cache, "SPARE", 0)  # the tests run on a nearly full disk as well
    return folder


@pytest.fixture
def paint() -> Callable[..., Path]:
    """Return paint(path, colour, size), which writes an image of one colour."""

    def write(path: Path, colour: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (16, 16)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, colour).save(path)
        return path

    return write
