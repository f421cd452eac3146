"""Covariances of K classes, stored as a sum of parts.

L_DB needs only quadratic forms vᵀ Σ_k v, which are sums over the parts. Variance enlarging, a variance floor and shrinkage
towards the pooled covariance change only the small parts (the diagonal and the common matrix), so the K × d × d numbers are
never copied.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeAlias, overload

import torch
from torch import Tensor

from amgc.core import symmetric

CLASSES = 1024  # whose factors are copied at a time


@dataclass(frozen=True)
class LowRank:
    """Class covariances as a low-rank factor and the exact variances.

    Off the diagonal Σ_k is factor_k factor_kᵀ; on the diagonal it is `diagonal`. Variance enlarging needs exact variances.

    factor (K, d, r), diagonal (K, d).
    """

    factor: Tensor
    diagonal: Tensor

    def dense(self) -> Tensor:
        """Return the covariances as one tensor (K, d, d)."""
        product = self.factor @ self.factor.mT
        return product + torch.diag_embed(self.diagonal - product.diagonal(dim1=-2, dim2=-1))


@dataclass(frozen=True)
class Covariances:
    """Σ_k = scale_k full_k + factor_k factor_kᵀ + diag(diagonal_k) + common_scale_k common. Parts that are None are zero.

    full (K, d, d), factor (K, d, r), diagonal (K, d) or (1, d), common (d, d). Scales are one number or one per class (K,).
    """

    full: Tensor | None = None
    factor: Tensor | None = None
    diagonal: Tensor | None = None
    common: Tensor | None = None
    scale: float | Tensor = 1.0
    common_scale: float | Tensor = 1.0

    @cached_property
    def thin(self) -> Tensor:
        """The columns of all factors as rows, (K r, d), for one matrix product with all classes."""
        assert self.factor is not None
        return self.factor.mT.reshape(-1, self.factor.shape[1])

    def parts(self) -> list[Tensor]:
        """Return the parts that are not None."""
        return [part for part in (self.full, self.factor, self.diagonal, self.common) if part is not None]

    @property
    def flat(self) -> bool:
        """Whether all covariances are diagonal."""
        return self.full is None and self.factor is None and self.common is None

    def double(self) -> Covariances:
        """Return the covariances in float64."""
        values = {
            field.name: value.double() for field in fields(self) if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **values)

    def variances(self) -> Tensor:
        """Return the diagonals of all Σ_k: (K, d), or (1, d) if every class has the same covariance."""
        parts = []
        if self.full is not None:
            parts.append(column(self.scale) * self.full.diagonal(dim1=-2, dim2=-1))
        if self.factor is not None:
            parts.append(torch.cat([part.square().sum(-1) for part in torch.split(self.factor, CLASSES)]))
        if self.diagonal is not None:
            parts.append(self.diagonal)
        if self.common is not None:
            parts.append(column(self.common_scale) * self.common.diagonal().unsqueeze(0))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def rows(self, classes: slice) -> Covariances:
        """Return the covariances of the classes in the slice."""
        full, factor, diagonal = (part if part is None else part[classes] for part in (self.full, self.factor, None))
        if self.diagonal is not None:
            diagonal = self.diagonal if len(self.diagonal) == 1 else self.diagonal[classes]
        scale, common_scale = (s[classes] if isinstance(s, Tensor) else s for s in (self.scale, self.common_scale))
        return replace(self, full=full, factor=factor, diagonal=diagonal, scale=scale, common_scale=common_scale)

    def plus_diagonal(self, extra: Tensor) -> Covariances:
        """Add `extra` (K, d) to the variances."""
        return replace(self, diagonal=extra if self.diagonal is None else self.diagonal + extra)

    def scaled(self, factor: float) -> Covariances:
        """Multiply all Σ_k by `factor`."""
        thin, diagonal = self.factor, self.diagonal
        return replace(
            self,
            factor=None if thin is None else thin * factor**0.5,
            diagonal=None if diagonal is None else diagonal * factor,
            scale=self.scale * factor,
            common_scale=self.common_scale * factor,
        )

    def average(self, share: Tensor) -> Tensor:
        """Return Σ_k share_k Σ_k for shares that sum to one: (d, d), or (d,) if all are diagonal."""
        flat: Tensor | None = None
        if self.full is not None:
            flat = torch.tensordot((share * self.scale).to(self.full.dtype), self.full, dims=1)
        if self.factor is not None:
            product = self.factor.new_zeros(self.factor.shape[1], self.factor.shape[1])
            root = share.to(self.factor.dtype).sqrt()
            for own, factor in zip(torch.split(root, CLASSES), torch.split(self.factor, CLASSES), strict=True):
                thin = (factor * own[:, None, None]).transpose(0, 1).reshape(factor.shape[1], -1)
                product.addmm_(thin, thin.T)
            flat = product if flat is None else flat + product
        if self.common is not None:
            common = (share * self.common_scale).sum().to(self.common.dtype) * self.common
            flat = common if flat is None else flat + common
        if self.diagonal is None:
            assert flat is not None
            return flat
        variances = share.to(self.diagonal.dtype) @ self.diagonal.expand(share.shape[0], -1)
        if flat is None:
            return variances
        flat.diagonal().add_(variances)
        return flat

    def product(self, v: Tensor) -> Tensor:
        """Return Σ_k v_kj for vectors v (K, J, d)."""
        result = torch.zeros_like(v)
        if self.full is not None:
            torch.bmm(v * column(self.scale, 2), self.full, out=result)
        if self.factor is not None:
            result += (v @ self.factor) @ self.factor.mT
        if self.diagonal is not None:
            result.addcmul_(v, self.diagonal[:, None])
        if self.common is not None:
            result += (v * column(self.common_scale, 2)) @ self.common
        return result

    def mixtures(self, shares: Tensor) -> Tensor:
        """Return Σ_k shares_jk Σ_k for each row j of `shares` (J, K): (J, d, d), or (J, d) if all are diagonal."""
        if self.flat:
            assert self.diagonal is not None
            return shares @ self.diagonal.expand(shares.shape[1], -1)
        dim = self.parts()[0].shape[1]
        result = shares.new_zeros(len(shares), dim, dim)
        flat = result.view(len(shares), -1)
        if self.full is not None:
            flat.addmm_(shares * self.scale, self.full.reshape(len(self.full), -1))
        if self.factor is not None:
            for k, thin in enumerate(self.factor):
                flat.addr_(shares[:, k], (thin @ thin.T).view(-1))
        if self.diagonal is not None:
            spread = self.diagonal.expand(shares.shape[1], -1)
            result.diagonal(dim1=-2, dim2=-1).add_(shares @ spread)
        if self.common is not None:
            result += (shares * self.common_scale).sum(1)[:, None, None] * self.common
        return result

    def shrunk(self, pooled: Tensor, towards_pooled: float | Tensor, towards_diagonal: float) -> Covariances:
        """Mix every Σ_k with the pooled covariance, then the result with the pooled diagonal.

        Σ_k ← (1 - b) ((1 - a_k) Σ_k + a_k Σ_p) + b diag(Σ_p), with a = towards_pooled, one number or one per class, and
        b = towards_diagonal. `pooled` is Σ_p (d, d), or its diagonal (d,) if all are diagonal. The covariances must have a
        form of `ClassStatistics`: either the one common matrix Σ_p, or parts that belong to one class each.
        """
        if self.full is None and self.factor is None and self.diagonal is None:  # Σ_k is Σ_p already
            return Covariances(common=(1 - towards_diagonal) * pooled + towards_diagonal * torch.diag(pooled.diagonal()))
        own, shared = (1 - towards_diagonal) * (1 - towards_pooled), (1 - towards_diagonal) * towards_pooled
        variances = pooled if pooled.ndim == 1 else pooled.diagonal()
        diagonal = towards_diagonal * variances.unsqueeze(0)
        if self.diagonal is not None:
            diagonal = diagonal + column(own) * self.diagonal
        if pooled.ndim == 1:
            return replace(self, diagonal=diagonal + column(shared) * variances.unsqueeze(0))
        return Covariances(
            full=self.full,
            factor=None if self.factor is None else column(own, 2) ** 0.5 * self.factor,
            diagonal=diagonal,
            common=pooled,
            scale=own * self.scale,
            common_scale=shared,
        )


@dataclass(frozen=True)
class SharedCovariance:
    """One covariance of all classes: Σ = keep · upper off the diagonal, and `variances` on it.

    Shrinking, loading and enlarging it does not copy the matrix.

    upper (d, d): entries below the diagonal are not read. variances (d,) in float64.
    """

    upper: Tensor
    keep: float
    variances: Tensor

    @property
    def dim(self) -> int:
        return len(self.upper)

    def times(self, columns: Tensor) -> Tensor:
        """Return Σ x for columns x (d, m)."""
        return symmetric.product(self.upper, columns).mul_(self.keep).addcmul_(self.extra[:, None].to(columns), columns)

    @property
    def extra(self) -> Tensor:
        """The part of the variances beyond keep · upper, (d,)."""
        return self.variances - self.keep * self.upper.diagonal().to(self.variances)

    def plus_diagonal(self, extra: float | Tensor) -> SharedCovariance:
        """Add `extra`, one number or (d,), to the variances."""
        return replace(self, variances=self.variances + extra)

    def plus(self, matrix: Tensor) -> SharedCovariance:
        """Add a symmetric matrix (d, d), in float64."""
        upper = (self.upper.double() * self.keep + matrix.to(self.upper.device)).triu()
        return SharedCovariance(upper, 1.0, self.variances + matrix.diagonal().to(self.variances))


def column(scale: float | Tensor, axes: int = 1) -> float | Tensor:
    """Add axes to numbers per class (K,), to multiply rows by them. A single number is returned unchanged."""
    return scale[(..., *[None] * axes)] if isinstance(scale, Tensor) else scale


AnyCovariance: TypeAlias = "Tensor | LowRank | Covariances"


def as_covariances(covariance: AnyCovariance) -> Covariances:
    """Convert a tensor (K, d, d), diagonals (K, d), a `LowRank` or `Covariances` to `Covariances`."""
    if isinstance(covariance, Covariances):
        return covariance
    if isinstance(covariance, LowRank):
        residual = covariance.diagonal - covariance.factor.square().sum(-1)
        return Covariances(factor=covariance.factor, diagonal=residual)
    if covariance.ndim == 3:
        return Covariances(full=covariance)
    if covariance.ndim == 2:
        return Covariances(diagonal=covariance)
    raise ValueError(
        f"a covariance of shape {tuple(covariance.shape)} is neither (classes, d, d) nor its diagonals (classes, d)."
    )


@overload
def enlarge(covariance: SharedCovariance, margin: float) -> SharedCovariance: ...
@overload
def enlarge(covariance: AnyCovariance, margin: float | Tensor) -> Covariances: ...
def enlarge(covariance: AnyCovariance | SharedCovariance, margin: float | Tensor) -> Covariances | SharedCovariance:
    """Apply VE, Eq. (ve): Σ_k + λ Λ_k, with Λ_k the diagonal of Σ_k.

    The result shares the memory of large matrices with the input. The margin λ is one number or one per class (K,).

    >>> enlarge(torch.tensor([[1.0, 2.0]]), 0.5).variances()
    tensor([[1.5000, 3.0000]])
    """
    if not bool((torch.as_tensor(margin) >= 0).all()):
        raise ValueError(f"margin must not be negative, not {margin}.")
    if isinstance(covariance, SharedCovariance):
        return covariance.plus_diagonal(margin * covariance.variances)
    parts = as_covariances(covariance)
    return parts if not isinstance(margin, Tensor) and margin == 0 else parts.plus_diagonal(column(margin) * parts.variances())
