"""Count the functions of amgc that one image passes through in `amgc run` and `amgc learn`.

A function counts if one of its arguments is the image or a batch with it: a path, bytes, a PIL image, uint8 pixels, or rows.
"""

from __future__ import annotations

import io
import sys
import tempfile
import threading
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from _report import kept
from PIL import Image

from amgc.cli.main import main

COUNT = 7  # images of a class; of two classes, a batch has 7 or 14 rows, and no other tensor has


def holds(value: Any, depth: int = 2) -> bool:
    if isinstance(value, torch.Tensor | np.ndarray):
        return str(value.dtype).endswith("uint8") or (value.ndim > 1 and len(value) in (COUNT, 2 * COUNT))
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    parts = [getattr(value, "__dict__", {}).get(name) for name in ("source", "pixels", "samples", "features")]
    path = isinstance(value, str | Path) and Path(value).suffix == ".bmp"
    deeper = depth > 0 and any(holds(one, depth - 1) for one in [*inside, *parts])
    return path or deeper or isinstance(value, bytes | Image.Image)


def functions(command: list[str]) -> set[str]:
    found: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code, name = frame.f_code, f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        if event == "call" and name.startswith("amgc.") and "<" not in name and name not in found:
            given = [frame.f_locals.get(each) for each in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
            found.update([name] if any(map(holds, given)) else [])

    threading.setprofile(watch)  # threads decode images
    sys.setprofile(watch)
    with redirect_stdout(io.StringIO()):
        main(command)
    sys.setprofile(None)
    return found


if __name__ == "__main__":
    with kept("hops"), tempfile.TemporaryDirectory() as folder:
        pixels, labels = np.random.default_rng(0).integers(0, 256, (2 * COUNT, 64, 64), np.uint8), np.repeat([0, 1], COUNT)
        np.savez(f"{folder}/data.npz", train_x=pixels, train_y=labels, test_x=pixels, test_y=labels)
        for number, label in enumerate(labels):
            Path(folder, "images", f"class {label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[number]).save(f"{folder}/images/class {label}/{number}.bmp")
        run = f"run npz:{folder}/data.npz --features convnet --tasks 2 --first.epochs 1 --later.epochs 1 --out {folder}/run"
        for command in (f"{run} --quiet", f"learn {folder}/model {folder}/images --quiet"):
            found = functions(command.split())
            modules = {name.rpartition(".")[0] for name in found}
            print(f"amgc {command.split()[0]}: {len(found)} functions in {len(modules)} modules")
            print("".join(f"  {name}\n" for name in sorted(found)))
