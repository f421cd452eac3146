"""How new samples of the classes would score, from the class statistics alone: leave-one-out in closed form.

Take LDA with Σ = S + ridge, S the pooled covariance with f degrees of freedom, and leave out a sample x = m_k + r of a class of
n samples. Then m_k becomes m_k - r / (n - 1), and Σ becomes Σ - c r rᵀ / f with c = n / (n - 1). By Sherman and Morrison its
inverse is Σ⁻¹ + u a aᵀ with a = Σ⁻¹ r, u = (c / f) / (1 - c h / f) and h = rᵀ Σ⁻¹ r. So the scores of x without x depend on
the K numbers z_j = m_jᵀ Σ⁻¹ r and on h only. Samples are not stored, but the covariance of z within a class and the mean of h
are known. Draws of z with this covariance stand for the samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core.gaussian import root
from amgc.core.shared import Factor
from amgc.core.statistics import ClassStatistics
from amgc.core.typical import half_scores
from amgc.core.whitening import Whitener

CLASSES, NUMBERS = 64, 1 << 24  # limits: classes to draw from, and numbers in their covariances of z
DRAWS = 4096  # in total
MANY = 1024  # classes from which on, if there are fewer features, residuals are drawn instead of their products with the means
PRIOR = 10.0  # weight of the pooled covariance in the covariance of z of a class, in samples
STEPS = 40  # of the bisection for the best temperature
MOST = 1 - 1e-6  # the largest leverage of a sample, h c / f; beyond it the trace below was estimated too large


class LeftOut(NamedTuple):
    """Products with Σ⁻¹ of a left-out sample x (n rows), after leaving it out; K classes.

    to_means (n, K) : m_jᵀ Σ⁻¹ x. means (n, K) : m_jᵀ Σ⁻¹ m_j. own (n,) : xᵀ Σ⁻¹ x. around (n,) : rᵀ Σ⁻¹ r.
    """

    to_means: Tensor
    means: Tensor
    own: Tensor
    around: Tensor

    def scores(self, keep: Tensor) -> Tensor:
        """Return half of LDA's scores (n, K) for means that are drawn towards their average by 1 - keep (K,)."""
        return half_scores(self.to_means, self.means, keep)


def left_out(inner: Tensor, z: Tensor, h: Tensor, row: int, count: float, freedom: float) -> LeftOut:
    """Return the products of samples of class `row` after leaving each out.

    inner (K, K) : m_iᵀ Σ⁻¹ m_j, with means centred at their average. z (n, K) and h (n,) as above. With infinite `freedom`, Σ
    does not depend on the sample.
    """
    c = count / (count - 1)
    u = (c / freedom) / (1 - (c / freedom * h).clamp_max(MOST))
    # Vectors become p + α r: the centre moves by -r / (n - 1) / K, and m_k by -r / (n - 1).
    centre = 1 / (count - 1) / len(inner)
    alpha = torch.full_like(inner[0], centre)
    alpha[row] -= 1 / (count - 1)
    h, u, own = h[:, None], u[:, None], z[:, row, None]
    of_means, of_x = z + alpha * h, own + (1 + centre) * h  # products with a
    to_means = inner[row] + (1 + centre) * z + alpha * own + alpha * (1 + centre) * h + u * of_means * of_x
    means = inner.diagonal() + 2 * alpha * z + alpha.square() * h + u * of_means.square()
    x = inner[row, row] + 2 * (1 + centre) * own + (1 + centre) ** 2 * h + u * of_x.square()
    return LeftOut(to_means, means, x[:, 0], (h + u * h.square())[:, 0])


@dataclass(frozen=True)
class Within:
    """Means and covariances of the classes in the metric Σ⁻¹. Classes are in an order that does not depend on their arrival.

    order (K,) : rows of the statistics. mean (K, d) : class means less their average. count, keep (K,).
    inner (K, K) : products of the means. length (K,) : the mean of h c of a class, and leverage (K,) that of h c / f.
    freedom : f. Without correlations it is inf, because a sample changes each variance a little, but Σ in no direction much.
    chosen : the classes to draw from, those with at least two samples, or some of them. roots : for each of them, a matrix
        (m, K) that makes draws of z from standard normal numbers (n, m).
    """

    order: Tensor
    mean: Tensor
    count: Tensor
    keep: Tensor
    freedom: float
    inner: Tensor
    length: Tensor
    leverage: Tensor
    chosen: list[int]
    roots: list[Tensor]

    @classmethod
    def of(cls, statistics: ClassStatistics, metric: Factor | Tensor, keep: Tensor) -> Within:
        """Return it for the regularised Σ: its factor, a matrix (d, d), or its diagonal (d,)."""
        mean = statistics.mean - statistics.mean.mean(0)
        # An odd function of the means: two classes have opposite ones, whose lengths are equal up to rounding.
        order = (mean / mean.abs().max().clamp_min(1e-300)).pow(3).sum(1).argsort().cpu()
        mean, count = mean[order], statistics.count.cpu()[order].double()
        freedom = float("inf") if isinstance(metric, Tensor) and metric.ndim == 1 else float(max(statistics.freedom, 1))
        if isinstance(metric, Factor):
            white = metric.white(mean.T).double()
            weight, level = metric.solve(white.to(metric.root)).T, metric.covariance.variances
            trace = max(statistics.dim - metric.share(metric.covariance.extra), 0.0)
        else:
            whitener, pooled = Whitener(metric), statistics.pooled().double()
            white, level = whitener.push(mean).T, metric if metric.ndim == 1 else metric.diagonal()
            weight = whitener.unwhiten(white.T)
            trace = float((whitener.push(pooled) * (whitener.inverse.mT if pooled.ndim == 2 else whitener.inverse)).sum())
        inner = (white.T @ white).cpu()
        few = max(4, min(CLASSES, NUMBERS // len(count) ** 2))
        able = [row for row in range(len(count)) if count[row] > 1]
        chosen = [able[int(at)] for at in torch.linspace(0, len(able) - 1, min(len(able), few)).round()] if able else []
        roots, size = _roots(statistics, weight, order, chosen, count, level)
        odds = size / max(1 / min(max(trace / freedom, 1e-12), MOST) - 1, 1e-12)  # of the leverage, which stays below 1
        leverage = odds / (1 + odds)
        length = trace * size if math.isinf(freedom) else freedom * leverage
        return cls(order, mean, count, keep.cpu()[order], freedom, inner, length, leverage, chosen, roots)

    @cached_property
    def draws(self) -> list[tuple[int, LeftOut]]:
        """For each chosen class, what leaving out each of its samples would give, with draws in place of the samples."""
        found = []
        number = max(DRAWS // max(len(self.chosen), 1), 1)
        random = torch.Generator().manual_seed(0)
        noise = torch.randn(number, len(self.roots[0]), generator=random, dtype=torch.float64) if self.roots else torch.empty(0)
        for row, made in zip(self.chosen, self.roots, strict=True):
            count = float(self.count[row])
            h = torch.full((number,), float(self.length[row]) * (count - 1) / count, dtype=torch.float64)
            found.append((row, left_out(self.inner, noise @ made, h, row, count, self.freedom)))
        return found

    @cached_property
    def leads(self) -> Tensor:
        """How far each class's score is above that of the true class, for all draws (n, K)."""
        scores = [(row, one.scores(self.keep)) for row, one in self.draws]
        return torch.cat([found - found[:, row, None] for row, found in scores])

    def loss(self) -> float:
        """Return the log-loss of the draws at the temperature that is best for them."""
        leads = self.leads / self.leads.abs().mean().clamp_min(1e-300)
        return float(torch.logsumexp(sharpness(leads) * leads, 1).mean())


def sharpness(leads: Tensor) -> float:
    """Return the s that minimises the mean of log Σ_j exp(s lead_j). Leads (..., K) are 0 for the true class.

    The mean is convex in s. Its derivative is bisected on a logarithmic scale. At the lower end, all classes are about equally
    likely: one left-out sample of two is too little evidence to go further. Leads far above 1 are those of classes that
    overlap, whose means are known well.
    """
    low, high = 0.05 / max(float(leads.square().mean().sqrt()), 1.0), 1e4
    scaled, share = torch.empty_like(leads), torch.empty_like(leads)  # with many classes, new memory costs more than arithmetic
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        torch.softmax(torch.mul(leads, middle, out=scaled), -1, out=share)
        slope = float(share.mul_(leads).sum(-1).mean())
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float((low * high) ** 0.5)


def _roots(
    statistics: ClassStatistics, weight: Tensor, order: Tensor, chosen: list[int], count: Tensor, level: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return roots of the covariances of z of the chosen classes, and the size of every class's covariance (K,).

    weight (K, d) is Σ⁻¹ m. The size is relative to the pooled covariance. Both are mixed with the pooled ones by `PRIOR`.
    z is a linear function of r, so a root of its covariance follows from one of the covariance of r: the smaller one with many
    classes.
    """
    share = (count - 1) / (count - 1 + PRIOR)  # of the class's own
    used = 1 - 1 / count  # residuals of the samples vary a little less than new ones
    small = len(count) > max(MANY, statistics.dim)

    def made(covariance: Tensor, scale: float) -> Tensor:
        """Return a root for a covariance of r (d, d), or of z (K, K)."""
        found = root(covariance) @ weight.T.double().cpu() if small else root(covariance)
        return found * math.sqrt(scale)

    if statistics.form == "shared":
        within = statistics.shared()
        relative = (statistics.sizes() / within.variances.sum().clamp_min(1e-300)).cpu()[order]
        size = 1 + share * (relative - 1)
        pooled = statistics.pooled().double().cpu() if small else (weight @ within.times(weight.T.to(statistics.device))).cpu()
        once = made(pooled, 1.0) if chosen else pooled
        return [float(size[row] * used[row]) ** 0.5 * once for row in chosen], size
    average = statistics.pooled()
    rows = weight.to(average)
    covariances = statistics.covariances
    size = (covariances.variances().double() / level).sum(1)[order.to(level.device)]
    size = size / ((average if average.ndim == 1 else average.diagonal()).double() / level).sum().clamp_min(1e-300)
    size = 1 + share * (size.cpu() - 1)
    wider = dependence(statistics) if statistics.form == "diagonal" else 1.0  # independent features would vary less
    base = torch.eye(statistics.dim, dtype=average.dtype, device=average.device) if small else rows
    pooled = (base * average @ base.T if average.ndim == 1 else base @ average @ base.T).double().cpu()
    parts = []
    for row in chosen:
        own = covariances.rows(slice(int(order[row]), int(order[row]) + 1))
        projected = (own.product(base[None])[0] @ base.T).double().cpu()
        mixed = pooled + share[row] * ((projected + projected.T) / 2 - pooled)
        parts.append(made(mixed, float(used[row]) * wider))
    return parts, size


def dependence(statistics: ClassStatistics) -> float:
    """Return by how much correlations increase the sum of squared covariances, at least 1, for statistics of form "diagonal".

    Along random signs s, sᵀ S s varies by twice the squared off-diagonal entries of S, and by sampling.
    """
    share = (statistics.count - 1).double() / max(statistics.freedom, 1)
    along, variances = (share.to(statistics.device) @ statistics._rows(name).double() for name in ("sketch", "diagonal"))
    beyond = along.var() - 2 * along.mean().square() / max(statistics.freedom, 1)
    return 1 + float(beyond.clamp_min(0) * statistics.dim**2 / 2 / variances.square().sum().clamp_min(1e-300))
