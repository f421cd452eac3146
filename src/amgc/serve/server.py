"""Bind to an address and serve until Ctrl-C."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI
from threadpoolctl import threadpool_limits

from amgc.model import Model
from amgc.serve.app import create_app
from amgc.serve.connections import MOST, Connection
from amgc.serve.guard import LOCAL_NAMES, Limits, Settings, is_loopback
from amgc.serve.metrics import Metrics, log_to_stderr
from amgc.serve.replicas import serve_replicas
from amgc.serve.update_queue import UpdateQueue

MIN_TOKEN_LENGTH = 16  # minimum number of characters of a token
SHUTDOWN_SECONDS = 3  # time for open requests to finish when the server is stopped
BACKLOG = 100  # connections that are accepted at a time, before those above the limit are closed
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # in glibc's malloc.h
OTHER_FILES = 200  # files that may be open besides connections


def serve(
    model: Model,
    host: str,
    port: int,
    token: str | None,
    limits: Limits,
    started: Callable[[str, str | None], None],
    workers: int = 0,
    log: bool = False,
    hold: int = 1,
) -> None:
    """Serve a model. `started` is called with the address, and the token if one was generated. `hold` is as in `Settings`.

    workers : number of processes that answer; unless it is 0, the model cannot be changed here. log : write a line for each
        request to stderr.
    """
    if token is not None and len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(
            f"the token has {len(token)} characters; use at least {MIN_TOKEN_LENGTH}, or omit it to have one generated."
        )
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise ValueError("the token must be printable ASCII without spaces at its ends; browsers cannot send other tokens.")
    if hold < 1:
        raise ValueError(f"hold must be at least 1, not {hold}.")
    if workers < 0:
        raise ValueError(f"workers must not be negative, but is {workers}.")
    generated = secrets.token_urlsafe(24) if token is None and not is_loopback(host) else None
    with bind(host, port) as bound:
        where = address(host, bound.getsockname()[1])
        if workers:
            ready = lambda: started(where, generated)  # noqa: E731
            path = os.path.abspath(model.path)
            serve_replicas(path, workers, bound, host, token or generated, limits, log, ready)
            return
        app = make_app(model, host, token or generated, limits, log=log, hold=hold)
        started(where, generated)
        listen(app, bound)


def make_app(
    model: Model,
    host: str,
    token: str | None,
    limits: Limits,
    metrics: Metrics | None = None,
    read_only: bool = False,
    log: bool = False,
    hold: int = 1,
) -> FastAPI:
    """Create the application for an address."""
    names = (*LOCAL_NAMES, in_url(host)) if is_loopback(host) else None
    if log:
        log_to_stderr()
    return create_app(model, Settings(token, names, limits, hold), metrics, read_only, log)


def listen(app: FastAPI, bound: socket.socket) -> None:
    """Answer requests until SIGINT, SIGTERM or SIGHUP. Requests that have begun are finished."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # a client could claim any address
        server_header=False,
        ws="none",
        lifespan="on",
        http=Connection,
        backlog=BACKLOG,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # the client gets the error
    allow_open_files(MOST + BACKLOG + OTHER_FILES)
    keep_freed_memory()
    threadpool_limits(1, user_api="blas")  # of numpy, for small products: threads that wait take time from those that encode
    end_like_sigterm()
    Server(config, app.state.updates).run(sockets=[bound])


class Server(uvicorn.Server):
    """A server that cancels the current update when it is stopped."""

    def __init__(self, config: uvicorn.Config, updates: UpdateQueue) -> None:
        super().__init__(config)
        self.updates = updates

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.updates.stop()
        super().handle_exit(sig, frame)


def end_like_sigterm() -> None:
    """Let SIGHUP, that of a closed terminal, stop the server as SIGTERM does, unless it is ignored, as under nohup."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def allow_open_files(count: int) -> None:
    """Raise the limit of open files to `count` if it is lower, as on macOS, where it is 256. Connections count as files."""
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count:
            most = count if hard == resource.RLIM_INFINITY else min(count, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def keep_freed_memory() -> None:
    """Let glibc reuse up to 256 MB of freed memory. Else the system zeroes its pages again for each layer of a network.

    It takes a third of the time of a single image, with `lite0`. Other libraries of C have no such function.
    """
    with suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port must be from 1 to 65535, or 0 for a free port; not {port}.")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ValueError(f"there is no address {host!r} ({error.strerror}); choose one of this machine with --host.") from error
    bound = socket.socket(family, kind, protocol)  # asyncio sets TCP_NODELAY only if the protocol is named
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port can be reused immediately
        bound.bind(where)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        reason = {errno.EADDRINUSE: "another program uses it", errno.EACCES: "permission denied"}
        reason[errno.EADDRNOTAVAIL] = f"{host!r} is not an address of this machine"
        why = reason.get(error.errno or 0, str(error))
        raise ValueError(f"cannot listen on port {port} of {host!r}: {why}; choose another with --port or --host.") from error
    return bound


def address(host: str, port: int) -> str:
    """Return the URL of the server.

    >>> address("127.0.0.1", 8000), address("::1", 8000), address("0.0.0.0", 80).startswith("http://")
    ('http://127.0.0.1:8000', 'http://[::1]:8000', True)
    """
    return f"http://{in_url(socket.gethostname() if host in ('0.0.0.0', '::') else host)}:{port}"


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
