"""`Method.views`: its arguments, and the use of what it returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc.engine.run import run
from amgc.engine.session import make_network

pytestmark = pytest.mark.cpus


class Doubled:
    """Finetune with a second view of every image as an auxiliary class. It records its inputs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.draws: list[float] = []
        self.labels: list[list[int]] = []

        def views(method: Any, images: Any, labels: Any, generator: torch.Generator) -> Any:
            self.shapes.append(tuple(images.shape))
            self.draws.append(torch.rand((), generator=generator).item())
            return images.repeat(2, *[1] * (images.ndim - 1)), torch.cat([labels, labels + len(method.task.seen)])

        def loss(method: Any, batch: Any) -> Any:
            self.labels.append(batch.labels.tolist())
            assert len(batch.features) == len(batch.labels) == 2 * self.shapes[-1][0]
            half = len(batch.labels) // 2
            return {"l": torch.nn.functional.cross_entropy(method.head(batch.features)[:half], batch.labels[:half])}

        tiny.variant(monkeypatch, "finetune", views=views, loss=loss)


def test_views_get_each_batch_with_a_generator_and_the_loss_gets_the_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Doubled(monkeypatch)
    run(tiny.config("finetune", natural_order=True, tasks=1), tmp_path, dataset=tiny.images((9, 5)))
    assert seen.shapes == [(7, 1, 8, 8)] * 4 and len(set(seen.draws)) == 4
    assert sorted(label for labels in seen.labels for label in labels) == sorted(([0, 2] * 9 + [1, 3] * 5) * 2)


@pytest.mark.parametrize("kind", ["vectors", "frozen"])
def test_where_no_network_trains_views_get_features(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Doubled(monkeypatch)
    dataset = tiny.vectors() if kind == "vectors" else tiny.images()
    run(tiny.config("finetune", first={"extractor_lr": 0.0}, tasks=1), tmp_path, dataset=dataset)
    assert {shape[1:] for shape in seen.shapes} == {(5 if kind == "vectors" else tiny.DIM,)}


def test_a_network_knows_that_images_are_not_square() -> None:
    network = make_network(tiny.config(), tiny.images(shape=(1, 8, 6)))
    assert network.image_shape == (1, 8, 6)
