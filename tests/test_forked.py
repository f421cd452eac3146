"""The helper `forked`: errors in a process are reported."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("import warnings; warnings.warn('beware')", "UserWarning: beware"),
        ("raise SystemExit('no')", "no"),
        ("import os; print('dead', flush=True); os.kill(os.getpid(), 9)", "dead"),
    ],
)
def test_a_script_that_warns_or_fails_is_an_error(code: str, output: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(code)
    with pytest.raises(AssertionError, match=output):
        forked.script(Path("one.py"), folder=tmp_path)


def test_a_command_that_fails_is_an_error_and_what_others_print_is_returned(tmp_path: Path) -> None:
    assert "fast-digits" in forked.commands([["list", "presets"]], tmp_path, {})
    with pytest.raises(AssertionError, match="nowhere"):
        forked.commands([["list", "presets"], ["resume", "nowhere"]], tmp_path, {})
