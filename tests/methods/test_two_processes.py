"""Methods that look beyond a batch's features (old networks, other views, gradients at images) do on two processes what they
do on one. The two are started by torchrun; tests/engine/test_processes.py has those that Fabric starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from once import once

import amgc
from amgc.data import Dataset
from amgc.engine.config import Config, Machine
from amgc.engine.processes import Processes
from amgc.engine.run import run
from amgc.methods import registry
from amgc.methods.contract import Phase, Task, TaskImages
from amgc.methods.lwf import LwF, LwFHyper
from amgc.methods.registry import find, methods

pytestmark = [pytest.mark.slow, pytest.mark.cpus]  # tests/engine/test_processes.py watches over the engine
FIXED = {"batchnorm": "fixed", "optimizer": "sgd"}
GENTLE = FIXED | {"batch_size": 5, "extractor_lr": 1e-3, "head_lr": 1e-3}
METHODS: dict[str, dict[str, Any]] = {
    "amgc": {},
    "ewc": {},
    "ewc-batch": {"hyper": {"fisher": "batch"}},
    "lwf": {},
    "ssre": {},
    "pass": {"first": GENTLE, "later": GENTLE},  # images are turned
    "il2a": {"first": GENTLE, "later": GENTLE},  # and mixed with images of the other process
    "sdc": {},  # an old network's features
    "adc": {},  # images are picked out and changed
    "ldc": {},  # a second stage, on augmented images
    "dpcr": {},
    "amgc-drift": {},
    "efc": {"first": GENTLE, "later": GENTLE},
    "efc++": {"first": GENTLE, "later": GENTLE},
    "adagauss": {"first": GENTLE, "later": GENTLE},  # and modules of its own
    "lwf-grouped": {"first": {"clip": 0.5}, "later": {"clip": 0.5}},  # and clipped gradients, with learning rates of its own
}


class Grouped(LwF[LwFHyper]):
    """LwF in which the first layer has another learning rate, and that notes a shuffled, augmented pass over the images."""

    remembers = (*LwF.remembers, "brightness")
    brightness = torch.zeros(0)

    def parameter_groups(self, phase: Phase, network: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": network[:2], "lr": 0.01}, {"params": network[2:]}, {"params": self.trainable(), "lr": 0.05}]

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        shown = [images.gather(batch.mean((1, 2, 3))) for batch, _ in images.batches(5, generator, augmented=True)]
        self.brightness = torch.cat([self.brightness, *shown])


@contextmanager
def registered(case: str) -> Iterator[None]:
    """Replace LwF by `Grouped` in its own case."""
    entries = dict(registry.METHODS.entries)
    if case == "lwf-grouped":
        registry.METHODS.entries["lwf"] = replace(find("lwf"), make=Grouped)
    try:
        yield
    finally:
        registry.METHODS.entries["lwf"] = entries["lwf"]


def images() -> Dataset:
    """The last task has one image, so that one process has none."""
    return tiny.images((9, 9, 9, 9, 1))


def config(case: str) -> Config:
    """For one process; torchrun's number of processes counts, not the config's."""
    changes = {"first": FIXED, "later": FIXED} | METHODS[case]
    method = case if case in methods() else case.partition("-")[0]
    return tiny.config(method, **changes, sizes=(2, 2, 1), natural_order=True, machine={"threads": 1})


def in_two_processes(root: Path) -> None:
    """What each of the two does."""
    for case in METHODS:
        with registered(case):
            run(config(case), root / case, dataset=images())
    processes = Processes(Machine(device="cpu"))
    torch.save(processes.count, root / f"count-{processes.fabric.global_rank}.pt")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "two of torchrun", launch)


def launch(root: Path) -> None:
    paths = [str(Path(tiny.__file__).parent), str(Path(__file__).parent), str(Path(amgc.__file__).parents[1])]
    script = root / "script.py"
    script.write_text(
        f"import sys; sys.path[:0] = {paths!r}\nfrom pathlib import Path\nimport test_two_processes\n"
        f"test_two_processes.in_two_processes(Path({str(root)!r}))\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    environment = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "WORLD_SIZE", "RANK")}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


def test_under_torchrun_its_processes_share_the_run(two: Path) -> None:
    assert [torch.load(two / f"count-{rank}.pt") for rank in (0, 1)] == [2, 2]


@pytest.mark.parametrize("case", METHODS)
def test_two_processes_give_the_same_but_for_rounding(case: str, two: Path, tmp_path: Path) -> None:
    with registered(case):
        run(config(case), tmp_path, dataset=images())
    (header, one), (others_header, other) = tiny.saved(tmp_path), tiny.saved(two / case)
    assert header["lines"][-1]["correct"] == others_header["lines"][-1]["correct"]
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        scale = float(tensor.abs().max()) if tensor.numel() else 0.0  # Fisher information is tiny
        torch.testing.assert_close(
            other[name], tensor, rtol=1e-3, atol=1e-4 * scale, msg=lambda text, name=name: f"{name}: {text}"
        )
