"""The lock of a folder: one holder at a time, whose process is named, and no stale lock."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amgc.locking import FolderBusyError, locked

HOLD = """
import sys, time
from pathlib import Path
from amgc.locking import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_process_waits_and_then_learns_who_holds_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        start = time.monotonic()
        with pytest.raises(FolderBusyError, match=rf"^process {os.getpid()} on .* \(since \d"), locked(tmp_path, 0.2):
            pass
        assert time.monotonic() - start >= 0.2
    with locked(tmp_path):
        pass


def test_a_holder_that_is_killed_holds_it_no_longer(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(FolderBusyError, match=f"process {holder.pid} "), locked(tmp_path):
            pass
        holder.kill()
    with locked(tmp_path):
        pass


def test_an_error_inside_is_passed_on_and_the_lock_is_free(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass
