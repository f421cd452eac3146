"""Samples that were learned before are distinguished from new ones by the class statistics alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from amgc.core.repeated import LearnedBefore
from amgc.core.statistics import ClassStatistics

DIM = 60
pytestmark = pytest.mark.cpus


def _samples(count: int, seed: int) -> np.ndarray:
    """Return samples whose variances differ by four orders of magnitude, as float32."""
    rng = np.random.default_rng(seed)
    return (5 + rng.normal(size=(count, DIM)) * np.logspace(0, -2, DIM)).astype(np.float32)


def _told(statistics: ClassStatistics, label: str, samples: np.ndarray) -> list[bool]:
    learned = LearnedBefore(statistics, label)
    assert learned.can_tell
    return [learned(one) for one in torch.from_numpy(samples)]


@pytest.mark.parametrize("form", ["full", "shared"])
@pytest.mark.parametrize("count", [1, 2, 12])
def test_learned_samples_are_told_from_new_ones_in_any_order_of_batches(form, count):
    cat, dog, new = _samples(count, 0), _samples(5, 1), _samples(9, 2)
    statistics = ClassStatistics(DIM, form)
    for part in np.array_split(cat, min(3, count)):
        statistics.update(part, ["cat"] * len(part))
    statistics.update(dog, ["dog"] * len(dog))
    assert _told(statistics, "cat", cat[::-1].copy()) == [True] * count
    assert _told(statistics, "cat", new) == [False] * len(new)
    assert _told(statistics, "cat", dog) == [False] * len(dog)


def test_samples_of_merged_and_joined_classes_are_told():
    one, two, new = _samples(6, 0), _samples(7, 1), _samples(5, 2)
    statistics = ClassStatistics(DIM, "full").update(one, ["cat"] * 6)
    statistics.merge(ClassStatistics(DIM, "full").update(two, ["tom"] * 7)).join("tom", "cat")
    assert _told(statistics, "cat", np.concatenate([one, two])) == [True] * 13
    assert _told(statistics, "cat", new) == [False] * 5


@pytest.mark.parametrize(("form", "count"), [("full", 40), ("shared", 40), ("lowrank", 5), ("diagonal", 5)])
def test_it_cannot_be_told_for_many_samples_or_incomplete_covariances(form, count):
    statistics = ClassStatistics(DIM, form).update(_samples(count, 0), ["cat"] * count)
    learned = LearnedBefore(statistics, "cat")
    assert not learned.can_tell and not learned(torch.from_numpy(_samples(count, 0)[0]))
