"""The convnet learns scikit-learn's digits in seconds."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from amgc.features.registry import build


def test_a_few_epochs_on_digits_give_more_than_93_percent() -> None:
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16 - 0.3
    labels = torch.tensor(data.target)
    network = build("convnet", image_shape=(1, 8, 8))
    head = nn.Linear(network.dim, 10)
    optimiser = torch.optim.SGD([*network.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    for _ in range(5):
        for batch in torch.randperm(1200).split(64):
            optimiser.zero_grad()
            functional.cross_entropy(head(network(images[batch])), labels[batch]).backward()
            optimiser.step()
    network.eval()
    with torch.no_grad():
        accuracy = (head(network(images[1200:])).argmax(1) == labels[1200:]).float().mean().item()
    assert accuracy > 0.93
