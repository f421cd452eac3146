"""A process ends with the one that started it, also after kill -9."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import amgc

CODE = """
import multiprocessing, os, time
from amgc.parent import end_with_parent
def child():
    end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(600)
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=child).start()
    time.sleep(600)
"""


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    environment = os.environ | {"PYTHONPATH": str(Path(amgc.__file__).parents[1])}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + 60
    while _is_running(child):
        assert time.monotonic() < end, "the child is still there"
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")  # a zombie that nobody waits for has ended as well
    return not status.exists() or "State:\tZ" not in status.read_text()
