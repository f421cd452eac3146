"""Serve one model with several processes: `amgc serve --workers N`. They share a port and follow changes of the folder."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from amgc.model import Model
from amgc.parent import end_with_parent
from amgc.serve.errors import LOG
from amgc.serve.guard import Limits
from amgc.serve.metrics import NAMES, Metrics

RESTART_SECONDS = 1.0  # between the end of a process and the start of another in its place
STOP_SECONDS = 10.0  # that processes may take to end


def serve_replicas(
    path: str,
    workers: int,
    bound: socket.socket,
    host: str,
    token: str | None,
    limits: Limits,
    log: bool,
    started: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM. A process that dies is replaced."""
    context = multiprocessing.get_context("spawn")
    table = context.RawArray("d", workers * len(NAMES))
    stopping = threading.Event()

    def begin(number: int) -> BaseProcess:
        process = context.Process(
            target=replica,
            args=(path, number, bound, host, token, limits, log, table),
            name=f"amgc-replica-{number}",
            daemon=True,
        )
        process.start()
        return process

    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    running = [begin(number) for number in range(workers)]
    started()
    try:
        while not stopping.wait(RESTART_SECONDS):
            for number, process in enumerate(running):
                if not process.is_alive():
                    LOG.error("worker %d ended (exit code %s) and is started again", number, process.exitcode)
                    running[number] = begin(number)
    finally:
        for process in running:
            process.terminate()  # uvicorn answers what it has begun
        for process in running:
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def replica(
    path: str, number: int, bound: socket.socket, host: str, token: str | None, limits: Limits, log: bool, table: Any
) -> None:
    """Answer requests for the model in a folder, in a process of its own."""
    from amgc.serve.server import listen, make_app

    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one stops the others
    app = make_app(Model.open(path), host, token, limits, Metrics(table, number), read_only=True, log=log)
    listen(app, bound)
