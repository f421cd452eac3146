"""Measure the cost of fixing MKL's code path (MKL_CBWR), and of computing strided 1×1 convolutions safely.

    python benchmarks/kernels.py            # about two minutes; keep the machine otherwise idle
    python benchmarks/kernels.py --quick    # small problems, seconds
    python benchmarks/kernels.py --against COMMIT    # instead: the same jobs with the code of another commit

There is one process per setting, because MKL reads the variable when it starts. The processes take turns in each job, so that a
slow moment of the machine affects all of them. A ratio above 1 is slower than without the setting, or than this commit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _report import kept, side_by_side
from torch import nn

from amgc import ClassStatistics, distribution_loss, solve_head
from amgc.data import Images
from amgc.features import build

SETTINGS = ["unset", "AUTO", "AVX2", "COMPATIBLE"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--against", metavar="COMMIT", help="compare the code with that of another commit")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(jobs(arguments.quick))
        return
    if arguments.against:
        with kept("kernels_before"):
            compare_commits(arguments.against, arguments.quick)
        return
    with kept("kernels"):
        compare_settings(arguments.quick)
        compare_shortcuts(arguments.quick)


def jobs(quick: bool) -> dict[str, Callable[[], object]]:
    """Return the most expensive operations of amgc, by name."""
    torch.manual_seed(0)
    classes, dim, filters = (10, 16, 16) if quick else (100, 512, 400)
    weight, mean = torch.randn(classes, dim) / dim, torch.randn(classes, dim)
    rows = torch.randn(classes, 2 * dim, dim)
    covariance = rows.mT @ rows / (2 * dim)
    weight.requires_grad_()
    kept_classes = ClassStatistics(dim).update((rows + mean[:, None]).flatten(0, 1), [k for k in range(classes)] * (2 * dim))
    network, images = resnet(0.25), torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    patches = build("patches", image_shape=(3, 32, 32), filters=filters)
    pixels = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    patches.fit(
        Images.of(pixels, torch.zeros(64)), preprocess=lambda batch: batch / 255, generator=torch.Generator().manual_seed(0)
    )
    return {
        "db_loss: loss and gradient": lambda: distribution_loss(weight, weight[:, 0], mean, covariance).backward(),
        "solve: one head": lambda: solve_head(kept_classes),
        "train: a step of ResNet-18, width 0.25": lambda: network(images).square().sum().backward(),
        f"patches: 64 images, {filters} filters": lambda: patches(pixels / 255),
    }


def resnet(width: float) -> nn.Module:
    torch.manual_seed(0)
    network = build("resnet18", image_shape=(3, 32, 32), width=width, stem="cifar")
    return network.to(memory_format=torch.channels_last)


def work(todo: dict[str, Callable[[], object]]) -> None:
    """Run in a worker: print the names of the jobs, then time each requested one."""
    print(json.dumps(list(todo)), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        todo[json.loads(line)]()
        print(time.perf_counter() - start, flush=True)


def compare_settings(quick: bool) -> None:
    plain = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    settings = {name: plain | ({} if name == "unset" else {"MKL_CBWR": name}) for name in SETTINGS[: 2 if quick else None]}
    compare("MKL_CBWR", settings, 3 if quick else 12, quick)


def compare_commits(commit: str, quick: bool) -> None:
    root = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", root, "archive", commit, "src"], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        trees = {"this commit": root, commit: Path(folder)}
        places = {name: os.environ | {"PYTHONPATH": str(tree / "src")} for name, tree in trees.items()}
        compare("commit", places, 3 if quick else 21, quick)


def compare(what: str, environments: dict[str, dict[str, str]], turns: int, quick: bool) -> None:
    """Print the median seconds of each job in the first environment, and the ratios of the others to it."""
    command = [sys.executable, __file__, "--worker", *(["--quick"] if quick else [])]
    workers = {
        name: subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name, environment in environments.items()
    }
    for worker in workers.values():
        names = json.loads(worker.stdout.readline())  # each says the same, when it is ready
    first, *others = environments
    print(f"{what:42}{'seconds':>9}" + "".join(f"{name[:11]:>12}" for name in others))
    for job in names:
        taken: dict[str, list[float]] = {name: [] for name in environments}
        for turn in range(turns):
            for name, worker in workers.items():
                assert worker.stdin is not None and worker.stdout is not None
                print(json.dumps(job), file=worker.stdin, flush=True)
                seconds = float(worker.stdout.readline())
                if turn:  # the first warms up
                    taken[name].append(seconds)
        median = {name: statistics.median(times) for name, times in taken.items()}
        print(f"{job:42}{median[first]:>9.3f}" + "".join(f"{median[name] / median[first]:>11.2f}×" for name in others))
    for worker in workers.values():
        worker.communicate()


class Sliced(nn.Conv2d):
    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(maps[:, :, ::2, ::2], self.weight)


def compare_shortcuts(quick: bool) -> None:
    """Time a training step of ResNet-18 with torch's strided convolutions in its shortcuts, with ours and with slices."""
    from amgc.features.pointwise import StridedPointwise  # commits before it can be compared, too

    print(f"\n{'a training step, seconds':42}{'torch':>9}{'ours':>12}{'sliced':>12}")
    for width, count in ((0.25, 8),) if quick else ((0.25, 64), (1.0, 32)):
        images = torch.randn(count, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        steps: dict[str, Callable[[], object]] = {}
        for name, kind in (("torch", nn.Conv2d), ("ours", StridedPointwise), ("sliced", Sliced)):
            network = resnet(width)
            for layer in network.modules():
                if isinstance(layer, StridedPointwise):
                    layer.__class__ = kind
            steps[name] = lambda network=network, images=images: network(images).square().sum().backward()
        times = side_by_side(steps, 2 if quick else 15)
        print(
            f"{f'ResNet-18, width {width}, {count} images':42}{times['torch']:>9.3f}"
            + "".join(f"{times[name] / times['torch']:>11.2f}×" for name in ("ours", "sliced"))
        )


if __name__ == "__main__":
    main()
