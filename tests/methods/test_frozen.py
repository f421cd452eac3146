"""Methods that train nothing after task 1 do not, also where a preset says how later tasks are trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from amgc.engine.run import run

pytestmark = pytest.mark.cpus


@pytest.mark.parametrize("method", ["ncm", "lda", "fecam", "acil", "ds-al", "ranpac"])
def test_what_later_says_changes_nothing(method: str, tmp_path: Path) -> None:
    lines = run(tiny.config(method), tmp_path / "one", dataset=tiny.images())
    others = run(tiny.config(method, later={"epochs": 2, "head_lr": 0.5}), tmp_path / "other", dataset=tiny.images())
    assert tiny.untimed(lines) == tiny.untimed(others)
    tiny.assert_equal(tiny.saved(tmp_path / "one")[1], tiny.saved(tmp_path / "other")[1])
