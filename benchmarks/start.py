"""Time the start of the command line: help texts, the first training step of `amgc run`, the whole run, and short commands.

    python benchmarks/start.py            # about two minutes; keep the machine otherwise idle
    python benchmarks/start.py --quick    # some of them, once each

Wall-clock seconds from the start of the process, median and range of several runs, on digits with the default methods. The
first training step comes after the steps that are timed for the cost estimate. The short commands use a model of five classes,
ten drawn images each, with `lite0` (the extra `photos`); `fit` is that of 50 samples of 1,280 features, without imports.
"""

from __future__ import annotations

import argparse
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
# Prints the seconds of one fit; the first one, of other samples, loads the libraries.
FIT = """
import time
import numpy as np
from amgc import AMGCClassifier

rng = np.random.default_rng(0)
for count in (10, 50):
    labels = np.arange(count) % 5
    samples = rng.normal(size=(count, 1280)) + rng.normal(size=(5, 1280))[labels]
    start = time.perf_counter()
    AMGCClassifier().fit(samples, labels)
print(time.perf_counter() - start)
"""
AMGC = [sys.executable, "-m", "amgc"]
QUICK = ("amgc --help", "amgc info", "amgc predict, one image")


def seconds(command: list[str], model: Path | None = None) -> float:
    """Return the time of a command in an empty folder, or in one that holds a copy of `model` and an image."""
    with tempfile.TemporaryDirectory() as folder:
        if model is not None:
            shutil.copytree(model.parent, folder, dirs_exist_ok=True)
        start = time.perf_counter()
        told = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        return float(told) if FIT in command else time.perf_counter() - start


def make_model(folder: Path) -> Path:
    """Create a model `model` of five classes of ten images, and a new image `new.jpg` beside it."""
    from amgc import Model

    rng = np.random.default_rng(0)
    colours = rng.integers(40, 215, (5, 4, 4, 3))
    drawn = np.clip(colours[:, None] + rng.normal(0, 25, (5, 11, 4, 4, 3)), 0, 255).astype(np.uint8)
    images = [[Image.fromarray(one).resize((256, 256), Image.Resampling.BICUBIC) for one in own] for own in drawn]
    model = Model.create(folder / "model", "lite0")
    model.learn_all({f"class {number}": own[:10] for number, own in enumerate(images)})
    images[0][10].save(folder / "new.jpg")
    return model.path


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true")
    quick = arguments.parse_args().quick
    jobs: dict[str, tuple[list[str], int]] = {
        "amgc --help": ([*AMGC, "--help"], 20),
        "amgc run --help": ([*AMGC, "run", "--help"], 20),
        "amgc run, first training step": ([sys.executable, "-c", UNTIL_THE_FIRST_STEP, "run", "--quiet"], 7),
        "amgc run, all of it": ([*AMGC, "run"], 3),
        "amgc info": ([*AMGC, "info", "model"], 10),
        "amgc predict, one image": ([*AMGC, "predict", "model", "new.jpg"], 10),
        "amgc forget": ([*AMGC, "forget", "model", "class 0"], 10),
        "AMGCClassifier().fit, 50 x 1,280": ([sys.executable, "-c", FIT], 10),
    }
    with tempfile.TemporaryDirectory() as folder, kept("start"):
        model = make_model(Path(folder))
        for name, (command, rounds) in jobs.items():
            if quick and name not in QUICK:
                continue
            taken = [seconds(command, model if "model" in command else None) for _ in range(1 if quick else rounds)]
            print(f"  {name:32} {statistics.median(taken):6.2f} s ({min(taken):.2f} to {max(taken):.2f})", flush=True)


if __name__ == "__main__":
    main()
