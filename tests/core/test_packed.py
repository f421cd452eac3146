"""A classifier's file as arrays: what is edited there is what the classifier computes."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch

from amgc.core import packed
from amgc.core.incremental import IncrementalClassifier
from amgc.core.typical import TYPICAL
from amgc.files import plain_json

FORMS = ["full", "lowrank", "diagonal", "shared"]


def fitted(form: str) -> IncrementalClassifier:
    rng = np.random.default_rng(0)
    labels = np.repeat(["owl", "cat", "dog"], 30)
    samples = rng.normal(size=(90, 6)) + 2 * rng.normal(size=(3, 6)).repeat(30, 0)
    return IncrementalClassifier(covariance=form, rank=6, dtype="float64").partial_fit(samples, labels)


def file_of(classifier: IncrementalClassifier) -> tuple[packed.Header, packed.Arrays]:
    header, tensors = classifier.packed()
    typical = classifier.typical()
    more = {f"{TYPICAL}{name}": array for name, array in typical.arrays().items()} if typical is not None else {}
    return plain_json(header), {name: tensor.numpy() for name, tensor in tensors.items()} | more


def opened(header: packed.Header, arrays: packed.Arrays) -> IncrementalClassifier:
    return IncrementalClassifier.from_packed(header, {name: torch.tensor(array) for name, array in arrays.items()})


def assert_same(one: IncrementalClassifier, other: IncrementalClassifier) -> None:
    assert one.statistics_.classes == other.statistics_.classes and one.statistics_.header() == other.statistics_.header()
    samples = np.random.default_rng(1).normal(size=(9, 6))
    np.testing.assert_allclose(one.predict_proba(samples), other.predict_proba(samples), atol=1e-3)  # factors are rounded


@pytest.mark.parametrize("form", FORMS)
def test_forgetting_in_the_file_is_forgetting_in_the_classifier(form: str) -> None:
    classifier = fitted(form)
    header, arrays = packed.forget(*file_of(classifier), "cat")
    assert all(name.startswith(packed.STATISTICS) for name in arrays), "no classifier, which would still know the class"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a shared covariance keeps the class's part
        expected = copy.deepcopy(classifier).forget("cat")
    assert_same(opened(header, arrays), expected)


@pytest.mark.parametrize("form", FORMS)
def test_renaming_in_the_file_is_renaming_in_the_classifier(form: str) -> None:
    classifier = fitted(form)
    header, arrays = file_of(classifier)
    found = opened(packed.rename(header, "cat", "zebra"), arrays)
    assert found.is_solved and "zebra" in found.statistics_.classes
    assert_same(found, copy.deepcopy(classifier).rename("cat", "zebra"))


def test_what_is_read_predicts_as_the_classifier_does() -> None:
    classifier = fitted("full")
    header, arrays = file_of(classifier)
    found = packed.read(header, arrays)
    assert found is not None and packed.class_counts(header, arrays) == {"cat": 30, "dog": 30, "owl": 30}
    linear, typicality = found
    samples = np.random.default_rng(1).normal(size=(9, 6))
    scores = linear.scores(samples)
    np.testing.assert_allclose(linear.probabilities(scores), classifier.predict_proba(samples), atol=1e-12)
    np.testing.assert_allclose(typicality(samples, linear.rows[scores.argmax(1)]), classifier.typicality(samples), atol=1e-12)
    assert packed.read(header, {name: array for name, array in arrays.items() if not name.startswith(TYPICAL)}) is None


def test_a_trained_head_loses_a_row_or_gets_another_name() -> None:
    header, arrays = {"classes": ["a", "b", "c"]}, {"weight": np.arange(6.0).reshape(3, 2), "bias": np.arange(3.0)}
    about, rows = packed.forget(header, arrays, "b")
    assert about == {"classes": ["a", "c"]} and rows["bias"].tolist() == [0, 2] and rows["weight"].tolist() == [[0, 1], [4, 5]]
    assert packed.rename(header, "b", "d") == {"classes": ["a", "d", "c"]} and header["classes"] == ["a", "b", "c"]


def test_a_class_with_the_name_of_a_forgotten_private_one_has_both_losses() -> None:
    spent = [["cat", 0.5, 1.0], ["gone", 0.25, 0.7]]
    header = {"statistics": {"classes": ["cat"]}, "private": {"classes": ["cat"], "settings": {"delta": 1e-5}, "spent": spent}}
    found = packed.rename(header, "cat", "gone")["private"]
    assert found["classes"] == ["gone"] and [pair[:2] for pair in found["spent"]] == [["gone", 0.75]]
    assert found["spent"][0][2] > 1.0
