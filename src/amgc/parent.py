"""End a process when the process that started it is killed. `kill -9` leaves a parent no time to end its children."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading


def end_with_parent() -> None:
    """Send SIGTERM to this process when its parent ends. On Linux only if `multiprocessing` did not start this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="amgc-parent", daemon=True).start()
    elif sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
