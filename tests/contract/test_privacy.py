"""No file of a run contains a training image or its features. Every byte of every file is searched."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from amgc.engine.checkpoint import Checkpoints
from amgc.engine.observer import rounded
from amgc.engine.run import run
from amgc.engine.session import Session
from amgc.methods.contract import Batch, Method
from amgc.methods.registry import find
from amgc.runs.folder import CHECKPOINT


def found(folder: Path, images: torch.Tensor, rows: Iterable[torch.Tensor]) -> list[str]:
    """Return the files that contain one of the images (raw, uint8) or rows (in any precision, also as text)."""
    needles = [image.numpy().tobytes() for image in images]
    needles += [text(image.flatten()[:6].tolist(), "d") for image in images]
    for row in rows:
        assert row.count_nonzero() > 1, "zeros are everywhere and would prove nothing"
        values = row.detach().double().numpy()
        needles += [values.astype(kind).tobytes() for kind in (np.float16, np.float32, np.float64)]
        needles += [text(values, ".6g"), text(row.tolist(), "")]  # as engine.observed rounds, and as Python writes them
    contents = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [name for name, content in contents.items() if any(needle in content for needle in needles)]


def text(values: Iterable[float], form: str) -> bytes:
    """Return numbers as a list in a JSON file."""
    return ", ".join(str(float(format(value, form))) if form != "d" else str(value) for value in values).encode()


def test_a_search_finds_what_was_planted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (3, 1, 8, 8), dtype=np.uint8))
    rows = torch.from_numpy(rng.normal(size=(3, 8))).float()
    for name, planted in {
        "image": images[2].numpy(),
        "float16": rows[1].half().numpy(),
        "float32": rows[1].numpy(),
        "float64": rows[1].double().numpy(),
        "JSON": np.frombuffer(json.dumps({"rows": rows.tolist()}).encode(), np.uint8),
        "rounded": np.frombuffer(json.dumps(rounded(rows)).encode(), np.uint8),
        "pixels": np.frombuffer(json.dumps(images.tolist()).encode(), np.uint8),
    }.items():
        (tmp_path / name).write_bytes(b"before" + planted.tobytes() + b"behind")
        assert found(tmp_path, images, rows) == [name]
        (tmp_path / name).write_bytes(b"before" + planted.tobytes()[1 if planted.size < 65 else 200 : -1][:60])
        assert found(tmp_path, images, rows) == []


def test_no_image_and_no_feature_row_is_ever_in_the_folder(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every step and every task. Features are those of the current network, of plain and of augmented images."""
    dataset, recent, searches = tiny.images((4,) * 6), [], []
    kind, whole_loss, whole_save = find(method).kind, find(method).kind.loss, Checkpoints.save

    def loss(self: Method[Any], batch: Batch) -> Any:
        recent.append(batch.features.detach().clone())
        return whole_loss(self, batch)

    def plain_rows(session: Session) -> torch.Tensor:
        modes = {layer: layer.training for layer in session.network.modules()}
        rows = torch.cat([rows for rows, _ in session.features.extract(dataset.train)])
        for layer, mode in modes.items():
            layer.training = mode
        return rows

    def save(self: Checkpoints, optimizer: Any = None) -> None:
        session, images = self.session, dataset.train.take(torch.arange(len(dataset.train)))
        whole_save(self, optimizer)
        assert found(session.folder.path, images, [*plain_rows(session), *torch.cat(recent)]) == []
        searches.append(self)
        del recent[:-2]

    monkeypatch.setattr(kind, "loss", loss)
    monkeypatch.setattr(Checkpoints, "save", save)
    config = tiny.config(method, first={"batch_size": 3}, later={"batch_size": 2}, machine={"checkpoint_minutes": 0.0})
    run(config, tmp_path, dataset=dataset)
    assert len(searches) >= 6 + 3, "a search after every step of task 1, and one after every task"
    names = {path.name for path in tmp_path.iterdir()}
    known = {CHECKPOINT, "run.json", "metrics.jsonl", "task-1.safetensors", "observed", "log.txt", ".lock"}
    assert CHECKPOINT in names and names <= known
    assert set(tiny.observed(tmp_path)) == {"plane.safetensors", "task-1.json", "task-2.json", "task-3.json"}
