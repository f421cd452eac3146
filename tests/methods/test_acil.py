from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import few
from streams import blocks, learned, together

from amgc.methods.acil import ACIL, ACILHyper

pytestmark = pytest.mark.cpus

STREAM = blocks((3, 1, 2, 2))
QUERIES = torch.rand(20, 6) * 5


def ridge(rows: np.ndarray, targets: np.ndarray, gamma: float = 0.1) -> np.ndarray:
    return np.linalg.solve(rows.T @ rows + gamma * np.eye(rows.shape[1]), rows.T @ targets)


def projected(method: ACIL, features: torch.Tensor) -> np.ndarray:
    return method.expanded(features).numpy()


def test_after_all_tasks_it_is_ridge_regression_on_all_data_together() -> None:
    ours = learned("acil", STREAM)
    features, labels = together(STREAM)
    expected = ridge(projected(ours, features).clip(0), np.eye(8)[labels.numpy()])
    np.testing.assert_allclose(ours.weight.numpy(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(ours.scores(QUERIES).numpy(), projected(ours, QUERIES).clip(0) @ expected, atol=1e-6)


EQUAL = blocks((2, 2, 2, 2))  # the random weights are drawn after task 1's head, and so depend on its size


@given(order=st.permutations(range(4)), batch=st.integers(1, 40))
@few
def test_the_order_of_tasks_and_the_size_of_batches_do_not_matter(order: list[int], batch: int) -> None:
    was = [label for task in order for label in (2 * task, 2 * task + 1)]
    place = torch.tensor([was.index(label) for label in range(8)])
    one = learned("acil", EQUAL).weight
    other = learned("acil", [(EQUAL[task][0], place[EQUAL[task][1]]) for task in order], batch=batch).weight
    torch.testing.assert_close(other, one[:, was], rtol=0, atol=1e-6 * float(one.abs().max()))


def test_the_gram_matrix_is_that_of_all_tasks() -> None:
    ours = learned("acil", STREAM)
    rows = projected(ours, together(STREAM)[0]).clip(0)
    np.testing.assert_allclose(ours.gram.numpy(), np.triu(rows.T @ rows), rtol=1e-12)


def test_a_ridge_that_is_lost_in_rounding_is_an_error() -> None:
    with pytest.raises(ValueError, match="increase it"):
        learned("acil", [(STREAM[0][0] * 1e9, STREAM[0][1])], gamma=1e-9)


def test_the_expansion_is_16_times_the_features_by_default() -> None:
    assert learned("acil", STREAM).gram.shape == (96, 96)
    assert learned("acil", STREAM, expansion=11).gram.shape == (11, 11)


def test_the_random_weights_are_a_linear_layers_and_come_from_the_seed() -> None:
    one, same, other = (learned("acil", STREAM[:1], seed=seed) for seed in (0, 0, 1))
    assert one._random is not None and same._random is not None and other._random is not None
    assert torch.equal(one._random, same._random) and not torch.equal(one._random, other._random)
    assert 0.9 / 6**0.5 < float(one._random.abs().max()) < 1 / 6**0.5
    assert not any(value.numel() == one._random.numel() for value in one.state().values() if isinstance(value, torch.Tensor))


def test_ds_al_fits_what_the_main_stream_leaves_over_of_new_classes() -> None:
    """Compute both streams of the last task in numpy."""
    ours, before = learned("ds-al", STREAM), learned("ds-al", STREAM[:-1])
    main = learned("acil", STREAM)
    assert torch.equal(ours.weight, main.weight)
    features, labels = STREAM[-1]
    raw = projected(ours, features)
    residual = np.eye(8)[labels.numpy()] - raw.clip(0) @ ours.weight.numpy()
    residual[:, :6] = 0
    upper = before.gram_comp.numpy()
    system = upper + np.triu(upper, 1).T + 0.1 * np.eye(96)
    old = np.concatenate([before.weight_comp.numpy(), np.zeros((96, 2))], 1)
    tanh = np.tanh(raw)
    expected = np.linalg.solve(system + tanh.T @ tanh, system @ old + tanh.T @ residual)
    np.testing.assert_allclose(ours.weight_comp.numpy(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    query = projected(ours, QUERIES)
    scores = query.clip(0) @ ours.weight.numpy() + 0.6 * np.tanh(query) @ expected
    np.testing.assert_allclose(ours.scores(QUERIES).numpy(), scores, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"gamma": 0.0}, {"gamma_comp": -1.0}, {"expansion": -1}, {"ratio": -0.1}])
def test_invalid_hyper_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        ACILHyper(**wrong)  # type: ignore[arg-type]
