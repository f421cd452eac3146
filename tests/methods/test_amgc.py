"""AMGC and its ablations: each loss against its formula in float64, gradients of the network, and the exact solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import scipy.linalg
import tiny
import torch
from reference import assert_close, cross_entropy, db_loss, tensor

from amgc.core import losses as losses_module
from amgc.data import Dataset, Images
from amgc.engine.config import Config
from amgc.engine.run import resume, run
from amgc.engine.session import Identity
from amgc.engine.watch import Stopped, Watch
from amgc.methods.amgc import AMGC
from amgc.methods.contract import Batch, Task
from amgc.methods.registry import find

pytestmark = pytest.mark.cpus

OLD, NEW, DIM = range(3), range(3, 5), 4


class World:
    """Statistics of three old classes, a batch of two new ones, and a head, all from one seed."""

    def __init__(self, name: str = "amgc", **hyper: Any) -> None:
        rng = np.random.default_rng(0)
        entry = find(name)
        self.hyper = replace(entry.hyper, **hyper)
        self.method: Any = entry.kind(self.hyper, Identity(DIM), torch.device("cpu"))
        self.old_rows = {k: self.draw(rng, 12 + k) for k in OLD}
        self.features, self.labels = np.concatenate([self.draw(rng, 9), self.draw(rng, 7)]), np.repeat(list(NEW), (9, 7))
        drawing = torch.Generator().manual_seed(0)
        first, self.task = Task(0, OLD), Task(1, NEW)
        self.method.task = first
        self.method.begin(first, drawing)
        labels = np.repeat(list(OLD), [len(rows) for rows in self.old_rows.values()])
        self.method.end(
            first,
            iter([(tensor(np.concatenate(list(self.old_rows.values())), torch.float32), torch.from_numpy(labels))]),
            drawing,
        )
        self.method.task = self.task
        self.method.begin(self.task, drawing)
        self.method.begin_epoch()
        self.weight, self.bias = 0.5 * rng.normal(size=(5, DIM)), rng.normal(size=5)
        self.method.head.set(tensor(self.weight, torch.float32), tensor(self.bias, torch.float32))
        self.rows = tensor(self.features, torch.float32).requires_grad_()

    @staticmethod
    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        rows = rng.normal(size=(count, DIM)) @ rng.normal(size=(DIM, DIM)) * 0.7 + rng.normal(size=DIM)
        return rows.astype(np.float32).astype(float)

    def batch(self) -> Batch:
        return Batch(
            self.rows, torch.from_numpy(self.labels), torch.Generator().manual_seed(9), lambda network: self.rows.detach()
        )

    def loss(self) -> dict[str, torch.Tensor]:
        terms: dict[str, torch.Tensor] = self.method.loss(self.batch())
        return terms

    # ---- the same by hand ----

    @property
    def old_moments(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([r.mean(0) for r in self.old_rows.values()]), np.array([np.cov(r.T) for r in self.old_rows.values()])

    @property
    def new_moments(self) -> tuple[np.ndarray, np.ndarray]:
        groups = [self.features[self.labels == k] for k in NEW]
        return np.array([g.mean(0) for g in groups]), np.array([np.cov(g.T, bias=True) for g in groups])

    def samples(self, rows: np.ndarray, labels: Any, among: range) -> float:
        chosen = list(among)
        scores = rows @ self.weight[chosen].T + self.bias[chosen]
        return float(np.mean([cross_entropy(score, chosen.index(k)) for score, k in zip(scores, labels, strict=True)]))

    def distribution(self, moments: tuple[np.ndarray, np.ndarray], targets: range, among: range, **more: Any) -> float:
        return db_loss(self.weight, self.bias, *moments, targets=targets, among=among, **more).value

    def drawn(self, moments: tuple[np.ndarray, np.ndarray], targets: range) -> tuple[np.ndarray, np.ndarray]:
        """Draw as many pseudo features as the batch has images, by symmetric roots and the noise of the batch's generator."""
        mean, covariance = moments
        count = -(-len(self.labels) // len(targets))
        noise = torch.randn(len(targets), count, DIM, generator=torch.Generator().manual_seed(9)).double().numpy()
        rows = [mean[k] + noise[k] @ scipy.linalg.sqrtm(covariance[k]).real for k in range(len(targets))]
        return np.concatenate(rows), np.repeat(list(targets), count)


ALL = range(5)
FORMULAS: dict[str, Callable[[World], tuple[float, float]]] = {  # new term, old term
    "sblc": lambda w: (w.samples(w.features, w.labels, NEW), w.samples(*w.drawn(w.old_moments, OLD), OLD)),
    "sbndbolc": lambda w: (w.samples(w.features, w.labels, NEW), w.distribution(w.old_moments, OLD, OLD)),
    "sbgc": lambda w: (w.samples(w.features, w.labels, ALL), w.samples(*w.drawn(w.old_moments, OLD), ALL)),
    "dblc": lambda w: (w.distribution(w.new_moments, NEW, NEW), w.distribution(w.old_moments, OLD, OLD)),
    "dbgc": lambda w: (w.distribution(w.new_moments, NEW, ALL), w.distribution(w.old_moments, OLD, ALL)),
    "dbgc-sm": lambda w: (
        w.distribution(w.new_moments, NEW, ALL),
        w.distribution(w.old_moments, OLD, ALL, soft_margin=1.0),
    ),
    "amgc": lambda w: (
        w.distribution(w.new_moments, NEW, ALL),
        w.distribution((w.old_moments[0], reference.enlarge(w.old_moments[1], 0.4)), OLD, ALL),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_loss_is_that_of_its_formula(name: str) -> None:
    world = World(name)
    terms = {term: value.item() for term, value in world.loss().items()}
    new, old = FORMULAS[name](world)
    assert terms == {"new": pytest.approx(new, rel=2e-5), "old": pytest.approx(old, rel=2e-5)}


def test_the_formulas_differ() -> None:
    """Otherwise the comparisons above could hold by accident."""
    values = np.array([FORMULAS[name](World(name)) for name in FORMULAS])
    assert len({round(float(value), 3) for value in values.sum(1)}) == len(FORMULAS)


def test_new_classes_can_be_drawn_from_their_running_statistics() -> None:
    world = World("sbgc", new_samples="pseudo")
    expected = world.samples(*world.drawn(world.new_moments, NEW), ALL)
    assert world.loss()["new"].item() == pytest.approx(expected, rel=2e-5)


def test_per_class_balance_gives_every_class_the_same_share() -> None:
    two_means, per_class = World().loss(), World(balance="per_class").loss()
    assert per_class["new"].item() == pytest.approx(2 / 5 * two_means["new"].item(), rel=1e-6)
    assert per_class["old"].item() == pytest.approx(3 / 5 * two_means["old"].item(), rel=1e-6)
    world = World()
    means, spreads = world.new_moments, (world.old_moments[0], reference.enlarge(world.old_moments[1], 0.4))
    together = [np.concatenate(pair) for pair in zip(spreads, means, strict=True)]
    whole = db_loss(world.weight, world.bias, *together).value
    assert sum(value.item() for value in per_class.values()) == pytest.approx(whole, rel=2e-5)


def test_a_class_that_is_not_in_the_batch_yet_has_no_part_in_the_loss() -> None:
    world = World()
    mean, covariance = (part[:1] for part in world.new_moments)
    world.rows, world.labels = world.rows[:9].detach(), world.labels[:9]
    expected = db_loss(world.weight, world.bias, mean, covariance, targets=[3]).value
    assert world.loss()["new"].item() == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_network_gets_no_gradient_from_the_old_term(name: str) -> None:
    world = World(name)
    terms = world.loss()
    assert torch.autograd.grad(terms["old"], world.rows, allow_unused=True, retain_graph=True) == (None,)
    assert torch.autograd.grad(terms["new"], world.rows)[0].abs().sum() > 0


def test_the_gradients_are_those_of_the_formula() -> None:
    """Both terms have gradients in the head, and the new term, through the means of the batch, in the features."""
    world = World()
    terms = world.loss()
    (terms["new"] + terms["old"]).backward()
    new = db_loss(world.weight, world.bias, *world.new_moments, targets=NEW)
    mean, covariance = world.old_moments
    old = db_loss(world.weight, world.bias, mean, reference.enlarge(covariance, 0.4), targets=OLD)
    assert_close(world.method.head.weight.grad, new.weight + old.weight, 2e-5)
    assert_close(world.method.head.bias.grad, new.bias + old.bias, 2e-5)
    each = [new.mean[k - NEW.start] / (world.labels == k).sum() for k in world.labels]
    assert_close(world.rows.grad, np.array(each), 2e-5)


@pytest.mark.parametrize("covariance", ["full", "lowrank", "diagonal", "shared"])
@pytest.mark.parametrize("kind", ["variances", "isotropic", "whole"])
def test_every_kind_of_enlarging_is_that_of_explicit_matrices(kind: str, covariance: str) -> None:
    plain = World("dbgc", covariance=covariance, rank=2)
    dense = reference.dense(plain.method.statistics.covariances, len(OLD))
    explicit = {
        "variances": [m + 0.3 * np.diag(np.diag(m)) for m in dense],
        "isotropic": [m + 0.3 * np.diag(m).mean() * np.eye(DIM) for m in dense],
        "whole": [1.3 * m for m in dense],
    }
    world = World("dbgc", covariance=covariance, rank=2, margin=0.3, enlarge=kind)
    actual = reference.dense(world.method.enlarged(world.method.statistics.covariances), len(OLD))
    assert_close(actual, np.array(explicit[kind]), 1e-6)
    assert world.method.enlarged(plain.method.statistics.covariances) is not plain.method.statistics.covariances
    expected = db_loss(world.weight, world.bias, world.old_moments[0], np.array(explicit[kind]), targets=OLD).value
    assert world.loss()["old"].item() == pytest.approx(expected, rel=2e-5)


def test_pseudo_features_have_the_classes_means_and_covariances(monkeypatch: pytest.MonkeyPatch) -> None:
    world, seen = World("sbgc", pseudo=20_000, margin=0.4), []
    whole = losses_module.sample_loss

    def record(weight: Any, bias: Any, features: torch.Tensor, targets: torch.Tensor, **more: Any) -> torch.Tensor:
        seen.append((features.detach(), targets))
        return whole(weight, bias, features, targets, **more)

    monkeypatch.setattr(losses_module, "sample_loss", record)
    world.method.old_loss(world.batch())
    features, targets = seen[0][0].double().numpy(), seen[0][1].numpy()
    assert np.bincount(targets).tolist() == [20_000] * 3
    for k, (mean, covariance) in enumerate(zip(*world.old_moments, strict=True)):
        dense = reference.enlarge(covariance[None], 0.4)[0]
        deviation = np.sqrt(np.diag(dense))
        rows = features[targets == k]
        assert (np.abs(rows.mean(0) - mean) < 5 * deviation / 20_000**0.5).all()
        assert (np.abs(np.cov(rows.T) - dense) < 5 * 2**0.5 * np.outer(deviation, deviation) / 20_000**0.5).all()


def test_running_statistics_are_reset_with_the_epoch_or_with_the_task() -> None:
    for reset, count in (("epoch", [9, 7]), ("task", [18, 14])):
        world = World("dbgc", reset=reset)
        for _ in range(2):
            world.method.begin_epoch()
            world.loss()
        assert world.method.running.count.tolist() == count


def test_the_old_rows_of_the_head_stay_or_are_drawn_again() -> None:
    for start, stays in (("keep", True), ("scratch", False)):
        world = World("dbgc", head_start=start)
        before = world.method.head.weight.detach().clone()
        world.method.begin(Task(2, range(5, 7)), torch.Generator().manual_seed(4))
        assert world.method.head.weight.shape == (7, DIM)
        assert torch.equal(world.method.head.weight[:5], before) == stays
        assert world.method.head.weight.detach().abs().max() <= max((3 / DIM) ** 0.5, float(before.abs().max()))


# ---- runs ------------------------------------------------------------------------------------------------------------------


def test_without_margin_amgc_is_bit_identical_to_dbgc(tmp_path: Path) -> None:
    run(tiny.config("amgc", hyper={"margin": 0.0}), tmp_path / "amgc", dataset=tiny.images())
    run(tiny.config("dbgc"), tmp_path / "dbgc", dataset=tiny.images())
    run(tiny.config("amgc"), tmp_path / "margin", dataset=tiny.images())
    amgc, dbgc, margin = (tiny.saved(tmp_path / name) for name in ("amgc", "dbgc", "margin"))
    tiny.assert_equal(amgc[1], dbgc[1])
    assert amgc[0]["lines"] == dbgc[0]["lines"]
    assert not tiny.identical(margin[1]["method/head.weight"], dbgc[1]["method/head.weight"])


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "lowrank": ("amgc", {"covariance": "lowrank", "rank": 3}),
    "diagonal": ("amgc", {"covariance": "diagonal"}),
    "shared": ("amgc", {"covariance": "shared"}),
    "cumulative": ("dbgc", {"margin": 0.4, "reset": "task", "mean_gradient": "straight_through", "decay": 0.2}),
    "drawn": ("dbgc", {"new_term": "samples", "new_samples": "pseudo", "old_term": "samples", "pseudo": 3}),
    "scratch": ("dbgc", {"margin": 0.4, "head_start": "scratch", "balance": "per_class", "enlarge": "isotropic"}),
    "solved": ("amgc-exact", {}),
    "solved, lowrank": ("amgc-exact", {"covariance": "lowrank", "rank": 3}),
    "closed form": ("amgc-closed", {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_with_every_option_a_resumed_run_ends_the_same(name: str, tmp_path: Path) -> None:
    class StopSoon(Watch):
        def __init__(self, task: int, steps: int) -> None:
            self.at, self.left = task, steps

        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.here = task.index == self.at
            self.stop = self.here and not steps

        def wants_progress(self) -> bool:
            self.left -= self.here
            self.stop = self.left == 0
            return False

    method, hyper = OPTIONS[name]
    config = tiny.config(method, hyper=hyper)
    run(config, tmp_path / "one", dataset=tiny.images())
    with pytest.raises(Stopped):
        run(config, tmp_path / "other", StopSoon(1, 2), tiny.images())
    with pytest.raises(Stopped):
        resume(tmp_path / "other", StopSoon(2, 5), tiny.images())
    resume(tmp_path / "other", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")


def overlapping(per_class: int = 400) -> Dataset:
    """Six overlapping classes of vectors, so that the optimum is finite and SGD reaches it."""
    rng, splits = np.random.default_rng(5), []
    means, roots = 1.3 * rng.normal(size=(6, DIM)), 0.6 * rng.normal(size=(6, DIM, DIM)) + 0.4 * np.eye(DIM)
    for count in (per_class, 200):
        rows = [means[k] + rng.normal(size=(count, DIM)) @ roots[k].T for k in range(6)]
        splits.append(Images.of(np.concatenate(rows).astype(np.float32), np.repeat(np.arange(6), count)))
    return Dataset(*splits, tuple("abcdef"), "overlapping")


@pytest.mark.slow
def test_the_exact_head_is_what_long_training_of_the_head_gives(tmp_path: Path) -> None:
    dataset, heads = overlapping(), []
    long = {
        "epochs": 900,
        "batch_size": 800,
        "extractor_lr": 0.0,
        "head_lr": 0.05,
        "schedule": "step",
        "milestones": (0.7, 0.9),
    }
    for name, changes in (("amgc-exact", {}), ("amgc", {"later": long})):
        run(tiny.config(name, natural_order=True, **changes), tmp_path / name, dataset=dataset)
        tensors = tiny.saved(tmp_path / name)[1]
        heads.append([tensors[f"method/head.{part}"].double().numpy() for part in ("weight", "bias")])
    predictions = [(dataset.test.take(torch.arange(1200)).double().numpy() @ w.T + b).argmax(1) for w, b in heads]
    assert np.mean(predictions[0] == predictions[1]) >= 0.995
    rows = [dataset.train.take(torch.arange(400 * k, 400 * (k + 1))).double().numpy() for k in range(6)]
    means, spreads = np.array([r.mean(0) for r in rows]), np.array([np.cov(r.T) for r in rows])
    spreads[:4] = reference.enlarge(spreads[:4], 0.4)
    shares = reference.class_shares([0, 0, 0, 0, 1, 1], "two_means")
    solved, trained = (db_loss(*head, means, spreads, class_weight=shares).value for head in heads)
    assert solved <= trained + 1e-6 and trained - solved < 1e-3
    least, _, _ = reference.minimise(means, spreads, shares)
    assert solved == pytest.approx(least, abs=1e-5)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2), (3,)])
@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("method", ["amgc-exact", "amgc-closed"])
def test_streams_of_every_shape_are_solved(method: str, sizes: tuple[int, ...], epochs: int, tmp_path: Path) -> None:
    """Also if the first task is not trained, as with a pretrained network."""
    config = tiny.config(method, sizes=sizes, first={"epochs": epochs})
    lines = run(config, tmp_path, dataset=tiny.images((8, 8, 8)))
    assert [len(line["correct"]) for line in lines] == np.cumsum(sizes).tolist()


def test_the_closed_form_is_half_of_lda(tmp_path: Path) -> None:
    """W = ½ Σ⁻¹ μ with the pooled covariance and the ridge, for any split into tasks."""
    dataset = overlapping()
    run(tiny.config("amgc-closed", natural_order=True, hyper={"ridge": 0.3}), tmp_path, dataset=dataset)
    weight = tiny.saved(tmp_path)[1]["method/head.weight"].double().numpy()
    rows = [dataset.train.take(torch.arange(400 * k, 400 * (k + 1))).double().numpy() for k in range(6)]
    means, pooled = np.array([r.mean(0) for r in rows]), np.mean([np.cov(r.T) for r in rows], 0)
    expected = np.linalg.solve(pooled + 0.3 * np.eye(DIM), (means - means.mean(0)).T).T / 2
    np.testing.assert_allclose(weight - weight.mean(0), expected, rtol=1e-4, atol=1e-5)


def test_a_config_made_in_python_is_the_closed_form() -> None:
    """One shared covariance, and a ridge chosen by leave-one-out, without settings of the command line."""
    config = Config("amgc-closed", find("amgc-closed").hyper)
    method = find(config.method).kind(config.hyper, Identity(DIM), torch.device("cpu"))
    assert method.statistics.form == "shared" and config.hyper.ridge is None


def test_a_checkpoint_waits_until_no_mean_is_that_of_one_image_of_several() -> None:
    world = World()
    method: AMGC = world.method
    several = [5] * len(method.running.count)
    assert method.may_save(several)
    for count, images, settled in ((1, 5, False), (2, 5, True), (1, 1, True)):
        method.running.reset()
        method.running.update(world.rows[:count].detach(), torch.zeros(count, dtype=torch.int64))
        assert method.may_save([images, *several[1:]]) == settled
