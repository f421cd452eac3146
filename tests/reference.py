"""The paper's equations written out in float64 numpy with loops, as the reference for the tests.

Nothing here calls amgc's arithmetic; only its containers (`LowRank`, `Covariances`) are built.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import torch
from hypothesis import settings
from numpy.typing import NDArray

from amgc.core.covariance import Covariances, LowRank

Array = NDArray[np.float64]

# What hypothesis does unless a test says otherwise: no time limit (the machine may be busy), few but varied examples.
# With other kernels (.ci/cpus) the same tests run again and again: fewer each time.
few, many = (settings(deadline=None, max_examples=count // (4 if "AMGC_CPUS" in os.environ else 1)) for count in (20, 60))


# ---- problems ----------------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """A head and the means of some classes: weight (C, d), bias (C,), mean (K, d)."""

    weight: Array
    bias: Array
    mean: Array
    rng: np.random.Generator

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
        return tuple(tensor(x, dtype) for x in (self.weight, self.bias, self.mean))


def problem(seed: int = 0, classes: int = 4, dim: int = 3, rows: int | None = None, scale: float = 0.7) -> Problem:
    """Return a random problem whose classes overlap and whose exponents do not overflow."""
    rng = np.random.default_rng(seed)
    rows = classes if rows is None else rows
    weight, bias = scale * rng.normal(size=(rows, dim)), rng.normal(size=rows)
    return Problem(weight, bias, rng.normal(size=(classes, dim)), rng)


def spd(rng: np.random.Generator, dim: int, count: int | None = None) -> Array:
    """Return random covariances (count, d, d), or one (d, d)."""
    shape = (dim, 2 * dim) if count is None else (count, dim, 2 * dim)
    half = rng.normal(size=shape)
    return half @ np.swapaxes(half, -1, -2) / (2 * dim)


def tensor(values: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=dtype)


# ---- covariance forms --------------------------------------------------------------------------------------------------


@dataclass
class Form:
    """A way to write K covariances: its leaf arrays, the package's object, the dense matrices, and the chain rule.

    `pull` turns the gradient (K, d, d) in the dense matrices into that in each leaf.
    """

    draw: Callable[[np.random.Generator, int, int], dict[str, Array]]
    build: Callable[[dict[str, torch.Tensor]], Any]
    dense: Callable[[dict[str, Array], int], Array]
    pull: Callable[[dict[str, Array], Array], dict[str, Array]]


def _diagonals(matrices: Array) -> Array:
    return np.array([[matrix[i, i] for i in range(len(matrix))] for matrix in matrices])


def _low_rank_dense(parts: dict[str, Array], count: int) -> Array:
    result = []
    for factor, variances in zip(parts["factor"], parts["diagonal"], strict=True):
        matrix = factor @ factor.T
        for i, variance in enumerate(variances):
            matrix[i, i] = variance
        result.append(matrix)
    return np.array(result)


def _low_rank_pull(parts: dict[str, Array], gradient: Array) -> dict[str, Array]:
    off = np.array([g - np.diag(np.diag(g)) for g in gradient])
    factor = np.array([2 * g @ f for g, f in zip(off, parts["factor"], strict=True)])
    return {"factor": factor, "diagonal": _diagonals(gradient)}


SCALE, COMMON_SCALE = 0.3, 0.6  # of the form with several parts


def _class_scales(count: int) -> tuple[Array, Array]:
    """Return the scales of the form whose scales differ between classes."""
    return np.linspace(0.1, 1, count), np.linspace(0.8, 0, count)


def sum_dense(parts: dict[str, Array], count: int, scale: Any = 1.0, common_scale: Any = 1.0) -> Array:
    """scale_k full_k + factor_k factor_kᵀ + diag(diagonal_k) + common_scale_k common, for whatever parts there are."""
    dim = next(iter(parts.values())).shape[1]
    scale, common_scale = np.broadcast_to(scale, count), np.broadcast_to(common_scale, count)
    result = np.zeros((count, dim, dim))
    for k in range(count):
        if "full" in parts:
            result[k] += scale[k] * parts["full"][k]
        if "factor" in parts:
            result[k] += parts["factor"][k] @ parts["factor"][k].T
        if "diagonal" in parts:
            result[k] += np.diag(parts["diagonal"][k if len(parts["diagonal"]) > 1 else 0])
        if "common" in parts:
            result[k] += common_scale[k] * parts["common"]
    return result


def dense(covariances: Covariances, count: int) -> Array:
    """Return the dense matrices of the package's own container."""
    arrays = {
        name: part.double().numpy()
        for name in ("full", "factor", "diagonal", "common")
        if (part := getattr(covariances, name)) is not None
    }
    return sum_dense(arrays, count, np.asarray(covariances.scale, float), np.asarray(covariances.common_scale, float))


def _sum_pull(parts: dict[str, Array], gradient: Array, scale: Any = 1.0, common_scale: Any = 1.0) -> dict[str, Array]:
    count = len(gradient)
    scale, common_scale = np.broadcast_to(scale, count), np.broadcast_to(common_scale, count)
    result = {}
    if "full" in parts:
        result["full"] = np.array([s * g for s, g in zip(scale, gradient, strict=True)])
    if "factor" in parts:
        result["factor"] = np.array([2 * g @ f for g, f in zip(gradient, parts["factor"], strict=True)])
    if "diagonal" in parts:
        each = _diagonals(gradient)
        result["diagonal"] = each if len(parts["diagonal"]) == len(each) else each.sum(0, keepdims=True)
    if "common" in parts:
        result["common"] = sum(s * g for s, g in zip(common_scale, gradient, strict=True))
    return result


def _several_parts(rng: np.random.Generator, count: int, dim: int) -> dict[str, Array]:
    return {
        "full": spd(rng, dim, count),
        "factor": 0.5 * rng.normal(size=(count, dim, 2)),
        "diagonal": rng.uniform(0.2, 1, (count, dim)),
        "common": spd(rng, dim),
    }


def _with_class_scales(parts: dict[str, torch.Tensor]) -> Covariances:
    scale, common_scale = _class_scales(len(parts["full"]))
    like = parts["full"].dtype
    return Covariances(**parts, scale=tensor(scale, like), common_scale=tensor(common_scale, like))


FORMS: dict[str, Form] = {
    "full": Form(
        lambda rng, k, d: {"full": spd(rng, d, k)},
        lambda parts: parts["full"],
        lambda parts, k: parts["full"],
        lambda parts, g: {"full": g},
    ),
    "diagonal": Form(
        lambda rng, k, d: {"diagonal": rng.uniform(0.2, 2, (k, d))},
        lambda parts: parts["diagonal"],
        lambda parts, k: np.array([np.diag(row) for row in parts["diagonal"]]),
        lambda parts, g: {"diagonal": _diagonals(g)},
    ),
    "low rank": Form(
        lambda rng, k, d: {"factor": 0.5 * rng.normal(size=(k, d, 2)), "diagonal": rng.uniform(1, 2, (k, d))},
        lambda parts: LowRank(parts["factor"], parts["diagonal"]),
        _low_rank_dense,
        _low_rank_pull,
    ),
    "several parts": Form(
        _several_parts,
        lambda parts: Covariances(**parts, scale=SCALE, common_scale=COMMON_SCALE),
        lambda parts, k: sum_dense(parts, k, SCALE, COMMON_SCALE),
        lambda parts, g: _sum_pull(parts, g, SCALE, COMMON_SCALE),
    ),
    "scales per class": Form(
        _several_parts,
        _with_class_scales,
        lambda parts, k: sum_dense(parts, k, *_class_scales(k)),
        lambda parts, g: _sum_pull(parts, g, *_class_scales(len(g))),
    ),
    "common": Form(
        lambda rng, k, d: {"common": spd(rng, d)},
        lambda parts: Covariances(**parts),
        sum_dense,
        _sum_pull,
    ),
    "common and one diagonal": Form(
        lambda rng, k, d: {"common": spd(rng, d), "diagonal": rng.uniform(0.2, 1, (1, d))},
        lambda parts: Covariances(**parts),
        sum_dense,
        _sum_pull,
    ),
}


# ---- the losses --------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    value: float
    weight: Array
    bias: Array
    mean: Array
    dense: Array  # the gradient in the covariances, as dense matrices (K, d, d)


def db_loss(
    weight: Array,
    bias: Array,
    mean: Array,
    dense: Array,
    *,
    targets: Any = None,
    among: Any = None,
    class_weight: Any = None,
    soft_margin: float = 0.0,
) -> Result:
    """Eq. (L-DB) and its gradient, class by class and pair by pair."""
    count, dim = mean.shape
    targets = range(count) if targets is None else [int(t) for t in targets]
    among = range(len(weight)) if among is None else [int(a) for a in among]
    shares = [1 / count] * count if class_weight is None else [float(c) for c in class_weight]
    result = Result(0.0, np.zeros_like(weight), np.zeros_like(bias), np.zeros_like(mean), np.zeros((count, dim, dim)))
    for k, own in enumerate(targets):
        v = {j: weight[j] - weight[own] for j in among}
        z = {j: v[j] @ mean[k] + 0.5 * v[j] @ dense[k] @ v[j] + bias[j] - bias[own] for j in among}
        for j in among:
            z[j] += soft_margin * (j != own)
        top = max(z.values())
        total = sum(np.exp(z[j] - top) for j in among)
        result.value += shares[k] * (top + np.log(total))
        for j in (j for j in among if j != own):  # v = 0 for the own class
            p = shares[k] * np.exp(z[j] - top) / total
            slope = p * (mean[k] + dense[k] @ v[j])
            result.weight[j] += slope
            result.weight[own] -= slope
            result.bias[j] += p
            result.bias[own] -= p
            result.mean[k] += p * v[j]
            result.dense[k] += p * 0.5 * np.outer(v[j], v[j])
    return result


def enlarge(dense: Array, margin: Any) -> Array:
    """Eq. (ve), margin a number or one per class."""
    margins = np.broadcast_to(margin, len(dense))
    return np.array([matrix + m * np.diag(np.diag(matrix)) for matrix, m in zip(dense, margins, strict=True)])


def enlarge_pull(gradient: Array, margin: float) -> Array:
    """The gradient in Σ, given that in Σ + λ diag(Σ)."""
    return np.array([g + margin * np.diag(np.diag(g)) for g in gradient])


def cross_entropy(logits: Array, target: int) -> float:
    top = logits.max()
    return float(top + np.log(np.exp(logits - top).sum()) - logits[target])


def class_shares(is_new: Any, balance: str) -> Array:
    """Return the weight of each class in L_AMGC."""
    is_new = np.asarray(is_new, bool)
    if balance == "per_class" or is_new.all() or not is_new.any():
        return np.full(len(is_new), 1 / len(is_new))
    return np.where(is_new, 1 / is_new.sum(), 1 / (~is_new).sum())


def minimise(mean: Array, dense: Array, class_weight: Array) -> tuple[float, Array, Array]:
    """Minimise L_DB by scipy's trust-region Newton method. Return the value, and centred weight and bias."""
    count, dim = mean.shape
    centre = mean.mean(0)
    means, matrices, shares = tensor(mean - centre), tensor(dense), tensor(class_weight)

    def loss(x: torch.Tensor) -> torch.Tensor:
        weight, bias = x.view(count, dim + 1)[:, :-1], x.view(count, dim + 1)[:, -1]
        v = weight - weight[:, None]  # v_jk at [k, j]
        z = torch.einsum("kjd,kd->kj", v, means) + bias - bias[:, None]
        z = z + 0.5 * torch.einsum("kjd,kde,kje->kj", v, matrices, v)
        return (shares * torch.logsumexp(z, 1)).sum()

    def value(x: Array) -> float:
        return float(loss(tensor(x)))

    def gradient(x: Array) -> Array:
        point = tensor(x).requires_grad_()
        return np.asarray(torch.autograd.grad(loss(point), point)[0])

    def hessian(x: Array) -> Array:
        return np.asarray(torch.autograd.functional.hessian(loss, tensor(x), vectorize=True))

    x = np.zeros(count * (dim + 1))
    x = scipy.optimize.minimize(value, x, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-9}).x
    x = x - np.linalg.pinv(hessian(x)) @ gradient(x)  # one more Newton step: from 1e-9 to all digits
    assert np.abs(gradient(x)).max() < 1e-12, "the reference did not converge"
    weight, bias = x.reshape(count, dim + 1)[:, :-1], x.reshape(count, dim + 1)[:, -1]
    weight = weight - weight.mean(0)
    bias = bias - weight @ centre
    return value(x), weight, bias - bias.mean()


# ---- comparing -----------------------------------------------------------------------------------------------------------


def assert_close(actual: Any, expected: Any, relative: float, what: str = "") -> None:
    """Assert that arrays are equal up to `relative` of the largest entry."""
    actual = actual.detach().double().numpy() if isinstance(actual, torch.Tensor) else np.asarray(actual, float)
    expected = np.asarray(expected, float)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape} instead of {expected.shape}"
    assert np.isfinite(actual).all(), f"{what} is not finite"
    if expected.size:
        error, size = np.abs(actual - expected).max(), np.abs(expected).max()
        assert error <= relative * max(size, 1e-300), f"{what}: off by {error / max(size, 1e-300):.2e} relative"


@contextlib.contextmanager
def within(seconds: int, error: type[BaseException] = AssertionError) -> Iterator[None]:
    """Raise an error if the block does not end in time, instead of hanging (on POSIX)."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def too_long(*_: Any) -> None:
        raise error(f"did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
