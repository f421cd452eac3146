from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from streams import blocks, learned, together

pytestmark = pytest.mark.cpus

QUERIES = torch.rand(20, 6) * 5


def reference(features: np.ndarray, query: np.ndarray, times: int = 2, power: float = 0.5) -> float:
    """Return the squared distance of a query to the class of these features, by the steps of the official code."""
    dim = len(query)
    covariance = np.cov(features**power, rowvar=False)
    for _ in range(times):
        diagonal = np.diag(covariance).mean()
        off = covariance[~np.eye(dim, dtype=bool)].mean()
        covariance = covariance + diagonal * np.eye(dim) + off * (1 - np.eye(dim))
    deviation = np.sqrt(np.diag(covariance))
    inverse = np.linalg.pinv(covariance / np.outer(deviation, deviation))
    unit = [vector**power / np.linalg.norm(vector**power) for vector in (query, features.mean(0))]
    return float(mahalanobis(*unit, inverse) ** 2)


@pytest.mark.parametrize(("each", "times"), [(12, 2), (3, 2), (12, 1)])
def test_distances_are_scipys_on_the_normalised_matrices(each: int, times: int) -> None:
    stream = blocks((3, 1, 2), each=each)
    features, labels = (part.double().numpy() for part in together(stream))
    ours = -learned("fecam", stream, shrinkings=times).scores(QUERIES).detach().numpy()
    for label in range(6):
        expected = [reference(features[labels == label], query, times) for query in QUERIES.double().numpy()]
        np.testing.assert_allclose(ours[:, label], expected, rtol=2e-4, atol=1e-6)


def test_factors_are_computed_once_per_class_and_not_per_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    from amgc.methods import fecam

    calls, whole = [], fecam.inverse_factor

    def counted(matrix: torch.Tensor) -> torch.Tensor:
        calls.append(matrix)
        return whole(matrix)

    monkeypatch.setattr(fecam, "inverse_factor", counted)
    ours = learned("fecam", blocks((2, 2)))
    for _ in range(3):
        ours.scores(QUERIES)
    assert len(calls) == 4


def test_no_tensor_of_an_evaluation_is_as_large_as_all_pairs_of_rows() -> None:
    """The official form creates an N × N matrix, 1.6 GB for these 20,000 rows."""
    ours, rows = learned("fecam", blocks((2,))), torch.rand(20_000, 6)
    with torch.profiler.profile(profile_memory=True) as profile:
        ours.scores(rows)
    assert max(event.self_cpu_memory_usage for event in profile.key_averages()) < 64 * rows.nbytes


def test_a_class_of_one_image_does_not_attract_everything() -> None:
    stream = [*blocks((3,)), (torch.tensor([[0.0, 0, 0, 9, 9, 9]]), torch.tensor([3]))]
    features, labels = stream[0]
    scores = learned("fecam", stream).scores(features)
    assert bool((scores.argmax(1) == labels).float().mean() > 0.5)


def test_a_direction_without_variance_is_far() -> None:
    """Two images whose difference sums to 0: the shrunk matrix is singular, and Cholesky cannot factor it."""
    stream = [(torch.tensor([[4.0, 16.0], [16.0, 4.0]]), torch.tensor([0, 0]))]
    ours = learned("fecam", stream)
    scores = ours.scores(torch.tensor([[4.0, 16.0], [10.0, 10.0]]))
    assert bool(torch.isfinite(scores).all()) and scores[0, 0] < scores[1, 0]


def test_features_with_a_sign_give_finite_scores() -> None:
    stream = [(features - 2, labels) for features, labels in blocks((2, 2))]
    assert bool(torch.isfinite(learned("fecam", stream).scores(torch.randn(9, 6))).all())
