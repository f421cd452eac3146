"""A small finished run and a small model, each made once; tests damage copies of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from model.drawing import draw
from threads import one_thread as one_thread

from amgc.cli.main import main
from amgc.model import Model

RUN = ["run", "digits", "--classes", "0", "1", "2", "3", "--tasks", "2", "--method", "amgc-closed", "--features", "patches"]
RUN += ["--features.filters", "2", "--first.epochs", "0", "--quiet"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AMGC_DEBUG", raising=False)


@pytest.fixture(scope="session")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    assert main([*RUN, "--out", str(folder / "run")]) == 0
    model = Model.create(folder / "model", filters=2)
    model.learn_all({kind: draw(kind, 10) for kind in ("cat", "dog")})
    return folder


@pytest.fixture
def run(_made: Path, tmp_path: Path) -> Path:
    """A copy of a finished run with one method."""
    return Path(shutil.copytree(_made / "run", tmp_path / "run"))


@pytest.fixture
def model(_made: Path, tmp_path: Path) -> Path:
    """A copy of a model of two classes."""
    return Path(shutil.copytree(_made / "model", tmp_path / "model"))
