"""`method` is each registered method and that of docs/add-a-method.md; `finished` is an uninterrupted run of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import documented
import pytest
import tiny
from threads import one_thread as one_thread
from tiny import FAMILIES

from amgc.engine.run import run
from amgc.methods import registry
from amgc.methods.registry import methods

NAMES = (*methods(), documented.NAME)


@pytest.fixture(params=[pytest.param(name, marks=() if name in FAMILIES else pytest.mark.slow) for name in NAMES])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == documented.NAME:
        monkeypatch.setitem(registry.METHODS.entries, documented.NAME, documented.entry())
    return str(request.param)


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def once(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("finished") / "run"
            run(tiny.config(name), folders[name], dataset=tiny.images())
        return folders[name]

    return once


@pytest.fixture
def finished(method: str, _finished: Callable[[str], Path]) -> Path:
    return _finished(method)
