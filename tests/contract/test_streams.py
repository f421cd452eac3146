"""Streams of any shape: one class, one image, one task, a shorter last task; images and feature vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from amgc.engine import checkpoint
from amgc.engine.run import resume, run
from amgc.engine.session import Session
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Task
from amgc.methods.registry import find
from amgc.runs.folder import CHECKPOINT

STREAMS: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {  # split, images per class, task sizes
    "tasks of one class": ({"sizes": (1, 1, 2)}, (5, 5, 5, 5), (1, 1, 2)),
    "a shorter last task": ({"increment": 2}, (5, 5, 5), (2, 1)),
    "one task": ({"tasks": 1}, (5, 5, 5), (3,)),
    "classes of one image": ({"sizes": (2, 2)}, (1, 6, 1, 6), (2, 2)),
    "classes of unequal size": ({"sizes": (3, 1)}, (2, 30, 5, 11), (3, 1)),
    "tasks of one image": ({"sizes": (1, 1)}, (1, 1), (1, 1)),
}


CASES = [("vectors" if name == "tasks of one class" else "images", name) for name in STREAMS]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_stream_is_learned_to_its_end(method: str, name: str, kind: str, tmp_path: Path) -> None:
    split, counts, sizes = STREAMS[name]
    lines = run(tiny.config(method, natural_order=True, **split), tmp_path, dataset=getattr(tiny, kind)(counts))
    assert [len(line["correct"]) for line in lines] == [sum(sizes[: task + 1]) for task in range(len(sizes))]
    for line in lines:
        assert line["total"] == [tiny.TESTS] * len(line["total"])
        assert all(0 <= right <= tiny.TESTS for right in line["correct"])
    head = checkpoint.read(tmp_path / CHECKPOINT)[1]["method/head.weight"]
    assert head.shape == (sum(sizes), tiny.DIM if kind == "images" else 5)


@pytest.mark.cpus
def test_on_vectors_a_resumed_run_ends_the_same(method: str, tmp_path: Path) -> None:
    class StopLater(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 1

    run(tiny.config(method), tmp_path / "one", dataset=tiny.vectors())
    with pytest.raises(Stopped):
        run(tiny.config(method), tmp_path / "other", StopLater(), tiny.vectors())
    resume(tmp_path / "other", dataset=tiny.vectors())
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")


def session_after(method: str, folder: Path, **changes: Any) -> Session:
    """Return a session that has resumed a finished run."""
    session = Session(tiny.config(method, **changes), folder, Watch(), tiny.images())
    session.checkpoints.restore()
    return session


def test_there_is_one_finite_score_per_seen_class(method: str, finished: Path) -> None:
    session = session_after(method, finished)
    for rows in (torch.randn(7, tiny.DIM), torch.zeros(1, tiny.DIM), torch.zeros(0, tiny.DIM)):
        scores = session.method.scores(rows)
        assert scores.shape == (len(rows), 6) and bool(torch.isfinite(scores).all())


def test_the_state_survives_being_packed(method: str, finished: Path) -> None:
    session = session_after(method, finished)
    header, tensors = checkpoint.pack(session.method.state())
    fresh = find(method).kind(session.config.hyper, session.network, torch.device("cpu"))
    fresh.restore(checkpoint.unpack(header, {name: tensor.clone() for name, tensor in tensors.items()}, torch.device("cpu")))
    again_header, again = checkpoint.pack(fresh.state())
    assert again_header == header
    tiny.assert_equal(tensors, again)
    rows = torch.randn(5, tiny.DIM)
    assert tiny.identical(fresh.scores(rows), session.method.scores(rows))


def test_kept_bytes_are_those_in_the_checkpoint_beside_network_and_head(method: str, finished: Path) -> None:
    header, tensors = tiny.saved(finished)
    kept = {name: tensor.nbytes for name, tensor in tensors.items() if not name.startswith(("network/", "method/head."))}
    assert header["lines"][-1]["kept_bytes"] == sum(kept.values())
    assert bool(kept) == bool(find(method).kind.remembers)


@pytest.mark.cpus
def test_the_same_seed_is_bit_identical_and_another_is_not(method: str, finished: Path, tmp_path: Path) -> None:
    run(tiny.config(method), tmp_path / "same", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "same", finished)
    for name, seed in (("two", 2), ("three", 3)):
        run(tiny.config(method, seed=seed, natural_order=True, tasks=1), tmp_path / name, dataset=tiny.images())
    two, three = tiny.saved(tmp_path / "two")[1], tiny.saved(tmp_path / "three")[1]
    assert not tiny.identical(two["method/head.weight"], three["method/head.weight"])
    weights = [name for name, tensor in two.items() if name.startswith("network/") and tensor.ndim == 4]
    assert weights and not any(tiny.identical(two[name], three[name]) for name in weights)


def test_only_a_method_that_says_so_sees_old_images(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked by the labels in the batches. Labels beyond the seen classes are those of auxiliary classes."""
    kind, seen = find(method).kind, set()
    whole_loss, whole_end = kind.loss, kind.end

    def loss(self: Any, batch: Any) -> Any:
        seen.update((self.task.index, int(label)) for label in batch.labels if label < len(self.task.seen))
        return whole_loss(self, batch)

    def end(self: Any, task: Task, features: Any, generator: torch.Generator) -> None:
        features = list(features)
        seen.update((task.index, int(label)) for _, labels in features for label in labels)
        whole_end(self, task, iter(features), generator)

    monkeypatch.setattr(kind, "loss", loss)
    monkeypatch.setattr(kind, "end", end)
    run(tiny.config(method), tmp_path, dataset=tiny.images())
    for task in range(3):
        old = range(2 * task if not kind.sees_old_data else 0, 2 * task + 2)
        assert {label for index, label in seen if index == task} == set(old)
