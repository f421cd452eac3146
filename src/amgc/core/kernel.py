"""L_DB and its gradient in one pass over the covariances. This is the inner loop of training and of the solver.

With v_jk = w_j - w_k, the loss of class k is log Σ_j exp z_jk, with z_jk = v_jkᵀ μ_k + ½ v_jkᵀ Σ_k v_jk + b_j - b_k (Eq. L-DB).
Its gradient is ∂/∂v_jk = p_jk (μ_k + Σ_k v_jk), with p the softmax of z. Both need the product Σ_k v_jk. So each Σ_k is read
once, while it is in the cache, and the K × K × d tensor of all products is never stored as a whole.
`benchmarks/db_loss.py` compares the speed with bare matrix products and with the form that ISDA, IL2A and PyCIL use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from amgc.core.covariance import Covariances, column

CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 256 << 20}  # workspace; on a CPU it should fit into the cache


class Needs(NamedTuple):
    """Which gradients to compute."""

    head: bool = True
    mean: bool = False
    full: bool = False
    factor: bool = False
    diagonal: bool = False
    common: bool = False


HEAD_ONLY = Needs()


class Evaluation(NamedTuple):
    """The loss (a float64 scalar), class_weight_k p_jk for j ≠ k as (K, C), and the gradients, None if not requested."""

    loss: Tensor
    share: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None
    full: Tensor | None
    factor: Tensor | None
    diagonal: Tensor | None
    common: Tensor | None


def evaluate(
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    covariances: Covariances,
    targets: Tensor,
    class_weight: Tensor,
    needs: Needs = HEAD_ONLY,
    soft_margin: float = 0.0,
    pushed: Tensor | None = None,
) -> Evaluation:
    """Compute Σ_k class_weight_k log Σ_j exp z_jk and its gradients.

    weight (C, d), bias (C,), mean (K, d), class_weight (K,), targets (K,): the row of each class in `weight`.
    soft_margin is added to z_jk of every other class j ≠ k. pushed (C, d) replaces a common covariance by its
    product with `weight`, if that is known already.
    """
    # Adding one vector to all rows of `weight` changes nothing. Centred rows lose least by cancellation in expanded squares.
    weight = weight - weight.mean(0)
    own = weight[targets]
    full, factor, diagonal, common = covariances.full, covariances.factor, covariances.diagonal, covariances.common
    scale, common_scale = column(covariances.scale), column(covariances.common_scale)

    # With a diagonal D and a common C the exponents are linear in w_j, apart from ½ w_jᵀ (D + C) w_j.
    linear = mean
    if diagonal is not None:
        linear = linear - diagonal * own
    if common is not None:
        pushed = weight @ common
    elif pushed is not None:
        pushed = pushed - pushed.mean(0)
    if pushed is not None:
        linear = linear - common_scale * pushed[targets]
    z = torch.addmm(bias, linear, weight.T)
    if diagonal is not None:
        z.addmm_(diagonal.expand_as(mean), weight.square().T, alpha=0.5)
    if pushed is not None:
        z += 0.5 * common_scale * (pushed * weight).sum(1)
    # Each row is correct up to a constant, which z_kk = 0 determines.
    z -= z.gather(1, targets[:, None])
    if soft_margin:
        z.add_(soft_margin).scatter_(1, targets[:, None], 0.0)

    p = torch.empty_like(z)
    gradient = torch.zeros_like(weight) if needs.head else None
    pull = torch.zeros_like(mean) if needs.head else None  # Σ_j p_jk Σ_k v_jk, subtracted from row k of the gradient
    full_gradient = torch.empty_like(full) if needs.full and full is not None else None
    factor_gradient = torch.empty_like(factor) if needs.factor and factor is not None else None
    rows = min(_chunk(weight, full, factor), len(mean))
    # Allocated once: new memory for every chunk costs more than the arithmetic.
    if full is not None:
        workspace = weight.new_empty(2, rows, *weight.shape)
    if factor is not None:
        thin_workspace = weight.new_empty(2, rows * factor.shape[2], len(weight))
    for start in range(0, len(mean), rows):
        chunk = slice(start, min(start + rows, len(mean)))
        if full is not None:
            v, product = workspace[:, : chunk.stop - chunk.start]
            torch.sub(weight, own[chunk, None], out=v)
            torch.bmm(v, full[chunk], out=product)
            size = scale[chunk] if isinstance(scale, Tensor) else scale
            z[chunk] += 0.5 * size * v.mul_(product).sum(2)
        if factor is not None:
            rank = factor.shape[2]
            thin = covariances.thin[chunk.start * rank : chunk.stop * rank]
            flat, squares = thin_workspace[:, : len(thin)]
            torch.mm(thin, weight.T, out=flat)
            seen = flat.view(-1, rank, len(weight))
            at_own = targets[chunk, None, None].expand(-1, rank, 1)
            seen -= seen.gather(2, at_own)  # Fᵀ v
            torch.mul(flat, flat, out=squares)
            z[chunk].add_(squares.view_as(seen).sum(1), alpha=0.5)
        torch.softmax(z[chunk], 1, out=p[chunk])
        # The own class has v = 0 and no gradient. Leaving it out keeps the small p of well-separated classes accurate.
        p[chunk] = (p[chunk] * class_weight[chunk, None]).scatter_(1, targets[chunk, None], 0.0)
        if full is not None and gradient is not None and pull is not None:
            share = p[chunk] * size
            torch.bmm(share[:, None], product, out=pull[chunk, None])
            for row, from_class in zip(share, product, strict=True):
                gradient.addcmul_(from_class, row[:, None])
        if factor is not None:
            seen *= p[chunk, None]
            seen.scatter_(2, at_own, -seen.sum(2, keepdim=True))  # the own column was 0
            if gradient is not None:
                gradient.addmm_(flat.T, thin)
            if factor_gradient is not None:
                factor_gradient[chunk] = (flat @ weight).view(-1, rank, weight.shape[1]).mT
        if full_gradient is not None:
            v = weight - own[chunk, None]
            torch.bmm((v * (0.5 * size * p[chunk])[:, :, None]).mT, v, out=full_gradient[chunk])

    loss = (z.double().logsumexp(1) * class_weight.double()).sum()
    average = p @ weight  # Σ_j p_jk w_j
    leaving = p.sum(1)  # class_weight_k (1 - p_kk)
    scaled = leaving[:, None]
    bias_gradient = None
    if gradient is not None and pull is not None:
        gradient.addmm_(p.T, linear)
        pull.addcmul_(scaled, linear)
        if diagonal is not None:
            gradient.addcmul_(weight, p.T @ diagonal.expand_as(mean))
            pull.addcmul_(diagonal, average)
        if pushed is not None:
            q = p * common_scale
            gradient.addcmul_(q.sum(0)[:, None], pushed)
            pull.addmm_(q, pushed)
        gradient.index_add_(0, targets, pull, alpha=-1)
        bias_gradient = p.sum(0).index_add_(0, targets, leaving, alpha=-1)
    mean_gradient = average - scaled * own if needs.mean else None
    diagonal_gradient = None
    if needs.diagonal and diagonal is not None:
        squares = p @ weight.square() - 2 * average * own + scaled * own.square()
        diagonal_gradient = 0.5 * (squares.sum(0, keepdim=True) if len(diagonal) == 1 else squares)
    common_gradient = None
    if needs.common and common is not None:
        q = p * common_scale
        crossed = own.T @ (q @ weight)
        common_gradient = weight.T @ (q.sum(0)[:, None] * weight) - crossed - crossed.T
        common_gradient = 0.5 * (common_gradient + own.T @ (q.sum(1)[:, None] * own))
    return Evaluation(
        loss,
        p,
        gradient,
        bias_gradient,
        mean_gradient,
        full_gradient,
        factor_gradient,
        diagonal_gradient,
        common_gradient,
    )


def _chunk(weight: Tensor, full: Tensor | None, factor: Tensor | None) -> int:
    """Return the number of classes per chunk, so that the workspace has at most `CHUNK_BYTES`."""
    columns = (0 if full is None else 2 * weight.shape[1]) + (0 if factor is None else 2 * factor.shape[2])
    per_class = max(1, len(weight) * columns * weight.element_size())
    return max(1, CHUNK_BYTES.get(weight.device.type, 64 << 20) // per_class)


class DistributionLoss(torch.autograd.Function):
    """`evaluate` for autograd. Gradients are computed together with the loss; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        full: Tensor | None,
        factor: Tensor | None,
        diagonal: Tensor | None,
        common: Tensor | None,
        scale: float | Tensor,
        common_scale: float | Tensor,
        targets: Tensor,
        class_weight: Tensor,
        soft_margin: float,
    ) -> Tensor:
        asked = ctx.needs_input_grad
        needs = Needs(asked[0] or asked[1], *asked[2:7])
        covariances = Covariances(full, factor, diagonal, common, scale, common_scale)
        with torch.autocast(weight.device.type, enabled=False):  # differences of squares need more than half precision
            result = evaluate(weight, bias, mean, covariances, targets, class_weight, needs, soft_margin)
        ctx.gradients = result[2:]
        return result.loss.to(weight.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if g is None else g * upstream[0] for g in ctx.gradients)
        return (*gradients, None, None, None, None, None)
