"""`amgc serve MODEL`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Annotated

from tyro.conf import arg

from amgc.cli.errors import say
from amgc.cli.learn import open_or_create
from amgc.cli.own_images import ModelFolder
from amgc.text import plural


def serve(
    model: ModelFolder,
    host: Annotated[str, arg(metavar="ADDRESS", help="address to listen on; 0.0.0.0 for all addresses")] = "127.0.0.1",
    port: Annotated[int, arg(metavar="INT", help="port to listen on; 0 for any free port")] = 8000,
    token: Annotated[
        str | None,
        arg(metavar="TEXT", help="require this token (default: $AMGC_TOKEN; generated if other machines have access)"),
    ] = None,
    features: Annotated[
        str | None,
        arg(
            metavar="NAME|FILE",
            help="for a new model: lite0, patches, resnet18, timm:NAME, vectors, or a file (default: by the first images)",
        ),
    ] = None,
    max_upload: Annotated[int, arg(metavar="MB", help="maximum size of a request")] = 64,
    max_pixels: Annotated[int, arg(metavar="MILLIONS", help="maximum number of pixels of an image")] = 50,
    max_images: Annotated[int, arg(metavar="INT", help="maximum number of images in a request")] = 200,
    hold: Annotated[
        int,
        arg(
            metavar="INT",
            help="pictures of a class that are learned in memory only until there are so many, or the server stops; 1: write "
            "each lesson at once",
        ),
    ] = 5,
    rate: Annotated[int, arg(metavar="INT", help="maximum number of requests per minute of one client")] = 1200,
    workers: Annotated[
        int, arg(metavar="INT", help="number of read-only worker processes, which follow changes to the model's folder")
    ] = 0,
    log: Annotated[bool, arg(help="write a line of JSON for each request to stderr")] = False,
) -> None:
    """Serve a web page to teach a model, and an HTTP API (described at /openapi.json). A new MODEL is created.

    Only this machine has access, unless --host says otherwise; then every request needs a token.
    """
    try:
        from amgc.serve import server
        from amgc.serve.guard import Limits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"amgc serve needs {error.name}, which is not installed: pip install 'amgc[serve]'"
        ) from error

    limits = Limits(max_upload, max_pixels, max_images, rate)
    opened, _ = open_or_create(model, {"features": features})

    def started(address: str, generated: str | None) -> None:
        knows = f"has {plural(len(opened.classes), 'class')}" if opened.classes else "has no classes yet"
        print(
            f"{model} {knows}. {'Ask' if workers else 'Teach'} it at {address}{f'/#token={generated}' if generated else ''}",
            flush=True,
        )
        if generated:
            print(f"The token is {generated} (not shown again). Connections are not encrypted: see docs/serve.md.", flush=True)
        print("Press Ctrl-C to stop.", flush=True)

    with suppress(KeyboardInterrupt):  # uvicorn raises it again after closing, unless a shell's background job ignores it
        server.serve(opened, host, port, token or os.environ.get("AMGC_TOKEN") or None, limits, started, workers, log, hold)
    say("stopped.")
