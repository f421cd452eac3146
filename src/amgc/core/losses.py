"""The paper's losses. All are differentiable in weight, bias, mean and covariance, but not in `class_weight`.

weight (C, d) and bias (C,) are the head. mean (K, d) and covariance are those of the K classes that the loss averages over. The
covariance is a tensor (K, d, d), diagonals (K, d), a `LowRank` or `Covariances`. `targets` (K,) are the rows of the classes in
the head (default: 0..K-1). `among` are the rows in the softmax (default: all, a global classifier; a subset: a local one).
`class_weight` (K,) replaces the mean over classes by a weighted sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from amgc.core.covariance import AnyCovariance, as_covariances, enlarge
from amgc.core.kernel import DistributionLoss


def distribution_loss(
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    covariance: AnyCovariance,
    *,
    targets: Tensor | None = None,
    among: Tensor | None = None,
    class_weight: Tensor | None = None,
) -> Tensor:
    """Compute Eq. (L-DB): the mean over classes of log Σ_j exp(v_jkᵀ μ_k + ½ v_jkᵀ Σ_k v_jk + δ_jk).

    This is an upper bound of the expected cross-entropy under N(μ_k, Σ_k). For old and new classes together it is L_DBGC. With
    `among` restricted to the old or to the new classes, it is their local loss (DBLC).

    >>> mean = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> weight = mean / 2  # half of LDA, the optimum for a shared covariance: log(1 + exp(-D²/8)), D = 2
    >>> round(distribution_loss(weight, torch.zeros(2), mean, torch.eye(2).repeat(2, 1, 1)).item(), 4)
    0.4741
    """
    return _distribution_loss(weight, bias, mean, covariance, targets, among, class_weight, soft_margin=0.0)


def amarx_loss(
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    covariance: AnyCovariance,
    *,
    margin: float = 0.4,
    targets: Tensor | None = None,
    among: Tensor | None = None,
    class_weight: Tensor | None = None,
) -> Tensor:
    """Compute Eq. (L-AMarX-O) as Eq. (margin-start): L_DB with variance-enlarged covariances (VE).

    Eq. (margin) is the same loss written with margins, which `margins` and `pairwise_margins` return. The paper's total loss,
    Eq. (separate), is `distribution_loss` of the new classes plus `amarx_loss` of the old classes.
    """
    enlarged = enlarge(covariance, margin)
    return distribution_loss(weight, bias, mean, enlarged, targets=targets, among=among, class_weight=class_weight)


def sample_loss(weight: Tensor, bias: Tensor, features: Tensor, targets: Tensor, *, among: Tensor | None = None) -> Tensor:
    """Compute Eq. (sample): the softmax cross-entropy of features (N, d), real or drawn by `gaussian.sample`; targets (N,)."""
    weight, bias, targets = _select(weight, bias, len(features), targets, among)
    return torch.nn.functional.cross_entropy(features @ weight.T + bias, targets)


def soft_margin_loss(
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    covariance: AnyCovariance,
    *,
    margin: float,
    targets: Tensor | None = None,
    among: Tensor | None = None,
    class_weight: Tensor | None = None,
) -> Tensor:
    """Compute SM of Table 3: L_DB with one constant margin for all classes, subtracted from the logit of the true class.

    In the distribution-based form, `margin` is added to the exponents of all other classes.
    """
    return _distribution_loss(weight, bias, mean, covariance, targets, among, class_weight, soft_margin=margin)


def margins(weight: Tensor, covariance: AnyCovariance, margin: float, targets: Tensor | None = None) -> Tensor:
    """Return m_k = λ/2 w_kᵀ Λ_k w_k of Eq. (margin), (K,), with the rows of `weight` centred.

    Adding one vector to every row changes no prediction and no loss, but it changes m_k. Centring makes m_k unique.
    `pairwise_margins` do not depend on it.
    """
    spread = as_covariances(covariance).variances()
    centred = weight - weight.mean(0)
    own = centred if targets is None else centred[targets]
    return margin / 2 * (own.square() * spread).sum(1)


def pairwise_margins(weight: Tensor, covariance: AnyCovariance, margin: float, targets: Tensor | None = None) -> Tensor:
    """Return m_k + β_jk = λ/2 v_jkᵀ Λ_k v_jk ≥ 0, the margin of class k against class j, (K, C)."""
    own = weight if targets is None else weight[targets]
    spread = as_covariances(covariance).variances().expand(len(own), -1)
    return torch.stack([margin / 2 * ((weight - w).square() @ s) for w, s in zip(own, spread, strict=True)])


def _distribution_loss(
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    covariance: AnyCovariance,
    targets: Tensor | None,
    among: Tensor | None,
    class_weight: Tensor | None,
    soft_margin: float,
) -> Tensor:
    parts = as_covariances(covariance)
    if mean.ndim != 2 or not len(mean) or mean.shape[1] != weight.shape[1]:
        raise ValueError(f"mean must have shape (classes, {weight.shape[1]}) with at least one class, not {tuple(mean.shape)}.")
    for part in parts.parts():
        if part is not parts.common and len(part) not in (1, len(mean)):
            raise ValueError(f"{len(mean)} means but covariances of {len(part)} classes.")
        if part.shape[1] != mean.shape[1]:
            raise ValueError(f"means of {mean.shape[1]} features but covariances of {part.shape[1]}.")
    mean = mean.to(weight.dtype)  # means of class statistics are in float64
    weight, bias, targets = _select(weight, bias, len(mean), targets, among)
    if class_weight is None:
        class_weight = torch.full((len(mean),), 1 / len(mean), dtype=weight.dtype, device=weight.device)
    loss: Tensor = DistributionLoss.apply(  # type: ignore[no-untyped-call]
        weight,
        bias,
        mean,
        parts.full,
        parts.factor,
        parts.diagonal,
        parts.common,
        parts.scale,
        parts.common_scale,
        targets,
        class_weight,
        soft_margin,
    )
    return loss


def _select(
    weight: Tensor, bias: Tensor, count: int, targets: Tensor | None, among: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of the head in the softmax, and the targets as indices of these rows."""
    if targets is None:
        targets = torch.arange(count, device=weight.device)
    targets = targets.to(weight.device)
    if len(targets) != count:
        raise ValueError(f"{count} classes or rows, but {len(targets)} targets.")
    if count and not 0 <= int(targets.min()) <= int(targets.max()) < len(weight):
        raise ValueError(f"targets must lie in 0..{len(weight) - 1}, the rows of weight.")
    if among is None:
        return weight, bias, targets
    among = among.to(weight.device)
    position = torch.full((len(weight),), -1, device=weight.device)
    position[among] = torch.arange(len(among), device=weight.device)
    local = position[targets]
    if bool((local < 0).any()):
        missing = targets[local < 0].tolist()
        raise ValueError(f"targets {missing} are not among the classes of the softmax {among.tolist()}.")
    return weight[among], bias[among], local
