"""Directions for rows of few samples, which do not depend on the samples."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from amgc import AMGCClassifier
from amgc.core.background import Background, background
from amgc.core.narrowing import discriminants, narrowing
from amgc.core.privacy import Privacy


def public(dim: int = 60, classes: int = 12, seed: int = 0) -> Background:
    """Return a background whose classes differ in the last directions, which vary least within them."""
    random = torch.Generator().manual_seed(seed)
    turned, _ = torch.linalg.qr(torch.randn(dim, dim, generator=random, dtype=torch.float64))
    sizes = torch.linspace(2, 0.1, dim, dtype=torch.float64)
    own = turned[:, -classes:]
    known = background("lite0")
    within, between = (turned * sizes) @ turned.T, own @ own.T
    return dataclasses.replace(known, mean=torch.zeros(dim, dtype=torch.float64), within=within, between=between)


@pytest.mark.parametrize("kind", ["random", "public"])
def test_fewer_directions_are_the_first_of_more(kind):
    narrow = narrowing(60) if kind == "random" else discriminants(public())
    rows = torch.randn(5, 60, dtype=torch.float64)
    for count, fewer in itertools.combinations([60, 40, 12, 3], 2):
        torch.testing.assert_close(rows @ narrow(count) @ narrow.further(count, fewer), rows @ narrow(fewer))
    assert torch.equal(narrow(60), torch.eye(60, dtype=torch.float64)) and torch.equal(narrow(99), narrow(60))


@pytest.mark.parametrize("count", [5, 12, 30])
def test_the_first_public_directions_are_those_in_which_classes_differ_in_units_of_what_varies_within_them(count):
    """The signal in them is as large as in the best directions that scipy finds, but for the mixing with the identity."""
    scipy = pytest.importorskip("scipy.linalg")
    known = public()
    within, between = known.within.numpy(), known.between.numpy()
    best = scipy.eigh(between, within)[0][::-1][:count].sum()
    found = discriminants(known)(count).numpy()
    own = np.trace(np.linalg.solve(found.T @ within @ found, found.T @ between @ found))
    assert 0.85 * best <= own <= best * (1 + 1e-9)


def test_rows_are_about_as_long_in_fewer_directions():
    known = public()
    random = np.random.default_rng(0)
    rows = random.multivariate_normal(np.zeros(60), (known.within + known.between).numpy(), 500)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for count in (6, 12, 40):
        squares = (torch.from_numpy(rows) @ discriminants(known)(count)).square().sum(1)
        assert float(squares.mean()) == pytest.approx(1 / 0.8**2, rel=0.15)


@pytest.mark.cpus
def test_public_directions_are_the_same_on_every_machine(monkeypatch):
    """Signs and the last digits of eigenvectors differ between machines; sites must not notice."""
    known, whole = public(), torch.linalg.eigh
    expected = discriminants(known)

    def elsewhere(matrix):
        values, vectors = whole(matrix)
        signs = torch.randint(0, 2, (len(values),), generator=torch.Generator().manual_seed(1)).double() * 2 - 1
        return values * (1 + 1e-15), vectors * signs + 1e-15

    monkeypatch.setattr(torch.linalg, "eigh", elsewhere)
    found = discriminants(known)
    torch.testing.assert_close(found.directions, expected.directions, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.lengths, expected.lengths)


def test_directions_and_centre_of_lite0_are_public_and_kept():
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 12)
    rows = background("lite0").mean.numpy() + random.normal(size=(36, 664)) + random.normal(size=(3, 664))[labels]
    made = AMGCClassifier(epsilon=8.0, background="lite0").fit(rows, labels)
    privacy = made.privacy_
    assert privacy.background == "lite0" and np.allclose(privacy.centre, background("lite0").mean)
    assert made.sums_.dim < 664 / 3 and made.score(rows, labels) > 0.9
    assert Privacy(8.0, background="lite0", centre=[0.0] * 664).centre == (0.0,) * 664
    other = AMGCClassifier(epsilon=8.0).fit(rows, labels)
    with pytest.raises(ValueError, match="centre and background"):
        made.merge(other)
    with pytest.raises(ValueError, match="rows have 5 features"):
        AMGCClassifier(epsilon=8.0, background="lite0").fit(rows[:, :5], labels)
    with pytest.raises(ValueError, match="lite9"):
        AMGCClassifier(epsilon=8.0, background="lite9").fit(rows, labels)


def test_a_file_has_directions_and_centre(tmp_path):
    random = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), 12)
    rows = random.normal(size=(36, 664)) + 3 * random.normal(size=(3, 664))[labels]
    made = AMGCClassifier(epsilon=8.0, background="lite0").fit(rows, labels)
    made.save(tmp_path / "private.safetensors")
    again = AMGCClassifier.load(tmp_path / "private.safetensors")
    assert np.array_equal(made.predict_proba(rows), again.predict_proba(rows)) and again.privacy_ == made.privacy_
    again.partial_fit(rows + 1, labels + 3)
    assert again.sums_.dim == made.sums_.dim
