"""IL2A, PASS and SSRE pass a batch and all its views through the trained network only once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc.engine.run import run
from amgc.engine.session import make_network
from amgc.engine.training import Trainer
from amgc.methods.contract import Batch
from amgc.methods.registry import find

pytestmark = pytest.mark.cpus


@pytest.mark.parametrize("method", ["il2a", "pass", "ssre"])
def test_a_batch_passes_once_through_the_network_and_once_through_what_it_was_before(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, bool, int]] = []  # of any network, from the making of a batch to the end of its loss
    steps: list[tuple[int, int, int, list[tuple[str, bool, int]]]] = []
    network, kind = type(make_network(tiny.config(), tiny.images())), find(method).kind
    whole_forward, whole_batch, whole_loss = network.forward, Trainer.batch_of_images, kind.loss
    images: list[int] = []

    def forward(self: Any, maps: torch.Tensor) -> torch.Tensor:
        calls.append((self, torch.is_grad_enabled(), len(maps)))
        features: torch.Tensor = whole_forward(self, maps)
        return features

    def batch_of_images(self: Trainer, pixels: torch.Tensor, *rest: Any) -> Batch:
        calls.clear()
        images.append(len(pixels))
        return whole_batch(self, pixels, *rest)

    def loss(self: Any, batch: Batch) -> Any:
        terms = whole_loss(self, batch)
        who = [("network" if caller is self.network else "copy", *how) for caller, *how in calls]
        steps.append((self.task.index, images[-1], len(batch.labels), who))
        return terms

    monkeypatch.setattr(network, "forward", forward)
    monkeypatch.setattr(Trainer, "batch_of_images", batch_of_images)
    monkeypatch.setattr(kind, "loss", loss)
    run(tiny.config(method), tmp_path, dataset=tiny.images())
    assert [task for task, *_ in steps] == [0] * 6 + [1] * 6 + [2] * 6
    before = "network" if method == "ssre" else "copy"  # SSRE leaves the branches out
    for task, shown, seen, who in steps:
        assert who == [("network", True, seen)] + [(before, False, seen)] * (task > 0)
        assert {"il2a": shown < seen < 5 * shown, "pass": seen == 4 * shown, "ssre": seen == shown}[method]
