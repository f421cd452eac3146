"""`amgc serve MODEL`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import arg

from amgc.cli.errors import say
from amgc.cli.own_images import ModelFolder, count_text, open_or_create

NEEDED = ("fastapi", "uvicorn", "python_multipart")


@dataclass(frozen=True)
class Serve:
    """Serve a web page to teach a model, and an HTTP API (described at /openapi.json). A new MODEL is created.

    Only this machine has access, unless --host says otherwise; then every request needs a token.
    """

    model: ModelFolder
    host: Annotated[str, arg(metavar="ADDRESS", help="address to listen on; 0.0.0.0 for all of this machine")] = "127.0.0.1"
    port: Annotated[int, arg(metavar="INT", help="port to listen on; 0 for a free one")] = 8000
    token: Annotated[
        str | None,
        arg(metavar="TEXT", help="require this token (default: $AMGC_TOKEN; generated if other machines have access)"),
    ] = None
    features: Annotated[
        str | None,
        arg(
            metavar="NAME|FILE",
            help="for a new model: lite0, patches, resnet18, timm:NAME, or a file (default: by the first images)",
        ),
    ] = None
    max_upload: Annotated[int, arg(metavar="MB", help="maximum size of a request")] = 64
    max_pixels: Annotated[int, arg(metavar="MILLIONS", help="maximum number of pixels of an image")] = 50
    max_images: Annotated[int, arg(metavar="INT", help="maximum number of images in a request")] = 200
    rate: Annotated[int, arg(metavar="INT", help="maximum number of requests per minute of one client")] = 1200


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Serve, args=list(arguments), prog="amgc serve")
    check_installed()

    from amgc.serve.server import serve
    from amgc.serve.settings import Limits

    limits = Limits(given.max_upload, given.max_pixels, given.max_images, given.rate)
    model, _ = open_or_create(given.model, {"features": given.features})

    def started(address: str, generated: str | None) -> None:
        knows = f"has {count_text(len(model.classes), 'class')}" if model.classes else "has no classes yet"
        print(f"{given.model} {knows}. Teach it at {address}{f'/#token={generated}' if generated else ''}", flush=True)
        if generated:
            print(f"The token is {generated} (not shown again). Connections are not encrypted: see docs/serve.md.", flush=True)
        print("Press Ctrl-C to stop.", flush=True)

    with suppress(KeyboardInterrupt):  # uvicorn raises it again after closing, unless a shell's background job ignores it
        serve(model, given.host, given.port, given.token or os.environ.get("AMGC_TOKEN") or None, limits, started)
    say("stopped.")
    return 0


def check_installed() -> None:
    """Raise an error if a package of the extra `serve` is missing."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"amgc serve needs {', '.join(missing).replace('_', '-')}, which is not installed: pip install 'amgc[serve]'"
        )
