"""The covariance of a network's features on public images, and what a classifier of few samples gains by it."""

import numpy as np
import pytest
import torch

from amgc.core.background import Background, background, names


def drawn(dim: int = 12, seed: int = 0) -> Background:
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
    from amgc.core import background as module

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
