"""Count the functions of amgc that one image passes through in `amgc run` and in `amgc learn`.

    python benchmarks/hops.py            # five seconds
    python benchmarks/hops.py --quick    # the same, without keeping the output

A function counts if one of its arguments is the image or a batch with it: its path, its encoded bytes, a PIL image, uint8
pixels, or as many rows of pixels or features as there are images, also inside of lists, dictionaries and the objects of amgc.
Functions that Python generates, such as the constructor of a dataclass, and comprehensions do not count. `amgc run` is on an
.npz file with `convnet`, one epoch in each of two tasks; `amgc learn` is on folders of image files. For another commit:
PYTHONPATH=ITS/src.
"""

from __future__ import annotations

import argparse
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
SIDE = 64  # pixels
INSIDE = ("source", "pixels", "samples", "features")  # attributes in which amgc's objects hold images


def holds_images(value: Any, depth: int = 2) -> bool:
    """Return whether a value is an image, a batch of images or of their features, or contains one."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return str(value.dtype).endswith("uint8") or (value.ndim > 1 and len(value) in (COUNT, 2 * COUNT))
    if isinstance(value, bytes):
        return value.startswith(b"BM")  # a BMP file
    if isinstance(value, Image.Image) or (isinstance(value, str | Path) and Path(value).suffix == ".bmp"):
        return True
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    parts = [getattr(value, "__dict__", {}).get(name) for name in INSIDE]
    return depth > 0 and any(holds_images(one, depth - 1) for one in [*inside, *parts])


def functions(command: list[str]) -> set[str]:
    """Return the functions that get an image while a command runs."""
    found: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code, name = frame.f_code, f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        own = (
            event == "call"
            and name.startswith("amgc.")
            and code.co_filename.endswith(".py")
            and "dataclasses" not in code.co_filename
        )
        if own and "<" not in name and name not in found:
            given = [frame.f_locals.get(each) for each in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
            found.update([name] if any(map(holds_images, given)) else [])

    threading.setprofile(watch)  # threads decode images
    sys.setprofile(watch)
    with redirect_stdout(io.StringIO()):
        main(command)
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="do not keep the output")
    parser.parse_args()
    with kept("hops"), tempfile.TemporaryDirectory() as folder:
        pixels = np.random.default_rng(0).integers(0, 256, (2 * COUNT, SIDE, SIDE), np.uint8)
        labels = np.repeat([0, 1], COUNT)
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
