"""`amgc serve MODEL`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from amgc.cli.errors import UsageError, say

NEEDED = ("fastapi", "uvicorn", "python_multipart")


@dataclass(frozen=True)
class Serve:
    """A page to teach a model in, and an HTTP interface (described at /openapi.json). A MODEL that does not exist is made.

    Only this machine can reach it, unless --host says otherwise; then every request needs a token.
    """

    model: Annotated[Positional[str], arg(metavar="MODEL", help="folder of the model")]
    host: Annotated[str, arg(metavar="ADDRESS", help="address to listen at; 0.0.0.0: all of this machine's")] = "127.0.0.1"
    port: Annotated[int, arg(metavar="INT", help="port to listen at; 0: any that is free")] = 8000
    token: Annotated[
        str | None,
        arg(metavar="TEXT", help="demand this token (default: $AMGC_TOKEN; beyond this machine one is made if there is none)"),
    ] = None
    features: Annotated[
        str | None, arg(metavar="NAME|FILE", help="for a new model: patches, resnet18, timm:NAME, or a file (default: patches)")
    ] = None
    max_upload: Annotated[int, arg(metavar="MB", help="size of a request")] = 64
    max_pixels: Annotated[int, arg(metavar="MILLIONS", help="pixels of a picture")] = 50
    max_images: Annotated[int, arg(metavar="INT", help="pictures in a request")] = 200
    rate: Annotated[int, arg(metavar="INT", help="requests a minute of one client")] = 1200


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(Serve, args=list(arguments), prog="amgc serve")
    check_installed()

    from amgc.model import Model
    from amgc.serve.server import serve
    from amgc.serve.settings import Limits

    limits = Limits(given.max_upload, given.max_pixels, given.max_images, given.rate)
    if (Path(given.model) / "manifest.json").is_file():
        if given.features is not None:
            raise UsageError(f"{given.model!r} is a model already; --features can only be chosen for a new one.")
        model = Model.open(given.model)
    else:
        model = Model.create(given.model, features=given.features or "patches")

    def said(address: str, made: str | None) -> None:
        count = len(model.classes)
        knows = "knows nothing yet" if not count else f"knows {count} class{'es' if count > 1 else ''}"
        print(f"{given.model} {knows}. Teach it at {address}{f'/#token={made}' if made else ''}", flush=True)
        if made:
            print(f"The token is {made} (not shown again). What is sent is not encrypted: docs/serve.md.", flush=True)
        print("Ctrl-C stops.", flush=True)

    with suppress(
        KeyboardInterrupt
    ):  # uvicorn passes it on when all is closed; started in the background, a shell lets it be ignored
        serve(model, given.host, given.port, given.token or os.environ.get("AMGC_TOKEN") or None, limits, said)
    say("stopped.")
    return 0


def check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"amgc serve needs {', '.join(missing).replace('_', '-')}, which is not installed: pip install 'amgc[serve]'"
        )
