"""docs/add-a-method.md: its code is short and runs, its loss is the described one, and its idea helps. See also `contract/`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import documented
import numpy as np
import pytest
import tiny
import torch

import amgc
from amgc.cli.main import main
from amgc.engine.run import run
from amgc.methods import registry
from amgc.methods.contract import Task
from amgc.runs import Metrics, find_runs


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_it_is_shorter_than_eighty_lines() -> None:
    assert len(documented.code().splitlines()) < 80


def short_run(**changes: Any) -> Metrics:
    """Train the page's method on digits for half the preset's epochs or fewer."""
    Path("elwf.py").write_text(documented.code())
    settings: dict[str, Any] = {"first": {"epochs": 10}, "later": {"epochs": 20}, "seed": 0} | changes
    return amgc.run("digits", method="elwf.py", **settings)["elwf"].metrics


def test_on_digits_it_forgets_less_than_fine_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry.METHODS, "entries", {name: registry.find(name) for name in registry.methods()})
    Path("elwf.py").write_text(documented.code())
    short = ["--first.epochs", "10", "--later.epochs", "5", "--quiet"]
    assert main(["run", "digits", "--method", "finetune", "elwf.py", *short]) == 0
    finetune, elwf = (next(r for r in find_runs(Path("runs/digits")) if r.method == name) for name in ("finetune", "elwf"))
    assert finetune.finished and elwf.finished
    assert elwf.metrics.last_accuracy > finetune.metrics.last_accuracy + 0.2
    assert elwf.metrics.first_task_accuracy[-1] > finetune.metrics.first_task_accuracy[-1] + 0.2


@pytest.mark.slow
def test_its_distillation_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one seed; the page's table, by benchmarks/add_a_method.py, has more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry.METHODS, "entries", {name: registry.find(name) for name in registry.methods()})
    whole, without = short_run(), short_run(distillation=0.0)
    assert whole.last_accuracy > without.last_accuracy + 0.1
    assert whole.average_incremental_accuracy > without.average_incremental_accuracy + 0.02


def test_the_page_has_the_kept_figures() -> None:
    """The table is what benchmarks/add_a_method.py printed."""
    kept = (documented.PAGE.parents[1] / "benchmarks/results/add_a_method.txt").read_text()
    rows = re.findall(r"^  (\S.*?)  +([\d.]+ ± [\d.]+) +([\d.]+ ± [\d.]+)$", kept, flags=re.M)
    assert len(rows) == 3
    for name, la, aia in rows:
        assert f"| {name} | {la} | {aia} |" in documented.PAGE.read_text()


def test_the_loss_is_cross_entropy_and_the_squared_change_of_the_features() -> None:
    """Written out in numpy."""
    generator = torch.Generator().manual_seed(0)
    old, network = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    network.dim = 4  # type: ignore[assignment] # what an extractor has
    entry = documented.entry()
    made: Any = entry.kind(replace(entry.hyper, distillation=2.0), network, torch.device("cpu"))  # type: ignore[call-arg, arg-type]
    images, labels = torch.randn(7, 3, generator=generator), torch.tensor([2, 3, 2, 3, 2, 2, 3])
    made.task, made.old = Task(1, range(2, 4)), old
    made.head.set(torch.randn(4, 4, generator=generator), torch.zeros(4))
    features = network(images)
    terms = made.loss(SimpleNamespace(features=features, labels=labels, through=lambda other: other(images).detach()))
    with torch.no_grad():
        scores = (features @ made.head.weight.T).double().numpy()[:, 2:]
        before, after = (net(images).double().numpy() for net in (old, network))
    likelihood = np.exp(scores)[np.arange(7), labels.numpy() - 2] / np.exp(scores).sum(1)
    before, after = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (before, after))
    assert terms["cross-entropy"].item() == pytest.approx(-np.log(likelihood).mean(), rel=1e-5)
    assert terms["distillation"].item() == pytest.approx(2 * ((after - before) ** 2).sum(1).mean(), rel=1e-5)


def test_its_means_are_of_unit_features_and_no_copy_of_the_network_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.METHODS.entries, documented.NAME, documented.entry())
    lines = run(tiny.config(documented.NAME), tmp_path, dataset=tiny.images())
    _, tensors = tiny.saved(tmp_path)
    assert tensors["method/means"].shape == (6, tiny.DIM) and lines[-1]["kept_bytes"] == 6 * tiny.DIM * 4
    assert set(lines[-1]["losses"]) == {"cross-entropy", "distillation"}
