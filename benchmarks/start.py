"""Time the start of the command line: help texts, the first training step of `amgc run`, the whole run, and short commands.

    python benchmarks/start.py            # about three minutes; keep the machine otherwise idle
    python benchmarks/start.py --quick    # some of them, once each

Wall-clock seconds from the start of the process, median and range of several runs, and the median of CPU seconds. `amgc run`
is on digits with the default methods; the first training step comes after the steps that are timed for the cost estimate. The
short commands use a model of five classes, ten drawn images each, with `lite0` (the extra `photos`). A few images are predicted
without torch; "with torch" is what the same command takes if it imports it. `fit` is the first one of a process, of 50 samples
of 1,280 features, without and with the imports.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _report import kept
from PIL import Image

# Ends the process at the first optimiser step of `train`; those before it measure the cost.
UNTIL_THE_FIRST_STEP = """
import os, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
import amgc.engine.run as run
from amgc.cli.main import main

whole = run.train

def train(*arguments):
    register_optimizer_step_post_hook(lambda *_: os._exit(0))
    whole(*arguments)

run.train = train
sys.exit(main(sys.argv[1:]) or 3)
"""
# Fits once; prints the seconds of the fit alone.
FIT = """
import time
from amgc import AMGCClassifier
import numpy as np

rng = np.random.default_rng(0)
labels = np.arange(50) % 5
samples = rng.normal(size=(50, 1280)) + rng.normal(size=(5, 1280))[labels]
start, used = time.perf_counter(), time.process_time()
AMGCClassifier().fit(samples, labels)
print(time.perf_counter() - start, time.process_time() - used)
"""
WITH_TORCH = """
import sys
from amgc.cli.main import main
from amgc.model import predict

predict.MOST = 0
sys.exit(main(sys.argv[1:]))
"""
IMAGES = 32
AMGC = [sys.executable, "-m", "amgc"]
FIRST_FIT = "AMGCClassifier().fit, 50 x 1,280"
QUICK = ("amgc --help", "amgc info", "amgc predict, one image")


def seconds(command: list[str], model: Path | None, prints: bool) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of a command in an empty folder, or in a copy of the folder of `model`.

    prints : take the seconds that it prints.
    """
    with tempfile.TemporaryDirectory() as folder:
        if model is not None:
            shutil.copytree(model.parent, folder, dirs_exist_ok=True)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        told = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if prints:
            wall, used = map(float, told.split())
            return wall, used
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_model(folder: Path) -> Path:
    """Create a model `model` of five classes of ten images, and beside it new images: `new.jpg` and a folder `many`."""
    from amgc import Model

    rng = np.random.default_rng(0)
    colours = rng.integers(40, 215, (5, 4, 4, 3))
    drawn = np.clip(colours[:, None] + rng.normal(0, 25, (5, 11, 4, 4, 3)), 0, 255).astype(np.uint8)
    images = [[Image.fromarray(one).resize((256, 256), Image.Resampling.BICUBIC) for one in own] for own in drawn]
    model = Model.create(folder / "model", "lite0")
    model.learn_all({f"class {number}": own[:10] for number, own in enumerate(images)})
    images[0][10].save(folder / "new.jpg")
    (folder / "many").mkdir()
    for number in range(IMAGES):
        images[number % 5][number % 11].save(folder / "many" / f"{number}.jpg")
    return model.path


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true")
    quick = arguments.parse_args().quick
    fit = [sys.executable, "-c", FIT]
    torch = [sys.executable, "-c", WITH_TORCH]
    jobs: dict[str, tuple[list[str], int]] = {
        "amgc --help": ([*AMGC, "--help"], 10),
        "amgc run --help": ([*AMGC, "run", "--help"], 10),
        "amgc run, first training step": ([sys.executable, "-c", UNTIL_THE_FIRST_STEP, "run", "--quiet"], 7),
        "amgc run, all of it": ([*AMGC, "run"], 3),
        "amgc info": ([*AMGC, "info", "model"], 10),
        "amgc predict, one image": ([*AMGC, "predict", "model", "new.jpg"], 10),
        "one image, with torch": ([*torch, "predict", "model", "new.jpg"], 5),
        f"amgc predict, {IMAGES} images": ([*AMGC, "predict", "model", "many"], 3),
        f"{IMAGES} images, with torch": ([*torch, "predict", "model", "many"], 3),
        "amgc forget": ([*AMGC, "forget", "model", "class 0"], 10),
        FIRST_FIT: (fit, 7),
        "imports and fit": (fit, 5),
    }
    with tempfile.TemporaryDirectory() as folder, kept("start"):
        model = make_model(Path(folder))
        for name, (command, rounds) in jobs.items():
            if quick and name not in QUICK:
                continue
            beside = model if "model" in command else None
            taken = [seconds(command, beside, name == FIRST_FIT) for _ in range(1 if quick else rounds)]
            wall, used = zip(*taken, strict=True)
            print(
                f"  {name:32} {statistics.median(wall):6.2f} s ({min(wall):.2f} to {max(wall):.2f}), "
                f"CPU {statistics.median(used):6.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
