"""Running statistics against numpy's moments in float64, and their gradient against the formula written out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_close, few, tensor

from amgc.core.running import RunningStatistics

pytestmark = pytest.mark.cpus

CLASSES, DIM = 3, 4


def stream(seed: int, count: int, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, DIM)) @ rng.normal(size=(DIM, DIM)) + offset
    return features.astype(np.float32).astype(float), rng.integers(0, CLASSES, count)


def moments(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return count, mean and (1/n) covariance per class; zeros for a class without samples."""
    count, mean, covariance = np.zeros(CLASSES), np.zeros((CLASSES, DIM)), np.zeros((CLASSES, DIM, DIM))
    for k in range(CLASSES):
        rows = features[labels == k]
        count[k] = len(rows)
        if len(rows):
            mean[k] = rows.mean(0)
            covariance[k] = np.cov(rows.T, bias=True)
    return count, mean, covariance


@given(seed=st.integers(0, 1000), count=st.integers(1, 60), cuts=st.lists(st.integers(0, 60), max_size=8))
@few
def test_any_split_into_batches_gives_the_moments_of_all(seed: int, count: int, cuts: list[int]) -> None:
    features, labels = stream(seed, count)
    running = RunningStatistics(CLASSES, DIM)
    edges = [0, *sorted(min(cut, count) for cut in cuts), count]
    for start, stop in itertools.pairwise(edges):
        returned = running.update(tensor(features[start:stop]), torch.from_numpy(labels[start:stop]))
        assert torch.equal(returned, running.mean)
    expected_count, mean, covariance = moments(features, labels)
    assert running.count.tolist() == expected_count.tolist()
    size = max(1.0, np.abs(features).max())
    assert np.abs(running.mean.numpy() - mean).max() < 2e-6 * size
    assert np.abs(running.covariance.numpy() - covariance).max() < 1e-5 * size**2


def test_features_far_from_zero_lose_little() -> None:
    features, labels = stream(0, 300, offset=300.0)
    running = RunningStatistics(CLASSES, DIM)
    for start in range(0, 300, 32):
        running.update(tensor(features[start : start + 32]), torch.from_numpy(labels[start : start + 32]))
    assert_close(running.covariance, moments(features, labels)[2], 1e-3)


def test_reset_forgets_everything() -> None:
    features, labels = stream(1, 40)
    running, fresh = RunningStatistics(CLASSES, DIM), RunningStatistics(CLASSES, DIM)
    running.update(tensor(features[:20]), torch.from_numpy(labels[:20]))
    running.reset()
    assert all(not tensor.any() for tensor in running.tensors().values())
    for one in (running, fresh):
        one.update(tensor(features[20:]), torch.from_numpy(labels[20:]))
    assert all(torch.equal(running.tensors()[name], value) for name, value in fresh.tensors().items())


def test_a_class_of_one_sample_has_its_mean_and_no_spread() -> None:
    running = RunningStatistics(CLASSES, DIM)
    row = torch.randn(1, DIM)
    running.update(row, torch.tensor([1]))
    assert torch.equal(running.mean[1], row[0]) and not running.covariance.any()
    assert running.count.tolist() == [0, 1, 0] and not running.mean[[0, 2]].any()


# ---- the gradient ----------------------------------------------------------------------------------------------------------


def written_out(features: torch.Tensor, labels: np.ndarray, count: np.ndarray, mean: np.ndarray, decay: float) -> torch.Tensor:
    """Class by class: μ ← (1 - w) μ + w m, with m the batch's mean, w = max(n_b / (n + n_b), decay)."""
    rows = []
    for k in range(CLASSES):
        own = features[torch.from_numpy(labels == k)]
        if not len(own):
            rows.append(tensor(mean[k]))
            continue
        share = max(len(own) / (count[k] + len(own)), decay)
        rows.append((1 - share) * tensor(mean[k]) + share * own.sum(0) / len(own))
    return torch.stack(rows)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_mean_and_gradient_are_those_of_the_formula(decay: float) -> None:
    features, labels = stream(2, 33)
    labels[24:] = labels[24:] % 2  # class 2 is not in the last batch
    running = RunningStatistics(CLASSES, DIM, decay=decay)
    running.update(tensor(features[:13]), torch.from_numpy(labels[:13]))
    running.update(tensor(features[13:24]), torch.from_numpy(labels[13:24]))
    count, mean = running.count.double().numpy(), running.mean.double().numpy()
    pull = np.random.default_rng(3).normal(size=(CLASSES, DIM))
    given_rows = tensor(features[24:], torch.float32).requires_grad_()
    actual = running.update(given_rows, torch.from_numpy(labels[24:]))
    (actual * tensor(pull, torch.float32)).sum().backward()
    rows = tensor(features[24:]).requires_grad_()
    expected = written_out(rows, labels[24:], count, mean, decay)
    (expected * tensor(pull)).sum().backward()
    assert_close(actual, expected.detach(), 1e-6)
    assert_close(given_rows.grad, rows.grad, 1e-6)
    assert not running.mean.requires_grad and not running.covariance.requires_grad


def test_straight_through_has_the_running_mean_and_the_batch_means_gradient() -> None:
    features, labels = stream(4, 30)
    labels[20:] = labels[20:] % 2
    plain, straight = (RunningStatistics(CLASSES, DIM, gradient=kind) for kind in ("running", "straight_through"))
    for one in (plain, straight):
        one.update(tensor(features[:20]), torch.from_numpy(labels[:20]))
    value = plain.update(tensor(features[20:]), torch.from_numpy(labels[20:]))
    rows = tensor(features[20:], torch.float32).requires_grad_()
    actual = straight.update(rows, torch.from_numpy(labels[20:]))
    assert torch.equal(actual, value), "values do not differ"
    pull = np.random.default_rng(5).normal(size=(CLASSES, DIM))
    (actual * tensor(pull, torch.float32)).sum().backward()
    expected = [pull[label] / (labels[20:] == label).sum() for label in labels[20:]]
    assert_close(rows.grad, np.array(expected), 1e-6)


def test_decay_by_hand() -> None:
    """Batches of one and three samples. The second has a weight of 3/4 without decay, and of 0.9 with a decay of 0.9."""
    running = RunningStatistics(1, 1, decay=0.9)
    running.update(torch.tensor([[10.0]]), torch.tensor([0]))
    running.update(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 0]))
    assert running.mean.item() == pytest.approx(0.1 * 10 + 0.9 * 1)
    assert running.covariance.item() == pytest.approx(0.1 * 0 + 0.9 * (2 / 3) + 0.1 * 0.9 * (10 - 1) ** 2)
    assert running.count.item() == 4


def test_decay_weighs_a_batch_by_at_least_its_share_and_other_classes_stay() -> None:
    running = RunningStatistics(2, 1, decay=0.2)
    running.update(torch.tensor([[1.0], [5.0]]), torch.tensor([0, 1]))
    running.update(torch.tensor([[3.0]]), torch.tensor([0]))  # its share, a half, is larger than the decay
    assert running.mean.flatten().tolist() == [2.0, 5.0]
    for _ in range(9):
        running.update(torch.tensor([[2.0]]), torch.tensor([0]))
    before = running.mean.clone()
    running.update(torch.tensor([[7.0]]), torch.tensor([0]))  # its share, a twelfth, is smaller
    assert running.mean[0].item() == pytest.approx(0.8 * before[0].item() + 0.2 * 7)
    assert running.mean[1].item() == 5.0


# ---- files -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"decay": 0.3, "gradient": "straight_through"}])
def test_loaded_statistics_continue_as_the_saved_ones(options: dict[str, Any]) -> None:
    features, labels = stream(6, 40)
    running = RunningStatistics(CLASSES, DIM, **options)
    running.update(tensor(features[:20]), torch.from_numpy(labels[:20]))
    back = RunningStatistics.from_file(running.header(), {name: value.clone() for name, value in running.tensors().items()})
    for one in (running, back):
        one.update(tensor(features[20:]), torch.from_numpy(labels[20:]))
    assert back.header() == running.header()
    assert all(torch.equal(back.tensors()[name], value) for name, value in running.tensors().items())
