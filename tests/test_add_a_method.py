"""docs/add-a-method.md: its code is short, runs, does what it says, and is worth it. `contract/` has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import documented
import numpy as np
import pytest
import tiny
import torch

from amgc.cli.main import main
from amgc.engine.run import run
from amgc.methods import registry
from amgc.methods.contract import PlainImages, Task
from amgc.report import find_runs


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_it_is_shorter_than_eighty_lines() -> None:
    assert len(documented.code().splitlines()) < 80


def test_on_digits_it_forgets_less_than_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    Path("sdc.py").write_text(documented.code())
    short = ["--first.epochs", "10", "--later.epochs", "5", "--quiet"]
    assert main(["run", "digits", "--method", "finetune", "sdc.py", *short]) == 0
    finetune, sdc = (next(r for r in find_runs(Path("runs/digits")) if r.method == name) for name in ("finetune", "sdc"))
    assert finetune.finished and sdc.finished
    assert sdc.metrics.last_accuracy > finetune.metrics.last_accuracy + 0.2
    assert sdc.metrics.first_task_accuracy[-1] > finetune.metrics.first_task_accuracy[-1] + 0.2


def test_an_old_mean_moves_as_the_new_images_near_it_did() -> None:
    """The paper's Eqs. (11) and (12), written out."""
    generator = torch.Generator().manual_seed(0)
    old, network = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    network.dim = 4  # type: ignore[assignment] # what an extractor has
    made: Any = documented.entry().kind(documented.entry().hyper, network, torch.device("cpu"))  # type: ignore[arg-type]
    images, labels = torch.randn(7, 3, generator=generator), torch.tensor([2] * 7)
    means = torch.nn.functional.normalize(torch.randn(2, 4, generator=generator))
    made.means, made.old = means, old
    made.collect(
        Task(1, range(2, 3)), PlainImages(lambda size: iter([(images[:5], labels[:5]), (images[5:], labels[5:])]), lambda x: x)
    )
    with torch.no_grad():
        before, after = (net(images).double().numpy() for net in (old, network))
    before, after = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (before, after))
    for mean, moved in zip(means.double().numpy(), made.means, strict=True):
        weights = np.array([np.exp(-((row - mean) ** 2).sum() / (2 * 0.3**2)) for row in before])
        drift = sum(w * (now - then) for w, now, then in zip(weights, after, before, strict=True)) / weights.sum()
        assert np.allclose(moved.numpy(), mean + drift, atol=1e-5)


def test_its_means_are_of_unit_features_and_no_copy_of_the_network_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._ENTRIES, documented.NAME, documented.entry())
    lines = run(tiny.config(documented.NAME), tmp_path, dataset=tiny.images())
    _, tensors = tiny.saved(tmp_path)
    assert tensors["method/means"].shape == (6, tiny.DIM) and lines[-1]["kept_bytes"] == 6 * tiny.DIM * 4
    assert set(lines[-1]["losses"]) == {"cross-entropy", "distillation"}
