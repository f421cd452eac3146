"""Bind, say where, and serve until Ctrl-C."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from amgc.model import Model
from amgc.serve.app import create_app
from amgc.serve.settings import LOCAL_NAMES, Limits, Settings, is_loopback
from amgc.serve.teacher import Teacher

SHORTEST = 16  # letters of a token
PATIENCE = 3  # seconds for requests that are being answered when the server is stopped
CONNECTIONS = 1000


def serve(
    model: Model, host: str, port: int, token: str | None, limits: Limits, said: Callable[[str, str | None], None]
) -> None:
    """Serve the model. `said` is told the address, and the token if one was made."""
    local = is_loopback(host)
    if token is not None and len(token) < SHORTEST:
        raise ValueError(f"the token has {len(token)} letters; take at least {SHORTEST}, or leave it out, and one is made.")
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        raise ValueError("the token has to be of printable ASCII, without spaces at its ends: browsers send no other.")
    made = secrets.token_urlsafe(24) if token is None and not local else None
    bound = bind(host, port)
    names = (*LOCAL_NAMES, in_url(host)) if local else None
    app = create_app(model, Settings(token or made, names, limits))
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # a client could name any address as its own
        server_header=False,
        ws="none",
        lifespan="on",
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
    )
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # what is wrong with a request is told to its sender
    with bound:
        said(address(host, bound.getsockname()[1]), made)
        Server(config, app.state.teacher).run(sockets=[bound])


class Server(uvicorn.Server):
    """One that gives up a lesson when it is stopped, and does not wait for its end."""

    def __init__(self, config: uvicorn.Config, teacher: Teacher) -> None:
        super().__init__(config)
        self.teacher = teacher

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.teacher.stop()
        super().handle_exit(sig, frame)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port {port} does not exist; choose one from 1 to 65535, or 0 for any that is free.")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ValueError(f"there is no address {host!r} ({error.strerror}); --host takes one of this machine.") from error
    bound = socket.socket(family, kind)
    try:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port is free again at once
        bound.bind(where)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        reason = {errno.EADDRINUSE: "another program uses it", errno.EACCES: "this user may not use it"}
        reason[errno.EADDRNOTAVAIL] = f"{host!r} is no address of this machine"
        why = reason.get(error.errno or 0, str(error))
        raise ValueError(f"port {port} of {host!r} cannot be had: {why}; choose another with --port or --host.") from error
    return bound


def address(host: str, port: int) -> str:
    """
    >>> address("127.0.0.1", 8000), address("::1", 8000), address("0.0.0.0", 80).startswith("http://")
    ('http://127.0.0.1:8000', 'http://[::1]:8000', True)
    """
    return f"http://{in_url(socket.gethostname() if host in ('0.0.0.0', '::') else host)}:{port}"


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
