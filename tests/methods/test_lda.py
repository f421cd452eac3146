from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from streams import blocks, learned, together

from amgc.methods.lda import LDAHyper

pytestmark = pytest.mark.cpus

STREAM = blocks((3, 1, 2), each=30)
QUERIES = torch.rand(60, 6) * 5


def test_it_is_the_linear_discriminant_of_all_data_together() -> None:
    """Σ the pooled within-class covariance, shrunk; scores xᵀ Σ⁻¹ μ - ½ μᵀ Σ⁻¹ μ, in numpy."""
    features, labels = (part.double().numpy() for part in together(STREAM))
    means = np.stack([features[labels == label].mean(0) for label in range(6)])
    centred = features - means[labels.astype(int)]
    shrunk = 0.99 * centred.T @ centred / (len(features) - 6) + 0.01 * np.eye(6)
    weight = np.linalg.solve(shrunk, means.T)
    expected = QUERIES.double().numpy() @ weight - 0.5 * (means.T * weight).sum(0)
    ours = learned("lda", STREAM, shrinkage=0.01).scores(QUERIES)
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shrinkage", [1e-9, None])
def test_with_hardly_any_shrinkage_it_predicts_as_scikit_learn_does(shrinkage: float | None) -> None:
    stream = blocks((3, 1, 2), each=400)
    reference = LinearDiscriminantAnalysis().fit(*(part.numpy() for part in together(stream)))
    ours = learned("lda", stream, shrinkage=shrinkage).scores(QUERIES).argmax(1).numpy()
    assert np.mean(ours == reference.predict(QUERIES.numpy())) >= (1.0 if shrinkage else 0.95)


@pytest.mark.parametrize("shrinkage", [1e-4, None])
def test_classes_of_one_image_can_be_told_apart(shrinkage: float | None) -> None:
    stream = [(torch.eye(6)[:2], torch.arange(2)), (torch.eye(6)[2:3], torch.tensor([2]))]
    ours = learned("lda", stream, shrinkage=shrinkage)
    assert ours.scores(torch.eye(6)[:3]).argmax(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("wrong", [0.0, -1.0, 2.0])
def test_a_shrinkage_that_leaves_the_covariance_singular_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="shrinkage"):
        LDAHyper(shrinkage=wrong)
