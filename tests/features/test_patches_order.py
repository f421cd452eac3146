"""With the same fitted extractor the closed form does not depend on the order or the number of tasks."""

from __future__ import annotations

import pytest
import torch

from amgc import ClassStatistics, solve_head
from amgc.data import load
from amgc.features import build
from amgc.features.patches import Patches

pytestmark = pytest.mark.cpus


def encoded() -> tuple[torch.Tensor, torch.Tensor]:
    images = load("digits").train
    network = build("patches", image_shape=images.shape, filters=40)
    assert isinstance(network, Patches)
    first = images.subset((images.labels < 2).nonzero().squeeze(1))
    network.fit(first, generator=torch.Generator().manual_seed(0))
    rows = images.take(torch.arange(len(images))).float()
    return network(rows), images.labels


@pytest.mark.parametrize("tasks", [1, 2, 5, 10])
def test_any_order_and_split_of_the_classes_gives_the_same_classifier(tasks: int) -> None:
    features, labels = encoded()
    heads = []
    for order, parts in ((range(10), 1), (torch.randperm(10, generator=torch.Generator().manual_seed(tasks)).tolist(), tasks)):
        statistics = ClassStatistics(features.shape[1], "shared")
        for task in torch.tensor(list(order)).tensor_split(parts):
            rows = torch.isin(labels, task).nonzero().squeeze(1)
            for some in rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))].split(77):
                statistics.update(features[some], labels[some])
        solved = solve_head(statistics, balance="per_class")
        places = [statistics.index(label) for label in range(10)]
        heads.append(torch.cat([solved.weight[places], solved.bias[places, None]], 1).double())
    one, other = (head - head.mean(0) for head in heads)  # what all classes have in common does not matter
    assert float((one - other).norm() / one.norm()) < 1e-4
