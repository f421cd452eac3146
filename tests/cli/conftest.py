from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.helpers import TINY
from threads import one_thread as one_thread

from amgc.cli.main import main
from amgc.cli.progress import Shown


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Create default folders in a temporary folder of the test."""
    monkeypatch.chdir(tmp_path)
    for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "AMGC_DEBUG", "AMGC_DATA", "AMGC_FOLDER", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str]], Path]:
    """Return a function that starts a run and stops it, as by Ctrl-C, after its first task."""

    def start(out: str, more: list[str]) -> Path:
        def end_task(self: Shown, *_: Any) -> None:
            self.stop = True

        with monkeypatch.context() as patch:
            patch.setattr(Shown, "end_task", end_task)
            assert main(["run", *TINY, "--out", out, *more]) == 130
        return Path(out)

    return start
