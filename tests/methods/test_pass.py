"""PASS against its definition: rotations, radius, prototypes, distillation."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch.nn.functional import cross_entropy

from amgc.engine.run import run
from amgc.engine.session import Identity, Session, make_network
from amgc.engine.training import rate
from amgc.engine.watch import Watch
from amgc.methods.contract import Batch, Task
from amgc.methods.pass_ import PASS
from amgc.methods.registry import find

pytestmark = pytest.mark.cpus


def begun(tasks: int = 1, shape: tuple[int, ...] = (1, 8, 8), **changes: Any) -> PASS:
    """Return PASS at the beginning of the last of `tasks` tasks with two classes each, on random images."""
    config = tiny.config("pass", **changes)
    made = PASS(config.hyper, make_network(config, tiny.images(shape=shape)), torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    for index in range(tasks):
        made.task = Task(index, range(2 * index, 2 * index + 2))
        made.begin(made.task, draw)
        if index < tasks - 1:
            labels = torch.tensor(made.task.new).repeat(6)
            made.end(made.task, [(torch.randn(12, tiny.DIM, generator=draw) + labels[:, None], labels)], draw)
    return made


def batch_of(made: PASS, through: Any = None) -> Batch:
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(5, 1, 8, 8, generator=draw)
    images, labels = made.views(images, torch.tensor(made.task.new)[[0, 1, 1, 0, 1]], draw)
    made.network.eval()
    return Batch(made.network(images), labels, draw, through or (lambda other: other(images)))


def test_each_turn_of_an_image_has_an_output_of_its_own_and_upright_ones_have_their_class() -> None:
    made = begun(2)  # classes 2 and 3 of 4 are new
    images = torch.arange(2 * 64.0).view(2, 1, 8, 8)
    turned, labels = made.views(images, torch.tensor([3, 2]), torch.Generator())
    assert labels.tolist() == [3, 4 + 9, 4 + 10, 4 + 11, 2, 4 + 6, 4 + 7, 4 + 8]
    for row in range(8):
        assert np.array_equal(turned[row, 0], np.rot90(images[row // 4, 0], row % 4))
    assert len(made.head) == 4 and len(made.turned) == 12


def test_the_classification_loss_is_that_of_the_official_head_of_outputs_4y_plus_turn() -> None:
    made = begun()
    batch = batch_of(made)
    weight, bias = torch.zeros(8, tiny.DIM), torch.zeros(8)
    for label in range(2):
        weight[4 * label], bias[4 * label] = made.head.weight[label], made.head.bias[label]
        weight[4 * label + 1 : 4 * label + 4] = made.turned.weight[3 * label : 3 * label + 3]
        bias[4 * label + 1 : 4 * label + 4] = made.turned.bias[3 * label : 3 * label + 3]
    targets = torch.tensor([4 * label + turn for label in (0, 1, 1, 0, 1) for turn in range(4)])
    expected = cross_entropy((batch.features @ weight.T + bias) / 0.1, targets)
    assert made.loss(batch)["cross-entropy"].item() == pytest.approx(expected.item(), rel=1e-5)
    scores = made.scores(batch.features)
    assert torch.allclose(scores, (batch.features @ weight.T + bias)[:, ::4], atol=1e-6)


@pytest.mark.parametrize(("radius", "classes"), [("first", 2), ("seen", 4)])
def test_the_radius_is_the_root_of_the_mean_variance(radius: str, classes: int) -> None:
    made = begun(hyper={"radius": radius})
    rows = torch.randn(20, tiny.DIM) * torch.arange(1.0, 21)[:, None]
    labels = torch.arange(20) % 4
    for task in (Task(0, range(2)), Task(1, range(2, 4))):
        own = (labels >= task.new.start) & (labels < task.new.stop)
        made.end(task, [(rows[own][:3], labels[own][:3]), (rows[own][3:], labels[own][3:])], torch.Generator())
    traces = [np.trace(np.cov(rows[labels == label].T.numpy())) / tiny.DIM for label in range(classes)]
    assert made.radius.item() == pytest.approx(np.sqrt(np.mean(traces)), rel=1e-5)
    for label in range(4):
        assert torch.allclose(made.means[label], rows[labels == label].mean(0), atol=1e-5)


@pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (1, 1)])
def test_a_step_draws_as_many_prototypes_as_a_batch_has_images(
    sizes: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with fewer old than new classes, where PyCIL draws none and its loss is NaN."""
    drawn, whole = [], PASS.pseudo_features

    def pseudo_features(self: PASS, generator: torch.Generator) -> Any:
        drawn.append(whole(self, generator))
        return drawn[-1]

    monkeypatch.setattr(PASS, "pseudo_features", pseudo_features)
    lines = run(tiny.config("pass", sizes=sizes), tmp_path, dataset=tiny.images((8,) * sum(sizes)))
    assert drawn and {len(labels) for _, labels in drawn} == {7}
    assert all(0 <= int(labels.min()) <= int(labels.max()) < sizes[0] for _, labels in drawn)
    assert np.isfinite(list(lines[1]["losses"].values())).all()


def test_prototypes_come_evenly_from_all_old_classes_with_noise_of_the_radius() -> None:
    made = begun(3, later={"batch_size": 40_000})
    drawn, labels = made.pseudo_features(torch.Generator().manual_seed(0))
    assert np.allclose(torch.bincount(labels) / 40_000, 0.25, atol=0.02)
    noise = drawn - made.means[labels]
    assert noise.std().item() == pytest.approx(made.radius.item(), rel=0.01) and abs(noise.mean().item()) < 0.01


def test_the_loss_of_a_later_task_is_the_published_sum() -> None:
    made = begun(2)
    assert made.old is not None
    with torch.no_grad():
        for parameter in made.network.parameters():
            parameter += 0.01
    batch = batch_of(made)
    start = batch.generator.get_state()
    terms = made.loss(batch)
    assert list(terms) == ["cross-entropy", "prototypes", "distillation"]
    batch.generator.set_state(start)
    drawn, labels = made.pseudo_features(batch.generator)
    expected = 10 * cross_entropy(torch.cat([made.head(drawn), made.turned(drawn)], 1) / 0.1, labels)
    assert terms["prototypes"].item() == pytest.approx(expected.item(), rel=1e-6)
    frobenius = np.linalg.norm((batch.features - batch.through(made.old)).detach().numpy())
    assert terms["distillation"].item() == pytest.approx(10 * frobenius, rel=1e-5) and frobenius > 0


def test_where_nothing_has_moved_the_distillation_has_a_gradient_of_zero() -> None:
    made = begun(2)
    terms = made.loss(batch_of(made))
    assert terms["distillation"].item() == 0
    terms["distillation"].backward()
    assert all(bool((p.grad == 0).all()) for p in made.network.parameters() if p.grad is not None)


def test_the_learning_rate_falls_at_epochs_44_and_89() -> None:
    """The official code steps its scheduler before the epoch."""
    phase = find("pass").hyper.later
    rates = [rate(phase, epoch) for epoch in range(phase.epochs)]
    assert len(rates) == 101 and [epoch for epoch in range(1, 101) if rates[epoch] < rates[epoch - 1]] == [44, 89]


@pytest.mark.parametrize("which", ["vectors", "not square", "frozen"])
def test_images_that_cannot_be_rotated_are_learned_as_they_are(which: str, tmp_path: Path) -> None:
    dataset = {"vectors": tiny.vectors(), "not square": tiny.images(shape=(1, 8, 6)), "frozen": tiny.images()}[which]
    frozen = {"extractor_lr": 0.0} if which == "frozen" else {}
    lines = run(tiny.config("pass", first=frozen, later=frozen), tmp_path, dataset=dataset)
    terms = {"cross-entropy", "prototypes"} | ({"distillation"} if which == "not square" else set())
    assert set(lines[-1]["losses"]) == terms
    assert len(tiny.saved(tmp_path)[1]["method/turned/weight"]) == 0


def test_after_tasks_that_were_not_turned_old_classes_get_outputs_for_their_turns(tmp_path: Path) -> None:
    run(tiny.config("pass", first={"epochs": 0}), tmp_path, dataset=tiny.images())
    assert tiny.saved(tmp_path)[1]["method/turned/weight"].shape == (18, tiny.DIM)


def test_turned_outputs_train_and_outlive_their_task(tmp_path: Path) -> None:
    config = tiny.config("pass")
    run(config, tmp_path, dataset=tiny.images())
    session = Session(config, tmp_path, Watch(), tiny.images())
    session.checkpoints.restore()
    made: Any = session.method
    assert len(made.turned) == 18 and len(made.head) == 6 and len(made.means) == 6 and len(made.variances) == 2
    fresh = copy.deepcopy(made)
    fresh.restore(made.state())
    assert torch.equal(fresh.turned.weight, made.turned.weight)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature must be positive"):
        tiny.config("pass", hyper={"temperature": 0.0})


def test_vectors_have_no_network_to_train() -> None:
    made = PASS(find("pass").hyper, Identity(4), torch.device("cpu"))
    assert not made.trains_network() and not made.turns
