"""Images of three classes, a model that knows two of them, and a server in its own process."""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from amgc.model import Model

KINDS = {"grass": (60, 150, 50), "sea": (40, 90, 170), "brick": (170, 80, 60)}
BASE = "http://127.0.0.1:8000"


def pixels(kind: str, seed: int, side: int = 32) -> np.ndarray:
    """Return noise around the colour of a class, with horizontal or vertical bars."""
    rng = np.random.default_rng([seed, *kind.encode()])
    drawn = rng.normal(0, 18, (side, side, 3)) + np.array(KINDS.get(kind, (128, 128, 128)))
    wave = 30 * np.sin(np.arange(side) * (0.4 + 0.1 * rng.random()) + 6 * rng.random())
    drawn += wave[:, None, None] if kind == "sea" else wave[None, :, None]
    return drawn.clip(0, 255).astype(np.uint8)


def encoded(array: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def png(kind: str, seed: int, side: int = 32) -> bytes:
    return encoded(pixels(kind, seed, side))


def parts(*pictures: bytes) -> list[tuple[str, tuple[str, bytes, str]]]:
    """Return images as the parts of a request."""
    return [("images", (f"{number}.png", one, "image/png")) for number, one in enumerate(pictures, start=1)]


def taught(folder: Path) -> Model:
    """Return a copy of a model that has learned grass and sea from twelve images each."""
    shutil.copytree(_taught(), folder)
    return Model.open(folder)


@cache
def _taught() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="amgc-serving-"))
    atexit.register(shutil.rmtree, folder)
    model = Model.create(folder / "model", filters=8)
    model.learn_all({kind: [pixels(kind, seed) for seed in range(12)] for kind in ("grass", "sea")})
    return model.path


@dataclass
class Server:
    """A running server."""

    said: str  # its first line
    process: subprocess.Popen[str]

    @property
    def address(self) -> str:
        return self.said.split()[-1].partition("/#")[0]


@contextmanager
def server(
    folder: Path, *flags: str, home: Path, complaints: str = "", end: int = signal.SIGINT, **environment: str
) -> Iterator[Server]:
    """Run `amgc serve` on a free port in the folder `home`. It must stop without errors, but for lines like `complaints`."""
    command = [sys.executable, "-W", "error", "-m", "amgc", "serve", str(folder), "--port", "0", *flags]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    process = subprocess.Popen(command, cwd=home, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        said = process.stdout.readline().strip()
        assert "http://" in said, "".join(errors)
        yield Server(said, process)
    finally:
        if process.poll() is None:
            process.send_signal(end)
        process.wait(timeout=300)
        reader.join(timeout=60)
        process.stdout.close()
        process.stderr.close()
    harmless = ["(written, because the server stops,|lost) were .* in memory: .*", complaints]
    errors = [line for line in errors if not any(re.fullmatch(one, line.strip()) for one in harmless if one)]
    ended = (0, ["amgc: stopped.\n"]) if end == signal.SIGINT else (-signal.SIGTERM, [])  # uvicorn raises it again
    assert (process.returncode, errors) == ended, "".join(errors)
