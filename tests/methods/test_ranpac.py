from __future__ import annotations

import numpy as np
import pytest
import torch
from streams import blocks, learned, together

from amgc.methods import ranpac
from amgc.methods.ranpac import RanPACHyper

pytestmark = pytest.mark.cpus

STREAM = blocks((3, 1, 2))
QUERIES = torch.rand(20, 6) * 5


def test_it_is_ridge_regression_on_all_data_together_with_the_last_ridge() -> None:
    ours = learned("ranpac", STREAM, ridges=(0.1, 1.0, 10.0))
    features, labels = together(STREAM)
    rows = ours.expanded(features).numpy()
    expected = np.linalg.solve(rows.T @ rows + ours.ridge * np.eye(120), rows.T @ np.eye(6)[labels.numpy()])
    np.testing.assert_allclose(ours.weight.numpy(), expected, rtol=0, atol=1e-8 * np.abs(expected).max())
    np.testing.assert_allclose(ours.scores(QUERIES).numpy(), ours.expanded(QUERIES).numpy() @ expected, atol=1e-6)


@pytest.mark.parametrize("projections", [10, 120])  # fewer than training rows, and more
def test_the_ridge_is_the_one_with_the_least_error_on_the_holdout(projections: int) -> None:
    """Solve each candidate by numpy on 80 % of the last task's rows and compute its error on the others."""
    ours = learned("ranpac", STREAM, projections=projections)
    features, labels = STREAM[-1]
    rows, targets = ours.expanded(features).numpy(), np.eye(2)[labels.numpy() - 4]
    order = torch.randperm(24, generator=torch.Generator().manual_seed(ours.seed + 3)).numpy()
    train, held = order[:19], order[19:]
    errors = []
    for power in range(-8, 9):
        system = rows[train].T @ rows[train] + 10.0**power * np.eye(projections)
        errors.append(np.square(rows[held] @ np.linalg.solve(system, rows[train].T @ targets[train]) - targets[held]).mean())
    chosen = ours.hyper.ridges.index(ours.ridge)
    assert errors[chosen] <= min(errors) * (1 + 1e-4)


@pytest.mark.parametrize("coarse", [1e-3, 0.0])  # factors in float64, and in float32
def test_many_random_features_give_the_same_but_for_rounding_to_float32(coarse: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ridges = {"ridges": (1e2, 1e3, 1e4)}
    exact = learned("ranpac", STREAM, **ridges)
    monkeypatch.setattr(ranpac, "DOUBLE_UP_TO", 0)
    monkeypatch.setattr(ranpac, "COARSE", coarse)
    rounded = learned("ranpac", STREAM, **ridges)
    assert rounded.expanded(QUERIES).dtype == torch.float32 and rounded.gram.dtype == torch.float64
    assert rounded.ridge == exact.ridge
    scores = exact.scores(QUERIES)
    torch.testing.assert_close(rounded.scores(QUERIES), scores, rtol=0, atol=1e-3 * float(scores.abs().max()))


def test_no_size_depends_on_classes_to_come() -> None:
    ours = learned("ranpac", STREAM[:1], projections=10)
    sizes = {name: tuple(value.shape) for name, value in ours.state().items() if isinstance(value, torch.Tensor)}
    assert sizes == {"head.weight": (3, 6), "head.bias": (3,), "gram": (10, 10), "sums": (10, 3), "weight": (10, 3)}
    assert ours.gram.dtype == ours.sums.dtype == torch.float64


def test_a_ridge_too_weak_to_solve_grows_until_it_can() -> None:
    stream = [(1e6 * features, labels) for features, labels in STREAM]
    ours = learned("ranpac", stream, ridges=(1e-8,))
    assert ours.ridge > 1e-8 and bool(torch.isfinite(ours.weight).all())


def test_a_task_of_one_image_keeps_the_last_ridge() -> None:
    one = (torch.rand(1, 6), torch.tensor([6]))
    assert learned("ranpac", [*STREAM, one]).ridge == learned("ranpac", STREAM).ridge


def test_there_are_20_projections_per_feature_by_default() -> None:
    assert learned("ranpac", STREAM).gram.shape == (120, 120)
    assert learned("ranpac", STREAM, projections=33).gram.shape == (33, 33)


@pytest.mark.parametrize("wrong", [{"projections": -1}, {"ridges": ()}, {"ridges": (0.0,)}, {"holdout": 1.0}])
def test_invalid_hyper_parameters_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        RanPACHyper(**wrong)  # type: ignore[arg-type]
