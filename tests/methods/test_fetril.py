from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from sklearn.svm import LinearSVC
from streams import blocks, learned, together

from amgc.engine.run import run
from amgc.methods.contract import Batch, Task
from amgc.methods.fetril import FeTrIL

pytestmark = pytest.mark.cpus


def pseudo(method: Any, features: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features and labels of an epoch, as the loss gets them."""
    repeats = method.repeats(features, labels)
    rows = torch.arange(len(labels)).repeat_interleave(repeats)
    copy = torch.cat([torch.arange(int(count)) for count in repeats])
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Head:
        def __call__(self, moved: torch.Tensor) -> torch.Tensor:
            seen.append((moved, copy))
            return torch.zeros(len(moved), len(method.task.seen))

    method.head, head = Head(), method.head
    method.loss(Batch(features[rows], labels[rows], torch.Generator(), lambda network: features, copy))
    method.head = head
    return seen[0][0], method._targets[labels[rows] - method.task.new.start, copy]


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
def test_pseudo_features_have_the_old_mean_and_the_new_covariance(similarity: str) -> None:
    stream = [(features.double(), labels) for features, labels in blocks((4, 3))]
    method = learned("fetril", stream[:1], similarity=similarity)
    method.task = Task(1, range(4, 7))
    method.begin(method.task, torch.Generator())
    features, labels = stream[1]
    moved, targets = pseudo(method, features, labels)
    old, means = (np.stack([x[y == k].mean(0) for k in y.unique()]) for x, y in stream)
    assert sorted(targets.unique().tolist()) == list(range(7))
    for label in range(4):
        if similarity == "cosine":
            likeness = means @ old[label] / np.linalg.norm(means, axis=1)
            lender = 4 + int(likeness.argmax())
        else:
            lender = 4 + int(np.linalg.norm(means - old[label], axis=1).argmin())
        rows = moved[targets == label].numpy()
        np.testing.assert_allclose(rows.mean(0), old[label], atol=1e-12)
        np.testing.assert_allclose(np.cov(rows, rowvar=False), np.cov(features[labels == lender].numpy().T), atol=1e-12)
    for label in range(4, 7):
        assert torch.equal(moved[targets == label], features[labels == label])


def test_an_epoch_trains_on_every_real_and_every_pseudo_feature_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are shuffled and have the usual size; old and new classes are mixed."""
    batches: list[tuple[int, torch.Tensor]] = []
    whole = torch.nn.functional.cross_entropy

    def record(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        batches.append((scores.shape[1], targets.clone()))
        return whole(scores, targets)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", record)
    run(tiny.config("fetril", later={"epochs": 2}), tmp_path, dataset=tiny.images())
    last = [targets for classes, targets in batches if classes == 6]
    assert len(last) == 2 * 8  # 6 classes of 9 features in batches of at most 7
    for epoch in (last[:8], last[8:]):
        assert torch.cat(epoch).bincount().tolist() == [9] * 6
    assert all(bool((targets < 4).any()) for targets in last)


def test_the_network_and_old_means_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    whole = FeTrIL.end

    def end(self: Any, task: Task, features: Any, generator: torch.Generator) -> None:
        whole(self, task, features, generator)
        kept.append((self.mean.clone(), [value.clone() for value in self.network.state_dict().values()]))

    monkeypatch.setattr(FeTrIL, "end", end)
    run(tiny.config("fetril"), tmp_path, dataset=tiny.images())
    assert [len(mean) for mean, _ in kept] == [2, 4, 6]
    assert torch.equal(kept[2][0][:4], kept[1][0])
    assert all(torch.equal(one, other) for one, other in zip(kept[0][1], kept[2][1], strict=True))


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1), (1,), (2,)])
def test_the_svc_is_scikit_learns_on_real_and_pseudo_features(sizes: tuple[int, ...]) -> None:
    stream = blocks(sizes, each=20)
    ours = learned("fetril", stream, classifier="svc", similarity="euclidean")
    features, labels = (part.double().numpy() for part in stream[-1])
    queries = np.random.default_rng(0).uniform(0, 5, (30, 6))
    if sum(sizes) == 1:
        assert ours.scores(torch.from_numpy(queries).float()).shape == (30, 1)
        return
    rows, targets = [features], [labels]
    if len(sizes) == 2:
        before, known = (part.double().numpy() for part in together(stream[:1]))
        means = {label: features[labels == label].mean(0) for label in np.unique(labels)}
        for label in range(sizes[0]):
            mean = before[known == label].mean(0)
            lender = min(means, key=lambda new: np.linalg.norm(means[new] - mean))
            rows.append(features[labels == lender] - means[lender] + mean)
            targets.append(np.full(len(rows[-1]), label))
    unit = np.concatenate(rows) / np.linalg.norm(np.concatenate(rows), axis=1, keepdims=True)
    svc = LinearSVC(C=1.0, tol=1e-8, dual=False).fit(unit, np.concatenate(targets))
    expected = svc.decision_function(queries / np.linalg.norm(queries, axis=1, keepdims=True))
    scores = ours.scores(torch.from_numpy(queries).float()).detach().numpy()
    np.testing.assert_allclose(scores[:, 1] if expected.ndim == 1 else scores, expected, atol=2e-3)


def test_with_svc_later_tasks_take_no_steps(tmp_path: Path) -> None:
    lines = run(tiny.config("fetril", hyper={"classifier": "svc"}), tmp_path, dataset=tiny.vectors())
    assert lines[0]["losses"] and not lines[1]["losses"]
