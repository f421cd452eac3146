"""IL2A against its definition: mixtures and their labels, semanAug as L_DB, auxiliary outputs, two processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from amgc.core.losses import distribution_loss
from amgc.engine.run import run
from amgc.engine.session import make_network
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Batch, Task
from amgc.methods.il2a import IL2A

pytestmark = pytest.mark.cpus


def begun(sizes: Sequence[int] = (3,), **changes: Any) -> IL2A:
    """Return IL2A at the beginning of the last of these tasks, with random statistics of the old classes."""
    config = tiny.config("il2a", **changes)
    made = IL2A(config.hyper, make_network(config, tiny.images()), torch.device("cpu"))
    draw, start = torch.Generator().manual_seed(0), 0
    for index, size in enumerate(sizes):
        made.task = Task(index, range(start, start + size))
        made.begin(made.task, draw)
        start += size
        if index < len(sizes) - 1:
            labels = torch.tensor(made.task.new).flip(0).repeat_interleave(12)
            rows = torch.randn(len(labels), tiny.DIM, generator=draw) * (1 + labels[:, None]) / 4 + labels[:, None]
            made.end(made.task, [(rows, labels)], torch.Generator())
    return made


def official_semantic_loss(made: IL2A, labels: Tensor, ratio: float, temperature: float) -> Tensor:
    """Compute the loss as the official code does, with an N × C × d tensor, but with each label's own covariance."""
    seen = len(made.task.seen)
    weight, bias = made.head.weight[:seen], made.head.bias[:seen]
    rows = [made.statistics.index(int(label)) for label in labels]
    mean, covariance = made.statistics.mean[rows].float(), made.statistics.covariance[rows]
    v = weight[None] - weight[labels][:, None]
    quadratic = torch.einsum("njd,nde,nje->nj", v, covariance, v)
    return cross_entropy((mean @ weight.T + bias + 0.5 * ratio * quadratic) / temperature, labels)


# ---- classAug ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(2,), (7,), (3, 5), (4, 1, 6)])
def test_labels_of_pairs_are_a_bijection_onto_the_auxiliary_outputs(sizes: tuple[int, ...]) -> None:
    made = begun(sizes)
    pairs = [(a, b) for a in made.task.new for b in made.task.new if a < b]
    one, other = torch.tensor(pairs).T
    labels = made.pair(one, other)
    assert labels.tolist() == list(range(len(made.task.seen), len(made.head))), "in order, each once, none left out"
    assert torch.equal(labels, made.pair(other, one))


@pytest.mark.parametrize("shape", [(2, 3, 5), (8,)])
def test_mixtures_lie_between_two_images_of_the_pair_that_their_label_names(shape: tuple[int, ...]) -> None:
    made = begun((2, 4))
    labels = torch.tensor([2, 3, 4, 5, 2, 3, 2])
    images = torch.randn(7, *shape, generator=torch.Generator().manual_seed(1))
    mixed, targets = made.views(images, labels, torch.Generator().manual_seed(2))
    assert torch.equal(mixed[:7], images) and torch.equal(targets[:7], labels)
    assert len(mixed) == len(targets) and 7 < len(mixed) <= 5 * 7
    names = {(a, b): int(made.pair(torch.tensor(a), torch.tensor(b))) for a in range(2, 6) for b in range(2, 6) if a != b}
    flat = images.flatten(1).double()
    for row, target in zip(mixed[7:], targets[7:], strict=True):
        shares = np.linalg.lstsq(flat.T.numpy(), row.flatten().double().numpy(), rcond=None)[0]
        used = np.flatnonzero(np.abs(shares) > 1e-4)
        assert len(used) == 2 and shares.sum() == pytest.approx(1, abs=1e-4)
        assert (np.abs(shares[used] - 0.5) < 0.1 + 1e-4).all()
        assert names[int(labels[used[0]]), int(labels[used[1]])] == int(target)


def test_a_pairing_gives_each_image_one_partner() -> None:
    """With one round the partners are a permutation, so mixtures and images that it leaves in place sum to all images."""
    made = begun((6,), hyper={"rounds": 1, "band": 0.0})  # all shares ½
    images = 2.0 ** torch.arange(6.0)[:, None]
    for seed in range(20):
        mixed, _ = made.views(images, torch.arange(6), torch.Generator().manual_seed(seed))
        left = int(images.sum() - mixed[6:].sum())  # a power of two for each image that was left in place
        assert 0 <= left < 64 and len(mixed) == 6 + 6 - bin(left).count("1")


def test_shares_are_beta_distributed_and_those_far_from_a_half_are_a_half() -> None:
    drawn = begun(hyper={"band": 1.0}).shares(50_000, torch.Generator().manual_seed(0))
    assert drawn.mean().item() == pytest.approx(0.5, abs=2e-3)
    assert drawn.var().item() == pytest.approx(1 / (4 * 41), rel=0.03), "of Beta(20, 20)"
    kept = begun().shares(50_000, torch.Generator().manual_seed(0))
    outside = (drawn < 0.4) | (drawn > 0.6)
    assert 0.1 < outside.float().mean() < 0.3
    assert bool((kept[outside] == 0.5).all()) and torch.equal(kept[~outside], drawn[~outside])


def test_the_same_generator_mixes_the_same() -> None:
    made, images, labels = begun(), torch.randn(9, 4), torch.arange(9) % 3
    one, other, another = (made.views(images, labels, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    assert one[0].shape != another[0].shape or not torch.equal(one[0], another[0])


def test_one_class_has_no_pairs() -> None:
    made = begun((2, 1))
    images = torch.randn(5, 4)
    mixed, labels = made.views(images, torch.full((5,), 2), torch.Generator())
    assert torch.equal(mixed, images) and labels.tolist() == [2] * 5
    assert len(made.head) == 3 and made.auxiliary == 0


# ---- semanAug ------------------------------------------------------------------------------------------------------------


def test_at_temperature_and_ratio_one_all_old_classes_once_are_the_distribution_loss() -> None:
    made = begun((3, 2), hyper={"temperature": 1.0, "ratio": 1.0})
    expected = distribution_loss(
        made.head.weight[:5],
        made.head.bias[:5],
        made.statistics.mean,
        made.statistics.covariance,
        targets=torch.tensor(made.statistics.classes),
    )
    assert made.semantic_loss(torch.arange(3)).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(("ratio", "temperature"), [(2.5, 0.1), (1.0, 1.0), (0.0, 0.5)])
def test_semantic_augmentation_is_the_published_one_with_each_class_s_own_covariance(ratio: float, temperature: float) -> None:
    """From the third task on the official code uses the covariance of another class. Values and gradients are compared."""
    made = begun((3, 2, 2), hyper={"ratio": ratio, "temperature": temperature})
    assert made.statistics.classes == [2, 1, 0, 4, 3]
    rows = torch.tensor([0, 3, 3, 1, 4, 2, 3])
    labels = torch.tensor(made.statistics.classes)[rows]
    ours, theirs = made.semantic_loss(rows), official_semantic_loss(made, labels, ratio, temperature)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4)
    trained = (made.head.weight, made.head.bias)
    for mine, other in zip(torch.autograd.grad(ours, trained), torch.autograd.grad(theirs, trained), strict=True):
        assert torch.allclose(mine, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))
        assert bool((mine[7:] == 0).all()), "auxiliary outputs have no part in it"


def test_the_loss_of_a_later_task_is_the_published_sum() -> None:
    made = begun((3, 2))
    assert made.old is not None
    draw = torch.Generator().manual_seed(4)
    images, labels = made.views(torch.randn(6, 1, 8, 8, generator=draw), torch.tensor([3, 4, 3, 3, 4, 4]), draw)
    old = made.network_copy()
    with torch.no_grad():
        for parameter in made.network.parameters():
            parameter += 0.01
    made.network.eval()
    batch = Batch(made.network(images), labels, draw, lambda other: other(images))
    start = draw.get_state()
    terms = made.loss(batch)
    draw.set_state(start)
    rows = torch.randint(3, (7,), generator=draw)
    semantic = official_semantic_loss(made, torch.tensor(made.statistics.classes)[rows], 2.5, 0.1)
    assert list(terms) == ["cross-entropy", "semantic", "distillation"]
    assert terms["cross-entropy"].item() == pytest.approx(
        cross_entropy(made.head(batch.features) / 0.1, labels).item(), rel=1e-6
    )
    assert terms["semantic"].item() == pytest.approx(10 * semantic.item(), rel=1e-4)
    frobenius = np.linalg.norm((batch.features - old(images)).detach().numpy())
    assert terms["distillation"].item() == pytest.approx(10 * frobenius, rel=1e-5) and frobenius > 0


# ---- auxiliary outputs ---------------------------------------------------------------------------------------------------


def test_auxiliary_outputs_are_gone_after_their_task_and_never_score(tmp_path: Path) -> None:
    class InTheMiddle(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 1

    config = tiny.config("il2a", sizes=(3, 3))
    with pytest.raises(Stopped):
        run(config, tmp_path / "stopped", InTheMiddle(), tiny.images())
    assert len(tiny.saved(tmp_path / "stopped")[1]["method/head.weight"]) == 6 + 3
    run(config, tmp_path / "whole", dataset=tiny.images())
    assert len(tiny.saved(tmp_path / "whole")[1]["method/head.weight"]) == 6
    made = begun((3, 3))
    assert len(made.head) == 9 and made.scores(torch.randn(2, tiny.DIM)).shape == (2, 6)


def test_old_outputs_stay_when_new_ones_come() -> None:
    made = begun((3,))
    made.end(made.task, [(torch.randn(6, tiny.DIM), torch.arange(6) % 3)], torch.Generator())
    before = made.head.weight.detach().clone()
    made.task = Task(1, range(3, 5))
    made.begin(made.task, torch.Generator().manual_seed(9))
    assert torch.equal(made.head.weight[:3], before) and len(made.head) == 5 + 1


def test_features_are_mixed_too(tmp_path: Path) -> None:
    lines = run(tiny.config("il2a"), tmp_path, dataset=tiny.vectors())
    assert set(lines[-1]["losses"]) == {"cross-entropy", "semantic"}


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"mixing": 0}, {"rounds": -1}, {"band": -0.1}])
def test_wrong_hyper_parameters_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tiny.config("il2a", hyper=wrong)
