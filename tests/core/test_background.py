"""The covariance of a network's features on public images, and what a classifier of few samples gains by it."""

import hashlib

import numpy as np
import pytest
import torch
from reference import assert_close

from amgc import AMGCClassifier
from amgc.core import background as module
from amgc.core import symmetric
from amgc.core.background import Background, background, names
from amgc.core.shrinkage import pooled_covariance, regularisation, variance_level
from amgc.core.statistics import ClassStatistics

pytestmark = pytest.mark.cpus
DIM = 60  # many enough that no class of nine samples gets its own covariance


def drawn(dim: int = DIM, seed: int = 0) -> Background:
    random = np.random.default_rng(seed)
    wide, tall = (torch.from_numpy(random.normal(size=(3 * dim, dim)) * random.uniform(0.1, 2, dim)) for _ in range(2))
    within, between = (one.T @ one / len(one) for one in (wide, tall))
    return Background(torch.zeros(dim, dtype=torch.float64), within, between, "drawn", "none")


def test_the_package_knows_lite0() -> None:
    known = background("lite0")
    assert "lite0" in names()
    assert known.mean.shape == (664,)
    for matrix in (known.within, known.between):
        assert torch.equal(matrix, matrix.T)
    assert 0 < float(torch.linalg.eigvalsh(known.between)[-1]) < float(known.within.trace())


def test_an_unknown_network_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no background of 'lite9'.*lite0"):
        background("lite9")


def test_a_file_has_half_precision(tmp_path) -> None:
    given = drawn()
    given.save(tmp_path / "drawn.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FOLDER", tmp_path)
        found = background.__wrapped__("drawn")
    assert found.about == "drawn"
    for mine, stored in ((given.within, found.within), (given.between, found.between)):
        assert float((mine - stored).abs().max()) < 2e-3 * float(mine.abs().max())


def test_the_ridge_is_the_posterior_of_class_means() -> None:
    """LDA with means μ̂ = B (B + S/n)⁻¹ m and covariance S has the same weights as LDA with m and S + S B⁻¹ S / n."""
    known, count = drawn(), 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amgc.core.background.WITHIN", 0.0)
        patch.setattr("amgc.core.background.BETWEEN", 0.0)
        ridge = known.ridge(1 / count, torch.ones(known.dim, dtype=torch.float64)).numpy()
    within, between = known.within.numpy(), known.between.numpy()
    means = np.random.default_rng(1).normal(size=(4, known.dim))
    drawn_means = means @ np.linalg.solve(between + within / count, between)
    expected, found = np.linalg.solve(within, drawn_means.T), np.linalg.solve(ridge, means.T)
    np.testing.assert_allclose(found / np.linalg.norm(found), expected / np.linalg.norm(expected), atol=1e-9)
    assert ridge.diagonal().mean() == pytest.approx(1)


# ---- classifiers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Background:
    """The background "drawn" of sixty features."""
    found = drawn()
    found.save(tmp_path / "drawn.safetensors")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    background.cache_clear()
    yield background("drawn")
    background.cache_clear()


def samples(known: Background, count: int, seed: int = 0, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Draw samples from classes as the background says: means by `between`, samples by `within`."""
    random, kinds = np.random.default_rng([seed, count]), np.random.default_rng(7)
    means = kinds.multivariate_normal(np.zeros(known.dim), 0.5 * known.between.numpy(), classes)
    labels = np.repeat(np.arange(classes), count)
    return means[labels] + random.multivariate_normal(np.zeros(known.dim), known.within.numpy(), len(labels)), labels


@pytest.mark.parametrize("count", [1, 3])
def test_a_background_that_is_true_raises_the_accuracy_of_few_samples(known: Background, count: int) -> None:
    held, truth = samples(known, 200, seed=99)
    right = []
    for seed in range(5):
        X, y = samples(known, count, seed)
        each = [AMGCClassifier(background=name).fit(X, y).score(held, truth) for name in (None, "drawn")]
        right.append(each)
    without, with_it = np.mean(right, 0)
    assert with_it > without + 0.03


def test_a_background_of_other_features_hardly_lowers_the_accuracy(known: Background) -> None:
    """Leave-one-out finds that its form is worse."""
    turned, right = np.random.default_rng(3).permutation(DIM), []
    held, truth = samples(known, 200, seed=99)
    for seed in range(5):
        X, y = samples(known, 8, seed)
        each = [AMGCClassifier(background=name).fit(X[:, turned], y).score(held[:, turned], truth) for name in (None, "drawn")]
        right.append(each)
    without, with_it = np.mean(right, 0)
    assert with_it > without - 0.03


def test_the_order_of_classes_merging_and_forgetting_give_the_same_classifier(known: Background) -> None:
    X, y = samples(known, 5)
    held, _ = samples(known, 3, seed=1)
    expected = AMGCClassifier(background="drawn", dtype="float64").fit(X, y).predict_proba(held)

    def fitted(*labels: int) -> AMGCClassifier:
        classifier = AMGCClassifier(background="drawn", dtype="float64")
        for label in labels:
            classifier.partial_fit(X[y == label], y[y == label])
        return classifier

    forgotten = fitted(0, 1, 2, 3).partial_fit(X[y > 3] + 100, y[y > 3] + 10).forget(14).forget(15)
    found = [fitted(5, 2, 0, 1, 4, 3), fitted(4, 2, 0).merge(fitted(1, 5, 3)), forgotten.merge(fitted(4, 5))]
    for one in found:
        assert_close(one.predict_proba(held), expected, 1e-9)


@pytest.mark.parametrize("form", ["full", "lowrank", "shared"])
def test_every_form_with_correlations_uses_it(known: Background, form: str, tmp_path) -> None:
    X, y = samples(known, 4)
    plain, classifier = (AMGCClassifier(covariance=form, background=name).fit(X, y) for name in (None, "drawn"))
    assert np.abs(classifier.coef_ - plain.coef_).max() > 1e-3
    classifier.save(tmp_path / "stored")
    stored = AMGCClassifier.load(tmp_path / "stored")
    assert stored.background == "drawn"
    assert_close(stored.predict_proba(X), classifier.predict_proba(X), 1e-12)


@pytest.mark.parametrize("form", ["full", "shared"])
def test_a_matrix_is_added_to_a_covariance_of_either_form(known: Background, form: str) -> None:
    X, y = samples(known, 4)
    statistics = ClassStatistics(DIM, form, dtype=torch.float64).update(X, y)
    ridge = torch.linspace(1, 2, DIM, dtype=torch.float64)
    found = pooled_covariance(statistics).plus_diagonal(ridge).plus(known.within)
    whole = symmetric.mirrored(found.upper) + torch.diag(found.extra)
    assert_close(whole, (statistics.pooled() + torch.diag(ridge) + known.within).numpy(), 1e-12)


@pytest.mark.parametrize(("standardize", "power"), [("auto", 0.5), (True, 1.0), (False, 0.0)])
def test_the_ridge_and_the_background_s_form_share_one_size(known: Background, standardize: bool, power: float) -> None:
    """Both are what leave-one-out chooses for each alone; the share of the form follows from how well each predicts."""
    X, y = samples(known, 5)
    statistics = ClassStatistics(DIM, dtype=torch.float64).update(X, y)
    chosen = regularisation(statistics, None, standardize, known)
    average, own = (variance_level(statistics, each) for each in (False, True))
    level = average ** (1 - power) * own**power
    assert_close(chosen.ridge / chosen.ridge.mean(), level / level.mean(), 1e-9)
    form = known.ridge(1 / 5, level)
    assert_close(chosen.prior / chosen.prior.diagonal().mean(), form, 1e-9)
    assert float(chosen.prior.diagonal().mean()) > float(chosen.ridge.mean()), "the samples agree with the background"


def test_a_background_of_another_number_of_features_is_an_error(known: Background) -> None:
    X, y = samples(known, 2)
    with pytest.raises(ValueError, match="'drawn' is of 60 features, and the rows have 59"):
        AMGCClassifier(background="drawn").fit(X[:, 1:], y)
    with pytest.raises(ValueError, match="background must be one of 'drawn' or None, not 'lite9'"):
        AMGCClassifier(background="lite9").fit(X, y)


def test_fixed_shrinkage_and_variances_alone_do_not_use_it(known: Background) -> None:
    X, y = samples(known, 8)
    for settings in ({"shrinkage": 0.5}, {"covariance": "diagonal"}):
        both = [AMGCClassifier(background=name, **settings).fit(X, y) for name in (None, "drawn")]
        assert_close(both[0].coef_, both[1].coef_, 1e-12)


def test_a_single_sample_or_class_is_enough(known: Background) -> None:
    X, y = samples(known, 2)
    for rows in (slice(1), slice(2)):
        assert AMGCClassifier(background="drawn").fit(X[rows], y[rows]).predict_proba(X).tolist() == [[1.0]] * len(X)


def test_the_checksum_is_that_of_the_file_and_not_of_numbers_that_a_cpu_computes():
    assert module.checksum("lite0") == hashlib.sha256((module.FOLDER / "lite0.safetensors").read_bytes()).hexdigest()
