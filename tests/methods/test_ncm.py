from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestCentroid
from streams import blocks, learned, together

from amgc.methods.contract import Phase
from amgc.methods.ncm import NCMHyper

pytestmark = pytest.mark.cpus

STREAM = blocks((3, 1, 2))
QUERIES = torch.cat([torch.rand(40, 6) * 5, torch.randn(10, 6)])


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_scores_are_those_of_scipys_distances_to_the_class_means(metric: str) -> None:
    features, labels = (part.numpy() for part in together(STREAM))
    means = np.stack([features[labels == label].astype(np.float64).mean(0) for label in range(6)])
    ours = learned("ncm", STREAM, metric=metric).scores(QUERIES).detach().numpy()
    offset = 1 if metric == "cosine" else 0
    np.testing.assert_allclose(offset - ours if offset else -ours, cdist(QUERIES.double().numpy(), means, metric), atol=1e-5)


def test_euclidean_predicts_as_scikit_learn_does_with_all_data() -> None:
    reference = NearestCentroid().fit(*(part.numpy() for part in together(STREAM)))
    ours = learned("ncm", STREAM, metric="euclidean").scores(QUERIES).argmax(1)
    assert ours.tolist() == reference.predict(QUERIES.numpy()).tolist()


def test_it_remembers_nothing_but_the_head() -> None:
    assert learned("ncm", STREAM).state().keys() == {"head.weight", "head.bias"}


def test_a_network_that_would_train_later_is_refused() -> None:
    with pytest.raises(ValueError, match="frozen after task 1"):
        NCMHyper(later=Phase(epochs=1, extractor_lr=0.1))
