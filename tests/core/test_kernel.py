"""The kernel of L_DB: memory use and numerical accuracy."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from reference import assert_close, tensor

from amgc.core.covariance import Covariances
from amgc.core.kernel import Needs, evaluate

pytestmark = pytest.mark.cpus


def _arguments(dtype=torch.float64):
    p = reference.problem(0, 4, 3, 5)
    dense = reference.spd(p.rng, 3, 4)
    targets, shares = [4, 0, 2, 1], [0.1, 0.2, 0.3, 0.4]
    call = (*p.tensors(dtype), Covariances(full=tensor(dense, dtype)), torch.tensor(targets), tensor(shares, dtype))
    return p, dense, targets, shares, call


def test_shares_are_the_weighted_softmax_of_the_other_classes():
    p, dense, targets, shares, call = _arguments()
    expected = np.zeros((4, 5))
    for k, own in enumerate(targets):
        v = p.weight - p.weight[own]
        z = v @ p.mean[k] + 0.5 * np.einsum("jd,de,je->j", v, dense[k], v) + p.bias - p.bias[own]
        expected[k] = shares[k] * np.exp(z) / np.exp(z).sum()
        expected[k, own] = 0
    assert_close(evaluate(*call).share, expected, 1e-12)


def test_gradients_that_are_not_needed_are_not_computed():
    *_, call = _arguments()
    nothing = evaluate(*call, Needs(head=False))
    assert nothing[2:] == (None,) * 7
    some = evaluate(*call, Needs(head=False, mean=True))
    assert some.mean is not None and some.weight is None and some.full is None


def test_the_loss_is_summed_in_float64():
    *_, call = _arguments(torch.float32)
    result = evaluate(*call)
    assert result.loss.dtype == torch.float64 and result.weight.dtype == torch.float32


def test_the_inputs_are_not_changed():
    *_, call = _arguments()
    weight, bias, mean, covariances, targets, shares = call
    before = [x.clone() for x in (weight, bias, mean, covariances.full, targets, shares)]
    evaluate(*call, Needs(True, True, True), 0.5)
    for x, y in zip((weight, bias, mean, covariances.full, targets, shares), before, strict=True):
        assert torch.equal(x, y)


def test_well_separated_classes_keep_the_small_gradients_of_float32():
    """1 - p of the true class would round to zero; the probabilities of the other classes do not."""
    mean = 8.0 * torch.eye(3)
    weight, bias = mean.clone(), torch.zeros(3)
    shares = torch.full((3,), 1 / 3)
    result = evaluate(weight, bias, mean, Covariances(diagonal=torch.full((3, 3), 0.01)), torch.arange(3), shares)
    expected = reference.db_loss(weight.double().numpy(), np.zeros(3), mean.double().numpy(), np.array([0.01 * np.eye(3)] * 3))
    assert 0 < np.abs(expected.weight).max() < 1e-20
    assert_close(result.weight, expected.weight, 1e-4)
    assert_close(result.bias + 1, expected.bias + 1, 1e-6)
