"""Compute the classifier that minimises L_DB for given statistics, a smooth convex problem.

L_DB is a log-sum-exp of convex quadratics in (weight, bias). So 200 epochs of SGD on a frozen extractor can be replaced by one
deterministic solve. With one covariance for all classes there is a closed form (`amgc.core.shared`), from which the iteration
for other covariances starts. Whitening by the average covariance keeps the number of L-BFGS steps small.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from amgc.core.covariance import Covariances, SharedCovariance, column, enlarge
from amgc.core.inputs import Label
from amgc.core.kernel import Evaluation, evaluate
from amgc.core.lbfgs import minimise
from amgc.core.shared import ClosedForm, closed_bias, closed_form
from amgc.core.shrinkage import separating_ridge
from amgc.core.statistics import ClassStatistics
from amgc.core.whitening import Whitener

Balance: TypeAlias = Literal["per_class", "two_means"]
SHARED_ITERATIONS = 20  # in coordinates that all classes share, before each class gets its own
SMALL = 1 << 20  # covariances with at most this many numbers are converted to float64, which is cheap
CURVATURE_BYTES = 128 << 20  # workspace of `curvature`
BLOCKS_BYTES = 2 << 30  # the largest result of `curvature`; beyond, the first coordinates are used to the end


@dataclass(frozen=True)
class Head:
    """A linear classifier, scores = features @ weight.T + bias, and how accurately it was solved.

    weight (C, d) and bias (C,) are float64. The rows of `weight`, and the biases, sum to zero.

    `gap` estimates how far `loss` is above the minimum. It is the larger of half the Newton decrement, with L-BFGS's inverse
    Hessian, and the gain of the last five iterations. The loss and the scores of likely features have this accuracy. A weight
    is accurate only as far as the loss depends on it: the weight of a feature with very small variance may be entirely wrong.

    `gradient_norm` is measured in whitened coordinates, so it does not depend on the features' units.
    """

    weight: Tensor
    bias: Tensor
    loss: float
    gradient_norm: float
    gap: float
    iterations: int
    evaluations: int
    converged: bool


def solve_head(
    statistics: ClassStatistics,
    *,
    margin: float = 0.4,
    new: Iterable[Label] = (),
    balance: Balance = "per_class",
    ridge: float | Tensor | Literal["auto"] = 0.0,
    start: Head | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Head:
    """Return the head that minimises L_AMGC (Eq. separate) for these statistics.

    Parameters
    ----------
    margin : λ of VE, Eq. (ve), for all classes except `new`.
    new : the classes that are not enlarged.
    balance : "per_class" weighs every class equally, as L_DBGC does. "two_means" adds the mean over new classes and the mean
        over old classes, as Eq. (separate) does. Without new or without old classes both are the same.
    ridge : added to every variance, one number or one per feature (d,). With a small ridge, singular covariances (of few
        samples) have a finite optimum. "auto", for a shared covariance: a share of each variance, smaller for features that
        separate the classes, chosen by leave-one-out in closed form (`amgc.core.shrinkage.separating_level`).
    start : an initial head for the first classes of `statistics`. The other rows come from the closed form.
    tolerance : stop if the estimated gap is below this share of the loss, or of 0.01 if the loss is smaller.

    >>> statistics = ClassStatistics(1, dtype=torch.float64).update([[0.0], [2.0], [4.0], [6.0]], [0, 0, 1, 1])
    >>> head = solve_head(statistics, margin=0.0)
    >>> head.converged, [round(w, 3) for w in head.weight[:, 0].tolist()]
    (True, [-0.5, 0.5])
    """
    if not margin >= 0:
        raise ValueError(f"margin must not be negative, not {margin}.")
    if margin == float("inf"):
        raise ValueError("margin must be finite.")
    if balance not in get_args(Balance):
        raise ValueError(f"balance must be one of {', '.join(get_args(Balance))}, not {balance!r}.")
    if isinstance(ridge, str):
        if ridge != "auto" or statistics.form != "shared":
            raise ValueError(f"ridge must be numbers, or 'auto' for statistics with a shared covariance, not {ridge!r}.")
        ridge = separating_ridge(statistics)
    if isinstance(ridge, Tensor) and ridge.shape not in ((), (statistics.dim,)):
        raise ValueError(f"ridge must be one number or {statistics.dim}, one per feature, not of shape {tuple(ridge.shape)}.")
    if not bool(((amount := torch.as_tensor(ridge)) >= 0).all() and torch.isfinite(amount).all()):
        raise ValueError(f"ridge must be finite and not negative, not {ridge}.")
    if start is not None and (len(start.weight) > len(statistics) or start.weight.shape[1] != statistics.dim):
        raise ValueError(
            f"start has {len(start.weight)} classes of {start.weight.shape[1]} features; the statistics have "
            f"{len(statistics)} of {statistics.dim}. The classes of start must be the first ones of the statistics."
        )
    if len(statistics) == 0:
        raise ValueError("there are no classes to solve for; update the statistics first.")
    is_new = torch.zeros(len(statistics), dtype=torch.bool)
    is_new[[statistics.index(label) for label in new]] = True
    if statistics.form == "shared" and alike(is_new, margin):  # needs no copy of the matrix
        return solve_shared(statistics.mean, loaded(statistics.shared(), is_new, margin, ridge), is_new, balance)[0]
    return solve(
        statistics.mean,
        statistics.covariances,
        is_new=is_new,
        margin=margin,
        balance=balance,
        ridge=ridge,
        start=start,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )


def solve(
    mean: Tensor,
    covariances: Covariances,
    *,
    is_new: Tensor,
    margin: float,
    balance: Balance,
    ridge: float | Tensor,
    start: Head | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Head:
    """Do the same as `solve_head` for tensors: mean (K, d), is_new (K,) bool."""
    count, dim = mean.shape
    if count * dim**2 <= SMALL:
        covariances = covariances.double()
    device, dtype = covariances.parts()[0].device, covariances.parts()[0].dtype
    shared = covariances.full is None and covariances.factor is None and covariances.diagonal is None
    if shared and alike(is_new, margin) and not isinstance(covariances.common_scale, Tensor):
        assert covariances.common is not None
        own = SharedCovariance(covariances.common, covariances.common_scale, covariances.variances()[0].double())
        return solve_shared(mean, loaded(own, is_new, margin, ridge), is_new, balance)[0]
    class_weight = balanced(is_new, balance).to(device)
    if margin > 0:
        covariances = enlarge(covariances, margin * (~is_new).to(device, dtype))
    if isinstance(ridge, Tensor) or ridge > 0:
        extra = torch.as_tensor(ridge, dtype=dtype, device=device).expand(dim)
        covariances = covariances.plus_diagonal(extra.unsqueeze(0))

    # Only differences between means matter. Centred means lose least in float32.
    centre = mean.mean(0)
    problem = _Problem((mean - centre).to(device), covariances, class_weight, dtype)
    weight, bias = problem.half_lda()
    if count == 1:
        outcome = problem.measured(weight, bias)
    else:
        if start is None:
            weight, bias = problem.scaled(weight, bias)
        else:
            weight, bias = problem.continued(weight, bias, start, centre)
        outcome = problem.minimise(weight, bias, tolerance, max_iterations)
    weight = outcome.weight - outcome.weight.mean(0)
    bias = outcome.bias - weight @ centre.to(weight)
    return replace(outcome, weight=weight, bias=bias - bias.mean())


def solve_shared(mean: Tensor, covariance: SharedCovariance, is_new: Tensor, balance: Balance) -> tuple[Head, ClosedForm]:
    """Return the head and the closed form if all classes, mean (K, d), have this covariance."""
    centre = mean.mean(0)
    class_weight = balanced(is_new, balance).to(mean.device)
    closed = closed_form(mean - centre, covariance, class_weight)
    weight = closed.weight - closed.weight.mean(0)
    bias = closed.bias - weight @ centre
    head = Head(weight, bias - bias.mean(), closed.loss, closed.gradient_norm, 0.0, 0, 1, True)
    return head, closed


def loaded(covariance: SharedCovariance, is_new: Tensor, margin: float, ridge: float | Tensor) -> SharedCovariance:
    """Enlarge the covariance if all classes are old, and add the ridge."""
    enlarged = covariance if is_new[0] else enlarge(covariance, margin)
    return enlarged.plus_diagonal(torch.as_tensor(ridge, dtype=torch.float64).to(covariance.variances.device))


def alike(is_new: Tensor, margin: float) -> bool:
    """Return whether classes with the same covariance still have the same one after variance enlarging."""
    return margin == 0 or bool((is_new == is_new[0]).all())


def balanced(is_new: Tensor, balance: Balance) -> Tensor:
    """Return the weight of each class in the loss, (K,) in float64."""
    count, new = len(is_new), int(is_new.sum())
    if balance == "per_class" or new in (0, count):
        return torch.full((count,), 1 / count, dtype=torch.float64)
    shares = torch.tensor([1 / (count - new), 1 / new], dtype=torch.float64)
    return shares[is_new.long().cpu()]


class _Problem:
    """L_DB as a function of (weight, bias). Means (K, d) are centred and float64."""

    def __init__(self, mean: Tensor, covariances: Covariances, class_weight: Tensor, dtype: torch.dtype) -> None:
        self.mean, self.covariances, self.class_weight = mean, covariances, class_weight
        self.single = mean.to(dtype), covariances, torch.arange(len(mean), device=mean.device), class_weight.to(dtype)
        self.dtype = dtype
        self.average = covariances.average(class_weight / class_weight.sum()).double()
        self.whitener = Whitener(self.average)

    def evaluate(self, weight: Tensor, bias: Tensor) -> Evaluation:
        return evaluate(weight.to(self.dtype), bias.to(self.dtype), *self.single)

    def half_lda(self) -> tuple[Tensor, Tensor]:
        """Return the minimiser if all classes had the average covariance: half of LDA's weights."""
        white = self.whitener.push(self.mean)
        return self.whitener.unwhiten(white / 2), closed_bias(white @ white.T, self.class_weight)

    def scaled(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Halve weights and biases while this lowers the loss. Half of LDA is too large if class covariances differ."""
        loss = float(self.evaluate(weight, bias).loss)
        while True:
            halved = float(self.evaluate(weight / 2, bias / 2).loss)
            if not halved < loss:
                return weight, bias
            loss, weight, bias = halved, weight / 2, bias / 2

    def continued(self, weight: Tensor, bias: Tensor, start: Head, centre: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of `start` for its classes, and for the others rows of the closed form on the same scale."""
        known = len(start.weight)
        closed = self.whitener.whiten(weight[:known])
        scale = (self.whitener.whiten(start.weight.to(weight)) * closed).sum() / closed.square().sum().clamp_min(1e-300)
        scale = scale.clamp(0.0, 1.0)
        bias_there = (start.bias + start.weight @ centre.to(start.weight)).to(bias)
        shift = (bias_there - scale * bias[:known]).mean()  # both biases are determined up to a constant
        return torch.cat([start.weight.to(weight), scale * weight[known:]]), torch.cat(
            [bias_there - shift, scale * bias[known:]]
        )

    def measured(self, weight: Tensor, bias: Tensor) -> Head:
        """Return a head that is the closed-form minimiser, with its loss and gradient."""
        value = self.evaluate(weight, bias)
        assert value.weight is not None and value.bias is not None
        gradient = torch.cat([self.whitener.push(value.weight.double()), value.bias.double()[:, None]], 1)
        return Head(weight, bias, float(value.loss), float(gradient.norm()), 0.0, 0, 1, True)

    def minimise(self, weight: Tensor, bias: Tensor, tolerance: float, max_iterations: int) -> Head:
        """Run L-BFGS, first in coordinates whitened by the average covariance, then by the curvature of each class.

        The second coordinates cost about ten evaluations and several times the memory of the covariances. They pay off only
        near the minimum, where the curvature is nearly constant, and only if classes have their own covariances.
        """
        own = self.covariances.common is None or self.covariances.full is not None or self.covariances.factor is not None
        blocks = 4 * self.mean.numel() * self.mean.shape[1]  # bytes, if covariances are not diagonal
        fits = self.covariances.flat or blocks <= BLOCKS_BYTES
        few = min(SHARED_ITERATIONS, max_iterations) if own and fits else max_iterations
        first = self._descend(weight, bias, self.whitener, torch.ones_like(bias), tolerance, few)
        if first.converged or few == max_iterations:
            return first
        whitener, bias_scale = self.curvature(first.weight, first.bias)
        rest = max_iterations - first.iterations
        second = self._descend(first.weight, first.bias, whitener, bias_scale, tolerance, rest)
        return replace(
            second,
            iterations=first.iterations + second.iterations,
            evaluations=first.evaluations + second.evaluations,
        )

    def _descend(
        self, weight: Tensor, bias: Tensor, whitener: Whitener, bias_scale: Tensor, tolerance: float, most: int
    ) -> Head:
        def objective(point: Tensor) -> tuple[float, Tensor]:
            result = self.evaluate(whitener.unwhiten(point[:, :-1]), point[:, -1] * bias_scale)
            assert result.weight is not None and result.bias is not None
            rows = whitener.push(result.weight.double())
            return float(result.loss), torch.cat([rows, (result.bias * bias_scale)[:, None]], 1)

        point = torch.cat([whitener.whiten(weight), (bias / bias_scale)[:, None]], 1)
        first_step = 1 / float(self.class_weight.mean()) if whitener is self.whitener else 1.0
        outcome = minimise(objective, point, tolerance, most, first_step)
        weight, bias = whitener.unwhiten(outcome.point[:, :-1]), outcome.point[:, -1] * bias_scale
        return Head(
            weight,
            bias,
            outcome.value,
            outcome.gradient_norm,
            outcome.gap,
            outcome.iterations,
            outcome.evaluations,
            outcome.converged,
        )

    def curvature(self, weight: Tensor, bias: Tensor) -> tuple[Whitener, Tensor]:
        """Return coordinates from the Hessian's diagonal blocks, one per row of the weight, and the scales of the biases.

        Row j competes with each class k ≠ j and is the true row of class j. With a_jk = μ_k + Σ_k v_jk its block is
        Σ_k≠j c_k (p_jk Σ_k + p_jk (1 - p_jk) a_jk a_jkᵀ) + c_j (Σ_l≠j p_lj (Σ_j + a_lj a_ljᵀ) - ā āᵀ), ā = Σ_l≠j p_lj a_lj.
        For diagonal covariances only the diagonals of the blocks are computed, and no d × d matrix.
        """
        mean, covariances, _, class_weight = self.single
        weight = (weight - weight.mean(0)).to(self.dtype)
        share = self.evaluate(weight, bias).share  # c_k p_jk at [k, j], 0 at j = k
        variance = share * (1 - share / class_weight[:, None])
        leaving = share.sum(1)  # c_k (1 - p_kk)
        mixture = share.T + torch.diag(leaving)
        blocks = covariances.mixtures(mixture)
        # A small share of the average keeps the blocks of classes with few samples invertible.
        blocks += 1e-3 * column(mixture.sum(1), self.average.ndim) * self.average.to(blocks)
        bias_scale = (variance.sum(0) + leaving).double().clamp_min(1e-12).rsqrt()
        rows = max(1, CURVATURE_BYTES // (2 * weight.element_size() * weight.numel()))
        for start in range(0, len(weight), rows):
            group = slice(start, start + rows)
            rival = covariances.product(weight[group] - weight[:, None]) + mean[:, None]  # a_jk at [k, j in group]
            _add_products(blocks[group], (rival * variance[:, group, None]).transpose(0, 1), rival.transpose(0, 1))
            own = covariances.rows(group).product(weight - weight[group, None]) + mean[group, None]  # [j in group, l]
            pulled = own * share[group, :, None]
            _add_products(blocks[group], pulled, own)
            drift = pulled.sum(1, keepdim=True)
            _add_products(blocks[group], drift / -class_weight[group, None, None], drift)
        return Whitener(blocks, flat=covariances.flat), bias_scale


def _add_products(blocks: Tensor, left: Tensor, right: Tensor) -> None:
    """Add Σ_k left_jk right_jkᵀ of left and right (J, K, d) to blocks (J, d, d), or its diagonals to those (J, d)."""
    if blocks.ndim == 3:
        blocks.baddbmm_(left.mT, right)
    else:
        blocks += (left * right).sum(1)
