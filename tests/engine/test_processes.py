"""Two processes give the result of one, up to rounding: gradients, running and class statistics, head, metrics.

All work of two processes is done in one launch, `two_processes`; the tests compare the results.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from once import once
from torch import nn

import amgc
from amgc import tensor_files
from amgc.engine.config import Machine
from amgc.engine.processes import Processes
from amgc.engine.run import resume, run
from amgc.engine.sharing import KIND as FIRST_KIND
from amgc.engine.watch import Stopped, Watch
from amgc.features import build
from amgc.methods.contract import Task
from amgc.runs import load_observed, load_run
from amgc.runs.folder import FIRST_TASK

pytestmark = pytest.mark.cpus

# Batches of 5 and 4 are shared as 2 + 3 and 2 + 2; the last task has one image, so that one process has none.
# Batch norm trains in task 1, as in every preset that trains a network.
COUNTS, SPLIT = (9, 9, 9, 9, 1), {"sizes": (2, 2, 1), "natural_order": True}
FIRST = {"batch_size": 5, "extractor_lr": 0.05}
LATER = {"batchnorm": "fixed", "batch_size": 5, "extractor_lr": 0.05, "head_lr": 0.05, "momentum": 0.9}
RUNS: dict[str, dict[str, Any]] = {
    "amgc": {"method": "amgc"},
    "straight through": {
        "method": "dbgc",
        "hyper": {"margin": 0.4, "mean_gradient": "straight_through", "reset": "task", "decay": 0.1},
    },
    "drawn": {"method": "sbgc", "hyper": {"new_samples": "pseudo"}},
    "drawn from factors": {"method": "sbgc", "hyper": {"covariance": "lowrank", "rank": 3}},
    "finetune": {"method": "finetune"},
    "joint": {"method": "joint"},
    "solved": {"method": "amgc-exact"},
    "patches": {
        "method": "amgc-closed",
        "hyper": {"ridge": 0.01},
        "first": {"epochs": 0},
        "features": "patches",
        "features_options": {"filters": 4},
    },
    "layers": {
        "method": "amgc-closed",
        "hyper": {"ridge": 0.01},
        "first": {"epochs": 0},
        "features": "layers",
        "features_options": {"filters": 4, "widths": (4,), "steps": 3, "networks": 2},
    },
    "frozen": {"method": "dblc", "later": LATER | {"extractor_lr": 0.0}},
    "batch norm in every task": {"method": "finetune", "later": LATER | {"batchnorm": "train"}},
    "an image each": {"method": "finetune", "first": FIRST | {"batch_size": 2}},
    "adam": {"method": "finetune", "first": FIRST | {"optimizer": "adam", "extractor_lr": 1e-3}},
}


class StopInTask2(Watch):
    def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
        self.left = 6 if task.index == 1 and not done else 1000  # in the middle of the second epoch

    def wants_progress(self) -> bool:
        self.left -= 1
        self.stop = self.left == 0
        return False


if "AMGC_CPUS" in os.environ:  # with other kernels, these stand for the others
    RUNS = {name: RUNS[name] for name in ("amgc", "drawn", "solved", "adam", "an image each")}


def all_runs(root: Path, devices: int) -> None:
    for name, changes in RUNS.items():
        config = tiny.config(**({"first": FIRST, "later": LATER} | changes), **SPLIT, machine={"devices": devices})
        run(config, root / name, dataset=tiny.images(COUNTS))
    config = tiny.config(first=FIRST, later=LATER, **SPLIT, machine={"devices": devices})
    run(config, root / "vectors", dataset=tiny.vectors(COUNTS))
    with pytest.raises(Stopped):
        run(config, root / "stopped", StopInTask2(), tiny.images(COUNTS))


def in_two_processes(root: Path) -> None:
    """Run in each of the two processes."""
    torch.set_num_threads(1)
    processes = Processes(Machine(device="cpu", devices=2, threads=1))
    rank = processes.fabric.global_rank
    torch.save(gradient_of_gathered_rows(processes, rank), root / f"gathered-{rank}.pt")
    norms = {case: shared_norm(processes, rank, *case) for case in itertools.product(NORMS, SIZES)}
    torch.save(norms, root / f"norms-{rank}.pt")
    torch.save(gradients_of_network(processes), root / f"network-{rank}.pt")
    torch.save(error_of_one_value(processes, rank), root / f"error-{rank}.pt")
    all_runs(root, devices=2)


def gradient_of_gathered_rows(processes: Processes, rank: int) -> dict[str, Any]:
    """Each process has some rows of one batch; the loss depends on all of them."""
    results: dict[str, Any] = {"count": processes.count, "share": processes.share(5), "empty": processes.share(1)}
    for sizes in SIZES:
        whole = torch.arange(sum(sizes) * 2.0).view(-1, 2)
        start = sum(sizes[:rank])
        mine = whole[start : start + sizes[rank]].clone().requires_grad_()
        gathered = processes.gather(mine)
        (gathered.square() * torch.arange(1.0, sum(sizes) + 1)[:, None]).sum().backward()
        results[str(sizes)] = torch.equal(gathered, whole), mine.grad
    return results


def shared_norm(processes: Processes, rank: int, name: str, sizes: tuple[int, int]) -> dict[str, Any]:
    """Train a batch norm on a batch and then evaluate it, each process with its rows."""
    norm, maps = NORMS[name](), batch_of(name, sum(sizes))
    start = sum(sizes[:rank])
    mine = maps[start : start + sizes[rank]].clone().requires_grad_()
    with processes.whole_batch_norm():
        out = norm(mine)
        mistakes(processes.gather(out)).backward()
        after = norm.eval()(mine.detach())
    return results_of(norm, mine, out) | {"after": after.detach()}


def batch_of(name: str, count: int) -> torch.Tensor:
    """Return values far from zero, where sums of squares would cancel, and which exceed half precision."""
    shape, dtype = ((count, 3) if "rows" in name else (count, 3, 2, 2)), dtype_of(name)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    return (values * 2 + (1 if dtype == torch.bfloat16 else 100)).to(dtype)


def dtype_of(name: str) -> torch.dtype:
    return torch.bfloat16 if "half" in name else torch.float64


def mistakes(out: torch.Tensor) -> torch.Tensor:
    """Return a loss that depends on all rows, on each in a different way."""
    wanted = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).sin().view(out.shape)
    return (out - wanted).pow(4).sum()


def results_of(norm: nn.Module, maps: torch.Tensor, out: torch.Tensor) -> dict[str, Any]:
    gradients = {name: parameter.grad for name, parameter in norm.named_parameters()}
    return {"out": out.detach(), "gradient": maps.grad, "gradients": gradients, "state": norm.state_dict()}


def error_of_one_value(processes: Processes, rank: int) -> str:
    with processes.whole_batch_norm(), pytest.raises(ValueError, match="more than 1 value") as error:
        nn.BatchNorm2d(3)(torch.ones(rank, 3, 1, 1))
    return str(error.value)


def gradients_of_network(processes: Processes) -> list[dict[str, torch.Tensor]]:
    """Return the gradients of three steps of the engine in float64, and the running moments; batches of 5, 2 and 1 images."""
    torch.manual_seed(0)
    network = build("resnet18", image_shape=(1, 16, 16), width=0.1, stem="cifar").double()
    learner: Any = processes.fabric.setup(network)
    found = []
    for count in (5, 2, 1):
        images = torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
        network.zero_grad()
        with processes.whole_batch_norm():
            features = learner(images[processes.share(count)])
        processes.fabric.backward(mistakes(processes.gather(features)))
        found.append({name: parameter.grad.clone() for name, parameter in network.named_parameters()})
    return [*found, dict(network.named_buffers())]


class NormAndActivation(nn.BatchNorm2d):
    """A batch norm as in timm, with its own forward method."""

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        scale = self.weight, self.bias
        out = nn.functional.batch_norm(maps, self.running_mean, self.running_var, *scale, self.training, 0.3, self.eps)
        return nn.functional.leaky_relu(out, inplace=True)


SIZES = ((2, 3), (1, 4), (0, 3), (4, 0))  # of the two processes' shares
NORMS: dict[str, Callable[[], nn.Module]] = {
    "maps": lambda: weighted(nn.BatchNorm2d(3).double()),
    "rows": lambda: weighted(nn.BatchNorm1d(3).double()),
    "cumulative moments": lambda: weighted(nn.BatchNorm2d(3, momentum=None).double()),
    "no scale": lambda: nn.BatchNorm2d(3, affine=False).double(),
    "no running moments": lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False).double(),
    "activation": lambda: weighted(NormAndActivation(3).double()),
    "half precision": lambda: weighted(nn.BatchNorm2d(3)),  # of the maps, as under autocast
}


def weighted(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        norm.bias.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    return norm


# ---- the launches -------------------------------------------------------------------------------------------------


def launch(root: Path) -> None:
    script = root / "script.py"
    paths = [str(Path(__file__).parent), str(Path(tiny.__file__).parent), str(Path(amgc.__file__).parents[1])]
    script.write_text(
        f"import sys\nsys.path[:0] = {paths!r}\nfrom pathlib import Path\nimport test_processes\n"
        f"test_processes.in_two_processes(Path({str(root)!r}))\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "WORLD_SIZE", "RANK")}
    environment |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fabric starts the second process."""
    return once(tmp_path_factory, "two", launch)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "one", lambda root: all_runs(root, devices=1))


def assert_near(one: Path, two: Path) -> None:
    (header, tensors), (others_header, others) = tiny.saved(one), tiny.saved(two)
    for line, other in zip(header["lines"], others_header["lines"], strict=True):
        assert line["losses"] == pytest.approx(other["losses"], rel=1e-3, abs=1e-5)
        assert {**line, "losses": 0} == {**other, "losses": 0}
    assert header["position"] == others_header["position"] and tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        mine, theirs = (part.double() for part in (tensor, others[name]))
        if name.endswith("/factor"):  # its columns have no sign
            mine, theirs = (part @ part.mT for part in (mine, theirs))
        error = (mine - theirs).abs().max() if tensor.numel() else torch.zeros(())
        assert float(error) <= 1e-4 * max(1.0, float(mine.abs().max() if tensor.numel() else 0)), name
    seen, others_seen = (load_observed(load_run(folder)) for folder in (one, two))
    for mine, others_own in zip(seen, others_seen, strict=True):
        assert mine.confusion == others_own.confusion
        assert numbers(mine) == pytest.approx(numbers(others_own), rel=1e-3, abs=1e-3)


def numbers(value: Any) -> list[float]:
    """Return all numbers of a dataclass, in order."""
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


def test_one_process_continues_what_two_have_begun(one: Path, two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "stopped", tmp_path / "stopped")
    resume(tmp_path / "stopped", dataset=tiny.images(COUNTS), devices=1)
    assert_near(one / "amgc", tmp_path / "stopped")


def test_gathered_rows_are_in_order_and_their_gradients_come_home(two: Path) -> None:
    """Gradients are twice those of the share, because DDP then averages over both processes."""
    ranks = [torch.load(two / f"gathered-{rank}.pt", weights_only=False) for rank in (0, 1)]
    assert [rank["count"] for rank in ranks] == [2, 2]
    assert [rank["share"] for rank in ranks] == [slice(0, 2), slice(2, 5)]
    assert [rank["empty"] for rank in ranks] == [slice(0, 0), slice(0, 1)]
    for sizes in SIZES:
        whole = torch.arange(sum(sizes) * 2.0).view(-1, 2)
        gradient = 2 * whole * torch.arange(1.0, sum(sizes) + 1)[:, None]
        assert all(rank[str(sizes)][0] for rank in ranks)
        for mine, part in zip(ranks, gradient.split(sizes), strict=True):
            assert torch.equal(mine[str(sizes)][1], 2 * part)


def test_task_1_leaves_the_weights_and_running_moments_of_one_process(one: Path, two: Path) -> None:
    """Up to float32 rounding. If shares were normalised separately, weights would differ by percents."""
    for name in ("amgc", "an image each"):
        (_, mine), (_, others) = (tensor_files.read(root / name / FIRST_TASK, FIRST_KIND) for root in (one, two))
        assert {"network/layers.1.running_mean", "network/layers.1.running_var"} < mine.keys() == others.keys()
        for key, tensor in mine.items():
            torch.testing.assert_close(others[key], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, at=key: f"{at}: {text}")


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_of_shares_is_that_of_the_whole(name: str, sizes: tuple[int, int], two: Path) -> None:
    """Gradients are twice those of the shares, because DDP then averages over both processes."""
    ranks = [torch.load(two / f"norms-{rank}.pt", weights_only=False)[name, sizes] for rank in (0, 1)]
    norm, maps = NORMS[name](), batch_of(name, sum(sizes)).requires_grad_()
    out = norm(maps)
    mistakes(out).backward()
    whole = results_of(norm, maps, out)
    near = {"rtol": 2e-2, "atol": 2e-2} if "half" in name else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(torch.cat([rank["out"] for rank in ranks]), whole["out"], **near)
    torch.testing.assert_close(torch.cat([rank["gradient"] for rank in ranks]) / 2, whole["gradient"], **near)
    for key, gradient in whole["gradients"].items():
        torch.testing.assert_close(sum(rank["gradients"][key] for rank in ranks) / 2, gradient, **near)
    for rank in ranks:
        torch.testing.assert_close(rank["state"], whole["state"], **near)
    torch.testing.assert_close(torch.cat([rank["after"] for rank in ranks]), norm.eval()(maps.detach()), **near)


def test_gradients_of_a_network_under_ddp_are_those_of_one_process(two: Path) -> None:
    whole = gradients_of_network(Processes(Machine(device="cpu")))
    for rank in (0, 1):
        torch.testing.assert_close(torch.load(two / f"network-{rank}.pt"), whole, rtol=1e-10, atol=1e-10)


def test_a_whole_batch_of_one_value_is_refused_by_all(two: Path) -> None:
    assert torch.load(two / "error-0.pt") == torch.load(two / "error-1.pt")


# ---- one process --------------------------------------------------------------------------------------------------


def test_alone_a_process_gathers_its_own_rows_and_their_gradient() -> None:
    processes = Processes(Machine(device="cpu"))
    rows = torch.randn(3, 2, requires_grad=True)
    gathered = processes.gather(rows)
    gathered.square().sum().backward()
    assert torch.equal(gathered, rows) and torch.equal(rows.grad, 2 * rows.detach())
    assert (processes.count, processes.is_first, processes.share(7)) == (1, True, slice(0, 7))


def test_alone_batch_norm_is_torchs() -> None:
    maps = torch.randn(4, 3, 2, 2)
    with Processes(Machine(device="cpu")).whole_batch_norm():
        out = nn.BatchNorm2d(3)(maps)
    assert torch.equal(out, nn.BatchNorm2d(3)(maps))
