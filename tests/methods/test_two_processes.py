"""Methods that use old networks or gradients of images give the same result with two processes as with one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from once import once

import amgc
from amgc.engine.config import Config
from amgc.engine.run import run

pytestmark = [pytest.mark.slow, pytest.mark.cpus]  # tests/engine/test_processes.py watches over the engine
METHODS = {"ewc": {}, "ewc-batch": {"fisher": "batch"}, "lwf": {}, "ssre": {}}


def config(case: str, devices: int) -> Config:
    """Return the config of a run. Batch norm is fixed, so that results differ only by rounding."""
    phase = {"batchnorm": "fixed", "optimizer": "sgd"}
    return tiny.config(
        case.partition("-")[0], first=phase, later=phase, hyper=METHODS[case], machine={"devices": devices, "threads": 1}
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "two of old networks", launch)


def launch(root: Path) -> None:
    paths = [str(Path(tiny.__file__).parent), str(Path(__file__).parent), str(Path(amgc.__file__).parents[1])]
    script = root / "script.py"
    script.write_text(
        f"import sys; sys.path[:0] = {paths!r}\n"
        "from pathlib import Path\n"
        "import tiny, test_two_processes as these\n"
        "from amgc.engine.run import run\n"
        f"for case in these.METHODS: run(these.config(case, 2), Path({str(root)!r}) / case, dataset=tiny.images())\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("case", METHODS)
def test_two_processes_give_the_same_up_to_rounding(case: str, two: Path, tmp_path: Path) -> None:
    run(config(case, 1), tmp_path, dataset=tiny.images())
    (_, one), (_, other) = tiny.saved(tmp_path), tiny.saved(two / case)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        scale = float(tensor.abs().max()) if tensor.numel() else 0.0  # Fisher information is tiny
        torch.testing.assert_close(
            other[name], tensor, rtol=1e-3, atol=1e-4 * scale, msg=lambda text, name=name: f"{name}: {text}"
        )
