"""Calibrated probabilities, from the class statistics alone.

The softmax of the L_DB scores is not calibrated. On true Gaussians it is underconfident, because the optimum is half of LDA. On
real features with few samples it is overconfident, because weights and statistics come from the same samples. No samples are
stored, so there are no held-out data. Instead, the temperature minimises the expected log-loss of draws from the class
Gaussians, corrected for the optimism of the fit on its own samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core.covariance import Covariances
from amgc.core.gaussian import root, sample
from amgc.core.solver import Head
from amgc.core.statistics import ClassStatistics
from amgc.core.whitening import Whitener


class Correction(NamedTuple):
    """How new samples differ from the samples of a fit. Both (K,), float64, on the CPU.

    spread : they are this many times as far from their class mean.
    optimism : the score of their own class is lower by this.
    """

    spread: Tensor
    optimism: Tensor


CLASSES, DRAWS = 64, 4096  # the largest number of classes to draw from, and of draws in total
PRIOR = 10  # weight of the pooled covariance in each class's own, in samples


def temperature(
    head: Head,
    statistics: ClassStatistics,
    average: Tensor,
    towards_pooled: Tensor,
    towards_diagonal: float,
    known: Correction | None = None,
) -> float:
    """Return the temperature that divides the scores of `head` before the softmax. See `correction` for the parameters."""
    found = known or correction(head, statistics, average, towards_pooled, towards_diagonal)
    if found is None:
        return 1.0
    means, weight, bias = _centred(head, statistics)
    chosen = _chosen(means)
    pooled = statistics.pooled().double().cpu()
    prior = PRIOR / (statistics.count[chosen].double() - 1 + PRIOR)
    mixed = _mixed(statistics.covariances, chosen, pooled, prior)
    large = 0 if mixed.flat else 1 if mixed.full is None else len(chosen)  # number of d × d roots that drawing features needs
    if large * statistics.dim**3 < len(chosen) * len(weight) ** 3:
        nothing = torch.zeros(len(chosen), statistics.dim, dtype=torch.float64)
        noise = sample(nothing, mixed, _draws(chosen), _generator()) @ weight.T
    else:
        noise = _score_noise(weight @ mixed.product(weight.expand(len(chosen), -1, -1)).mT, means, chosen)
    return _least_loss(means, weight, bias, chosen, noise, found)


def correction(
    head: Head, statistics: ClassStatistics, average: Tensor, towards_pooled: Tensor, towards_diagonal: float
) -> Correction | None:
    """Return how new samples differ from those of the fit; None if there are too few samples or classes.

    average : the regularised covariance of the solve, averaged over classes, (d, d) or (d,).
    towards_pooled (K,), towards_diagonal : its shrinkage (`Covariances.shrunk`).

    New samples are farther from the class mean than the samples that it was computed from. This costs the score of their own
    class ½ df / n_k on average. They also vary more along fitted directions than the fitted covariance, by 1 / (1 - df / n)²
    as in generalised cross-validation. Here df = tr(Σ_reg⁻¹ (1 - b) Σ) is the number of degrees of freedom of the fit. The
    shares of the classes' own covariances, with their few samples, are added to first order.
    """
    count = statistics.count.double()
    freedom = float((count - 1).sum())
    if len(statistics) < 2 or freedom < 1:
        return None
    pooled = statistics.pooled().double().cpu()
    whitener = Whitener(average.double().cpu())
    fitted = (1 - towards_diagonal) * float(
        (whitener.push(pooled) * (whitener.inverse.mT if pooled.ndim == 2 else whitener.inverse)).sum()
    )  # df
    pooled_share = min(fitted / freedom, 0.9)
    means, weight, _ = _centred(head, statistics)
    own_share = torch.zeros_like(count) if statistics.form == "shared" else 1 - towards_pooled.cpu()
    spread = (1 + own_share * fitted / count).sqrt() / (1 - pooled_share)
    return Correction(spread, 0.5 * _scale(weight, means, whitener) * fitted / (1 - pooled_share) / count)


def shared_correction(statistics: ClassStatistics, fitted: float) -> Correction | None:
    """Return the `correction` of the closed form with a shared covariance and `fitted` degrees of freedom."""
    freedom = float(statistics.freedom)
    if len(statistics) < 2 or freedom < 1:
        return None
    count = statistics.count.double()
    share = min(fitted / freedom, 0.9)
    return Correction(torch.full_like(count, 1 / (1 - share)), 0.5 * fitted / (1 - share) / count)


def sample_temperature(scores: Tensor, at_means: Tensor, targets: Tensor, correct: Correction) -> float:
    """Return the best temperature for samples of the fit, corrected for their having been used in it.

    scores (n, K) of the samples, at_means (K, K) of the class means, targets (n,). Classes are in the order of `correct`.
    """
    centre, rows = at_means[targets], torch.arange(len(targets))
    fresh = centre + correct.spread[targets][:, None] * (scores - centre)
    fresh[rows, targets] -= correct.optimism[targets]
    return 1 / _sharpness(fresh - fresh[rows, targets][:, None])


def shared_temperature(head: Head, statistics: ClassStatistics, fitted: float) -> float:
    """Return the `temperature` of the closed form with a shared covariance and `fitted` degrees of freedom."""
    found = shared_correction(statistics, fitted)
    if found is None:
        return 1.0
    means, weight, bias = _centred(head, statistics)
    chosen = _chosen(means)
    spread = weight @ statistics.shared().times(weight.T.to(statistics.device)).cpu()
    return _least_loss(means, weight, bias, chosen, _score_noise(spread, means, chosen), found)


def _centred(head: Head, statistics: ClassStatistics) -> tuple[Tensor, Tensor, Tensor]:
    """Return class means minus their average, and weight and bias of the head for such features."""
    centre = statistics.mean.mean(0)
    return (statistics.mean - centre).cpu(), head.weight.cpu(), (head.bias + head.weight @ centre).cpu()


def _by_size(means: Tensor) -> Tensor:
    """Return the classes in an order that does not depend on their arrival."""
    return means.square().sum(1).argsort()


def _chosen(means: Tensor) -> Tensor:
    """Return the classes to draw from."""
    return _by_size(means)[torch.linspace(0, len(means) - 1, min(len(means), CLASSES)).round().long()]


def _draws(chosen: Tensor) -> int:
    return max(DRAWS // len(chosen), 1)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _score_noise(spread: Tensor, means: Tensor, chosen: Tensor) -> Tensor:
    """Return draws (classes, draws, K) from N(0, spread), with spread W Σ Wᵀ (K, K), or one per chosen class (classes, K, K).

    The scores of draws from N(μ, Σ) are draws from N(W μ + b, W Σ Wᵀ). These need only K numbers each.
    """
    order = _by_size(means)  # so that random numbers do not depend on the order of arrival
    numbers = torch.randn(len(chosen), _draws(chosen), len(order), generator=_generator(), dtype=spread.dtype)
    return (numbers @ root(spread[..., order[:, None], order]))[..., order.argsort()]


def _least_loss(means: Tensor, weight: Tensor, bias: Tensor, chosen: Tensor, noise: Tensor, correct: Correction) -> float:
    """Return the best temperature for draws from the chosen classes, given the noise of their scores (classes, draws, K)."""
    scores = (means[chosen] @ weight.T + bias)[:, None] + correct.spread[chosen][:, None, None] * noise
    target = chosen[:, None, None].expand(-1, scores.shape[1], 1)
    own_score = scores.gather(2, target) - correct.optimism[chosen][:, None, None]
    return 1 / _sharpness(scores.scatter(2, target, own_score) - own_score)


def _scale(weight: Tensor, means: Tensor, whitener: Whitener) -> float:
    """Return the length of the weights relative to half of LDA's."""
    reference = whitener.push(means) / 2
    return float((whitener.whiten(weight) * reference).sum() / reference.square().sum().clamp_min(1e-300))


def _mixed(parts: Covariances, classes: Tensor, pooled: Tensor, prior: Tensor) -> Covariances:
    """Return the chosen classes' covariances, each mixed with the pooled one, which makes them positive definite."""
    full, factor, diagonal = (
        None if part is None else part.cpu()[classes].double() for part in (parts.full, parts.factor, parts.diagonal)
    )
    mixed = Covariances(full, factor, diagonal, None if parts.common is None else pooled).shrunk(pooled, prior, 0.0)
    if full is None:
        return mixed
    return Covariances(full=full.mul_((1 - prior)[:, None, None]).add_(prior[:, None, None] * pooled))


def _sharpness(leads: Tensor) -> float:
    """Return the s that minimises the mean of log Σ_j exp(s lead_j). Leads (..., K) are 0 for the true class.

    The mean is convex in s. Its derivative is bisected on a logarithmic scale.
    """
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = (low * high) ** 0.5
        slope = float((torch.softmax(middle * leads, -1) * leads).sum(-1).mean())
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float((low * high) ** 0.5)
