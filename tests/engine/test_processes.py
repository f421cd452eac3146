"""Two processes compute what one does, up to rounding: gradients, running statistics, class statistics, head, metrics.

Everything that two processes are to do is done in one launch, `two_processes`; the tests then compare.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import amgc
from amgc.engine.config import Machine
from amgc.engine.processes import Processes
from amgc.engine.run import resume, run
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Task
from amgc.report import load_observed, load_run

# Batches of 5 and 4 are shared as 2 + 3 and 2 + 2; the last task has one image, so that one process has none.
# Without batch norm in training mode: that one normalises by its process's share.
COUNTS, SPLIT = (9, 9, 9, 9, 1), {"sizes": (2, 2, 1), "natural_order": True}
FIRST = {"batchnorm": "fixed", "batch_size": 5, "extractor_lr": 0.05}
LATER = {"batchnorm": "fixed", "batch_size": 5, "extractor_lr": 0.05, "head_lr": 0.05, "momentum": 0.9}
RUNS: dict[str, dict[str, Any]] = {
    "amgc": {"method": "amgc"},
    "straight through": {"method": "amgc", "hyper": {"mean_gradient": "straight_through", "reset": "task", "decay": 0.1}},
    "drawn": {"method": "sbgc", "hyper": {"new_samples": "pseudo"}},
    "finetune": {"method": "finetune"},
    "joint": {"method": "joint"},
    "solved": {"method": "amgc", "hyper": {"freeze": True}},
    "patches": {
        "method": "amgc",
        "hyper": {"freeze": True, "covariance": "shared", "margin": 0.0, "ridge": 0.01},
        "first": {"epochs": 0},
        "features": "patches",
        "features_options": {"filters": 4},
    },
    "frozen": {"method": "dblc", "later": LATER | {"extractor_lr": 0.0}},
    "adam": {"method": "finetune", "first": FIRST | {"optimizer": "adam", "extractor_lr": 1e-3}},
}


class StopInTask2(Watch):
    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.left = 6 if task.index == 1 and not done else 1000  # in the middle of the second epoch

    def wants_progress(self) -> bool:
        self.left -= 1
        self.stop = self.left == 0
        return False


def runs(root: Path, devices: int, names: Iterable[str] = RUNS) -> None:
    for name in names:
        changes = RUNS[name]
        config = tiny.config(**({"first": FIRST, "later": LATER} | changes), **SPLIT, machine={"devices": devices})
        run(config, root / name, dataset=tiny.images(COUNTS))


def all_runs(root: Path, devices: int) -> None:
    runs(root, devices)
    config = tiny.config(first=FIRST, later=LATER, **SPLIT, machine={"devices": devices})
    run(config, root / "vectors", dataset=tiny.vectors(COUNTS))
    with pytest.raises(Stopped):
        run(config, root / "stopped", StopInTask2(), tiny.images(COUNTS))


def in_two_processes(root: Path) -> None:
    """What each of the two does."""
    torch.set_num_threads(1)
    processes = Processes(Machine(device="cpu", devices=2, threads=1))
    rank = processes.fabric.global_rank
    torch.save(gradient_of_gathered_rows(processes, rank), root / f"gathered-{rank}.pt")
    all_runs(root, devices=2)


def in_two_processes_of_torchrun(root: Path) -> None:
    """Its number of processes counts, not the config's."""
    torch.set_num_threads(1)
    runs(root, devices=1, names=["amgc"])
    torch.save(Processes(Machine(device="cpu")).count, root / "count.pt")


def gradient_of_gathered_rows(processes: Processes, rank: int) -> dict[str, Any]:
    """Each process has some rows of one batch; the loss looks at all of them."""
    results: dict[str, Any] = {"count": processes.count, "share": processes.share(5), "empty": processes.share(1)}
    for sizes in ((2, 3), (0, 3), (4, 0)):
        whole = torch.arange(sum(sizes) * 2.0).view(-1, 2)
        start = sum(sizes[:rank])
        mine = whole[start : start + sizes[rank]].clone().requires_grad_()
        gathered = processes.gather(mine)
        (gathered.square() * torch.arange(1.0, sum(sizes) + 1)[:, None]).sum().backward()
        results[str(sizes)] = torch.equal(gathered, whole), mine.grad
    return results


# ---- the launches -------------------------------------------------------------------------------------------------


def launch(root: Path, function: str, with_torchrun: bool) -> None:
    script = root / "script.py"
    paths = [str(Path(__file__).parent), str(Path(tiny.__file__).parent), str(Path(amgc.__file__).parents[1])]
    script.write_text(
        f"import sys\nsys.path[:0] = {paths!r}\nfrom pathlib import Path\nimport test_processes\n"
        f"test_processes.{function}(Path({str(root)!r}))\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "WORLD_SIZE", "RANK")}
    environment |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"] if with_torchrun else []
    done = subprocess.run(
        [sys.executable, *torchrun, str(script)], env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fabric starts the second process."""
    root = tmp_path_factory.mktemp("two")
    launch(root, "in_two_processes", with_torchrun=False)
    return root


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("one")
    all_runs(root, devices=1)
    return root


def assert_near(one: Path, two: Path) -> None:
    (header, tensors), (others_header, others) = tiny.saved(one), tiny.saved(two)
    for line, other in zip(header["lines"], others_header["lines"], strict=True):
        assert line["losses"] == pytest.approx(other["losses"], rel=1e-3, abs=1e-5)
        assert {**line, "losses": 0} == {**other, "losses": 0}
    assert header["position"] == others_header["position"] and tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        error = (tensor.double() - others[name].double()).abs().max() if tensor.numel() else torch.zeros(())
        assert float(error) <= 1e-4 * max(1.0, float(tensor.double().abs().max() if tensor.numel() else 0)), name
    seen, others_seen = (load_observed(load_run(folder)) for folder in (one, two))
    for mine, others_own in zip(seen, others_seen, strict=True):
        assert mine.confusion == others_own.confusion
        assert numbers(mine) == pytest.approx(numbers(others_own), rel=1e-3, abs=1e-3)


def numbers(value: Any) -> list[float]:
    """All numbers of a dataclass, in order."""
    if is_dataclass(value):
        value = [getattr(value, f.name) for f in fields(value)]
    return [number for part in value for number in numbers(part)] if isinstance(value, list | tuple) else [value or 0.0]


@pytest.mark.parametrize("name", [*RUNS, "vectors"])
def test_two_processes_end_where_one_does(name: str, one: Path, two: Path) -> None:
    assert_near(one / name, two / name)


def test_two_processes_have_the_running_statistics_of_one(one: Path, two: Path) -> None:
    """In the middle of an epoch."""
    assert_near(one / "stopped", two / "stopped")
    counts = tiny.saved(two / "stopped")[1]["method/running/count"]
    assert counts.sum() == 10, "two batches of five in this epoch"


def test_one_process_goes_on_with_what_two_have_begun(one: Path, two: Path) -> None:
    resume(two / "stopped", dataset=tiny.images(COUNTS), devices=1)
    assert_near(one / "amgc", two / "stopped")


def test_under_torchrun_its_processes_share_the_run(one: Path, tmp_path: Path) -> None:
    launch(tmp_path, "in_two_processes_of_torchrun", with_torchrun=True)
    assert torch.load(tmp_path / "count.pt") == 2
    assert_near(one / "amgc", tmp_path / "amgc")


def test_gathered_rows_are_in_order_and_their_gradients_come_home(two: Path) -> None:
    """Twice the share's gradient: DDP then takes the mean over both."""
    ranks = [torch.load(two / f"gathered-{rank}.pt", weights_only=False) for rank in (0, 1)]
    assert [rank["count"] for rank in ranks] == [2, 2]
    assert [rank["share"] for rank in ranks] == [slice(0, 2), slice(2, 5)]
    assert [rank["empty"] for rank in ranks] == [slice(0, 0), slice(0, 1)]
    for sizes in ((2, 3), (0, 3), (4, 0)):
        whole = torch.arange(sum(sizes) * 2.0).view(-1, 2)
        gradient = 2 * whole * torch.arange(1.0, sum(sizes) + 1)[:, None]
        assert all(rank[str(sizes)][0] for rank in ranks)
        for mine, part in zip(ranks, gradient.split(sizes), strict=True):
            assert torch.equal(mine[str(sizes)][1], 2 * part)


# ---- one process --------------------------------------------------------------------------------------------------


def test_alone_a_process_gathers_its_own_rows_and_their_gradient() -> None:
    processes = Processes(Machine(device="cpu"))
    rows = torch.randn(3, 2, requires_grad=True)
    gathered = processes.gather(rows)
    gathered.square().sum().backward()
    assert torch.equal(gathered, rows) and torch.equal(rows.grad, 2 * rows.detach())
    assert (processes.count, processes.is_first, processes.share(7)) == (1, True, slice(0, 7))
