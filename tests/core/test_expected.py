"""The accuracy to expect, on data from true Gaussians and against held-out samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from amgc import AMGCClassifier
from amgc.core.expected import ENOUGH, MODEL, margin

MEANS = np.array([[0, 0, 0], [2.0, 0, 0], [0, 6.0, 0], [0, 0, 6.0]])
NAMES = np.array(["ash", "beech", "cedar", "date"])


def _draw(samples: int, seed: int = 0, means: np.ndarray = MEANS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = np.arange(samples * len(means)) % len(means)
    return means[rows] + rng.normal(size=(len(rows), means.shape[1])), NAMES[rows]


@pytest.mark.parametrize("form", ["full", "shared", "lowrank", "diagonal"])
@pytest.mark.parametrize("samples", [ENOUGH, 20, 200])
def test_the_expected_accuracy_is_that_of_new_samples_within_its_margin(form, samples):
    classifier = AMGCClassifier(covariance=form).fit(*_draw(samples))
    found = classifier.expected_accuracy()
    assert found is not None
    assert abs(found.accuracy - classifier.score(*_draw(2000, seed=1))) <= found.margin


def test_the_margin_covers_the_chance_of_as_many_samples_as_were_learned():
    rng = np.random.default_rng(0)
    for share, counts in ((0.85, [20] * 5), (0.5, [10, 40]), (0.98, [12] * 3)):
        drawn = np.mean([rng.binomial(count, share, 20_000) / count for count in counts], axis=0)
        by_chance = margin(share, torch.tensor(counts)) - MODEL
        assert (np.abs(drawn - share) <= by_chance).mean() >= 0.95 and by_chance <= 6 * drawn.std()


def test_the_margin_is_that_of_the_smallest_classes_and_not_zero_for_an_accuracy_of_one():
    assert margin(1.0, torch.tensor([10, 10])) > MODEL + 0.08
    assert margin(0.8, torch.tensor([10, 10])) > margin(0.8, torch.tensor([10, 10_000])) > margin(0.8, torch.tensor([20, 20]))
    assert margin(0.8, torch.tensor([10**6, 10**6])) == pytest.approx(MODEL, abs=1e-3)


def test_the_classes_that_are_confused_most_are_named():
    found = AMGCClassifier().fit(*_draw(100)).expected_accuracy()
    assert found is not None and set(found.confused) == {"ash", "beech"} and 0.1 < found.confusion < 0.3


def test_classes_that_cannot_be_told_apart_are_expected_to_be_guessed():
    found = AMGCClassifier().fit(*_draw(400, means=np.zeros((4, 3)))).expected_accuracy()
    assert found is not None and found.accuracy == pytest.approx(0.25, abs=0.08)


def test_too_few_samples_or_classes_are_too_few_to_say():
    X, y = _draw(50)
    few = np.r_[np.flatnonzero(y != "date"), np.flatnonzero(y == "date")[: ENOUGH - 1]]
    assert AMGCClassifier().fit(X[few], y[few]).expected_accuracy() is None
    assert AMGCClassifier().fit(X[y == "ash"], y[y == "ash"]).expected_accuracy() is None


def test_the_order_of_classes_does_not_matter():
    X, y = _draw(30)
    one = AMGCClassifier().fit(X, y).expected_accuracy()
    other = AMGCClassifier()
    for name in NAMES[::-1]:
        other.partial_fit(X[y == name], y[y == name])
    found = other.expected_accuracy()
    assert one is not None and found is not None and set(found.confused) == set(one.confused)
    np.testing.assert_allclose([found.accuracy, found.confusion], [one.accuracy, one.confusion], rtol=1e-4)


def test_a_saved_classifier_expects_the_same_and_an_earlier_file_computes_it(tmp_path):
    classifier = AMGCClassifier().fit(*_draw(30))
    classifier.save(tmp_path / "one.safetensors")
    found = classifier.expected_accuracy()
    assert AMGCClassifier.load(tmp_path / "one.safetensors").expected_accuracy() == found
    header, tensors = classifier.packed()
    del header["expected"]
    earlier = AMGCClassifier.from_packed(header, tensors).expected_accuracy()
    assert earlier is not None and found is not None and earlier.accuracy == pytest.approx(found.accuracy)
