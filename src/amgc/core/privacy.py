"""Differential privacy: class statistics with noise, and the record of what they reveal.

A lesson, the data of one call, is reduced to sums: the number of samples and the sum of features of each class, and the sum of
x xᵀ over all classes. `release` adds Gaussian noise to them, once. Classifiers, files, merges and later versions are functions
of the noisy sums and reveal nothing more. docs/mathematics.md derives the sensitivities and the noise.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amgc.core import symmetric
from amgc.core.accounting import check_settings, gaussian_epsilon, gaussian_loss
from amgc.core.directions import random_directions
from amgc.core.inputs import Label, group_by_label
from amgc.core.statistics import ClassStatistics
from amgc.text import listing

# Shares of the loss that go to counts, to sums of features and to the sum of x xᵀ. On held-out training features of CIFAR-100
# with 20 to 450 samples a class and ε from 1 to 8, similar shares differ by a point or two (benchmarks/privacy.py).
COUNT, TOTAL, SECOND = 0.02, 0.78, 0.20
BITS = 24  # sums and noise are multiples of about 2^-24 of the noise's standard deviation
ROUNDING = 1e-9  # relative, of losses that add up to the budget

RandomBytes = Callable[[int], bytes]


class BudgetError(ValueError):
    """Learning would reveal more than the budget allows."""


# ---- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Privacy:
    """What may be revealed of a single sample: (ε, δ)-differential privacy for adding or removing one sample of one class.

    epsilon : ε, the budget. 1 is strong, 8 is weak. delta : δ, well below 1 / number of samples.
    lessons : number of calls in which a class can be learned. Each spends its share of the budget.
    clip : norm to which longer rows are scaled down; choose it without looking at the data. None: rows are centred at their own
        average over the features and scaled to norm 1, which suits embeddings of any scale.
    directions : more features than this are projected to so many fixed random directions.
    centre : (d,), subtracted from rows first, chosen without looking at the data: the mean of public samples, for example. The
        smaller the common part of all rows, the less noise matters.

    >>> Privacy(1.0).noise
    3.7306...
    >>> Privacy(1.0, lessons=4).noise / Privacy(1.0).noise
    2.0
    """

    epsilon: float
    delta: float = 1e-5
    lessons: int = 1
    clip: float | None = None
    directions: int = 256
    centre: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.centre is not None:
            object.__setattr__(self, "centre", tuple(map(float, self.centre)))
            if not all(map(math.isfinite, self.centre)):
                raise ValueError("centre holds NaN or infinity.")
        check_settings(self.epsilon, self.delta, self.lessons, self.clip, self.directions)

    @property
    def budget(self) -> float:
        """The loss that ε and δ allow."""
        return gaussian_loss(self.epsilon, self.delta)

    @property
    def loss(self) -> float:
        """The loss of one lesson."""
        return self.budget / self.lessons

    @property
    def noise(self) -> float:
        """Standard deviation of the noise of one lesson, for a sensitivity of 1."""
        return 1 / math.sqrt(self.loss)

    def epsilon_of(self, loss: float) -> float:
        """Return ε of a loss."""
        return gaussian_epsilon(loss, self.delta)

    def matrix(self, dim: int) -> Tensor:
        """Return the linear part (d, m) of `rows`."""
        return _matrix(dim, int(self.directions), self.clip is None)

    def rows(self, features: Any) -> Tensor:
        """Return features (n, d) as rows (n, m), float64, of norm at most 1."""
        given = torch.as_tensor(features).double()
        if self.centre is not None:
            if len(self.centre) != given.shape[1]:
                raise ValueError(f"centre has {len(self.centre)} numbers, but rows have {given.shape[1]} features.")
            given = given - torch.tensor(self.centre, dtype=torch.float64)
        made = given @ self.matrix(given.shape[1])
        scaled: Tensor = made / made.norm(dim=1, keepdim=True).clamp_min(self.shortest)
        return scaled

    @property
    def shortest(self) -> float:
        """The norm below which rows are not scaled up to norm 1."""
        return 1e-150 if self.clip is None else float(self.clip)

    def check(self, spent: dict[Label, float], labels: Sequence[Label]) -> None:
        """Raise a BudgetError if one more lesson of these classes would exceed the budget; `spent` has their losses."""
        over = [label for label in labels if spent.get(label, 0.0) + self.loss > self.budget * (1 + ROUNDING)]
        if over:
            most = self.epsilon_of(max(spent[label] for label in over))
            raise BudgetError(
                f"the privacy budget of {listing(over)} is spent: epsilon = {most:.3g} of {self.epsilon:g}. One lesson more "
                "would exceed it. Learn all samples of a class in one call, or start again with more `lessons` or a larger "
                "epsilon."
            )


@lru_cache(maxsize=4)
def _matrix(dim: int, directions: int, centred: bool) -> Tensor:
    made = torch.eye(dim, dtype=torch.float64)
    if dim > directions:  # signs / √d, scaled to preserve squared norms on average
        made = random_directions(dim, directions) * math.sqrt(dim / directions)
    return made - made.mean(0) if centred else made


# ---- sums ------------------------------------------------------------------------------------------------------------


class Sums:
    """Sums over samples, exact or with noise. Adding two is adding all of their parts.

    classes : labels, K. count (K,), total (K, m) : number of samples and sum of rows of each class. second (m, m) : Σ x xᵀ.
    noise (K, 2) : variances of the noise in count and total. second_noise : variance of the noise on the diagonal of `second`;
        off the diagonal it is half of that. All are 0 for exact sums.
    others : degrees of freedom in `second` of classes that were removed.
    spent : the loss of each class, also of those that were removed.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.classes: list[Label] = []
        self.count = torch.zeros(0, dtype=torch.float64)
        self.total = torch.zeros(0, dim, dtype=torch.float64)
        self.noise = torch.zeros(0, 2, dtype=torch.float64)
        self.second = torch.zeros(dim, dim, dtype=torch.float64)
        self.second_noise = 0.0
        self.others = 0.0
        self.spent: dict[Label, float] = {}

    def add(self, rows: Tensor, labels: Sequence[Label] | np.ndarray) -> Sums:
        """Add rows (n, m), as `Privacy.rows` returns them, with one label each."""
        names, inverse = group_by_label(labels)
        more = Sums(self.dim)
        more.classes = names
        place = torch.from_numpy(inverse)
        more.count = torch.bincount(place, minlength=len(names)).double()
        more.total = torch.zeros(len(names), self.dim, dtype=torch.float64).index_add_(0, place, rows)
        more.noise = torch.zeros(len(names), 2, dtype=torch.float64)
        more.second = rows.T @ rows
        return self.merge(more)

    def merge(self, other: Sums) -> Sums:
        """Add other sums. Losses of a class add up: the same samples may be in both."""
        new = [label for label in other.classes if label not in self.classes]
        self.classes = self.classes + new
        place = torch.tensor([self.classes.index(label) for label in other.classes], dtype=torch.int64)
        for name in ("count", "total", "noise"):
            mine = getattr(self, name)
            longer = torch.cat([mine, mine.new_zeros(len(new), *mine.shape[1:])])
            setattr(self, name, longer.index_add_(0, place, getattr(other, name)))
        self.second = self.second + other.second
        self.second_noise += other.second_noise
        self.others += other.others
        self.spent = self.spent | {label: self.spent.get(label, 0.0) + loss for label, loss in other.spent.items()}
        return self

    def rename(self, label: Label, new: Label) -> Sums:
        """Give a class another label. If another class has or had it, both become one, and their losses add up."""
        loss = self.spent.pop(label, 0.0)
        self.spent[new] = self.spent.get(new, 0.0) + loss
        row = self.classes.index(label)
        if new not in self.classes:
            self.classes = [new if name == label else name for name in self.classes]
            return self
        into = self.classes.index(new)
        for name in ("count", "total", "noise"):
            getattr(self, name)[into] += getattr(self, name)[row]
        return self._without(row)

    def remove(self, label: Label) -> Sums:
        """Remove a class. What varied within it remains in `second`, and its loss in `spent`."""
        row = self.classes.index(label)
        count, total = self.count[row].clamp_min(1), self.total[row]
        self.second = self.second - torch.outer(total, total) / count
        self.second.diagonal().add_(self.noise[row, 1] / count)  # what the noise of the total adds to the product
        self.others += float(count) - 1
        return self._without(row)

    def _without(self, row: int) -> Sums:
        keep = [place for place in range(len(self.classes)) if place != row]
        self.classes = [self.classes[place] for place in keep]
        self.count, self.total, self.noise = self.count[keep], self.total[keep], self.noise[keep]
        return self

    def statistics(self) -> ClassStatistics:
        """Return class statistics, in "shared" form, that take the noise into account.

        Counts are drawn towards their average as far as noise explains how they differ. Means have a norm of at most 1, as rows
        do. Variances along eigenvectors that are below the largest eigenvalue of the noise are set to it: nothing is known of
        them, and negative ones would not be variances. The noise of the means is added to them, because new samples deviate
        from noisy means by so much more.
        """
        count = _shrunk(self.count, self.noise[:, 0]).clamp_min(1)
        mean = self.total / count[:, None]
        short = mean.norm(dim=1).clamp_min(1).reciprocal()
        mean = mean * short[:, None]
        mean_noise = self.noise[:, 1] * (short / count).square()
        freedom = max(float((count - 1).sum()) + self.others, 1.0)
        within = self.second - (mean * count[:, None]).T @ mean
        within.diagonal().add_((mean_noise * count).sum())  # the product above has contained it
        values, vectors = torch.linalg.eigh(within)
        floor = 2 * math.sqrt(self.second_noise / 2 * self.dim)  # the edge of Wigner's semicircle
        within = (vectors * values.clamp_min(floor)) @ vectors.T
        within.diagonal().add_(freedom * mean_noise.mean())
        whole = max(round(freedom), 1)
        header = {"dim": self.dim, "covariance": "shared", "rank": 1, "dtype": "float64", "classes": self.classes}
        tensors = {
            "count": count.round().long(),
            "mean": mean,
            "scatter": symmetric.packed(within.triu()),
        }
        return ClassStatistics.from_file(header | {"freedom": whole}, tensors)

    # ---- files -------------------------------------------------------------------------------------------------------

    def packed(self, privacy: Privacy) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the contents of a file: a JSON header and named tensors."""
        header = {"dim": self.dim, "classes": self.classes, "second_noise": self.second_noise, "others": self.others}
        spent = [[label, loss, privacy.epsilon_of(loss)] for label, loss in self.spent.items()]
        tensors = {
            "count": self.count,
            "total": self.total,
            "noise": self.noise,
            "second": symmetric.packed(self.second.triu()),
        }
        return header | {"settings": asdict(privacy), "spent": spent}, tensors

    @classmethod
    def from_packed(cls, header: dict[str, Any], tensors: dict[str, Tensor]) -> Sums:
        """Return the sums with this `packed()`. Raises any exception if the parts do not fit together."""
        made = cls(int(header["dim"]))
        made.classes = list(header["classes"])
        shapes = {"count": (), "total": (made.dim,), "noise": (2,)}
        for name, shape in shapes.items():
            if tensors[name].shape != (len(made.classes), *shape) or not bool(torch.isfinite(tensors[name]).all()):
                raise ValueError(f"{name!r} has shape {tuple(tensors[name].shape)}, or holds NaN or infinity")
            setattr(made, name, tensors[name].double())
        symmetric.unpack_into(made.second, tensors["second"].double())
        made.second = made.second.triu() + made.second.triu(1).T
        made.second_noise, made.others = float(header["second_noise"]), float(header["others"])
        made.spent = {label: float(loss) for label, loss, _ in header["spent"]}
        if not all(0 <= loss < math.inf for loss in made.spent.values()):
            raise ValueError("a loss is negative or infinite")
        if bool((made.noise < 0).any()) or not made.second_noise >= 0:
            raise ValueError("a variance of noise is negative")
        return made


def _shrunk(values: Tensor, noise: Tensor) -> Tensor:
    """Return noisy values (K,) drawn towards their average by James and Stein's estimate; exact values do not change."""
    if len(values) < 4 or not bool(noise.any()):
        return values
    centre = values.mean()
    spread = (values - centre).square().sum() / (len(values) - 3)
    return centre + (values - centre) * (1 - noise.mean() / spread.clamp_min(1e-300)).clamp_min(0)


# ---- noise -----------------------------------------------------------------------------------------------------------


def release(exact: Sums, privacy: Privacy, random_bytes: RandomBytes = secrets.token_bytes) -> Sums:
    """Return exact sums of one lesson with noise, and their loss in `spent`."""
    noisy, dim = Sums(exact.dim), exact.dim
    noisy.classes = list(exact.classes)
    # A sample adds 1 to a count, a row of norm 1 to a total, and a matrix of Frobenius norm 1 to `second`.
    noisy.count, count_noise = _noisy(exact.count, privacy.loss * COUNT, 1, random_bytes)
    noisy.total, total_noise = _noisy(exact.total, privacy.loss * TOTAL, dim, random_bytes)
    noisy.noise = torch.tensor([[count_noise, total_noise]], dtype=torch.float64).repeat(len(noisy.classes), 1)
    # Off the diagonal an entry occurs twice. Times √2, it has the same share in the Frobenius norm as one on the diagonal.
    weight = torch.full((dim, dim), math.sqrt(2), dtype=torch.float64).triu(1) + torch.eye(dim, dtype=torch.float64)
    upper = torch.triu_indices(dim, dim)
    scale = weight[upper[0], upper[1]]
    values, noisy.second_noise = _noisy(
        exact.second[upper[0], upper[1]] * scale, privacy.loss * SECOND, len(scale), random_bytes
    )
    noisy.second[upper[0], upper[1]] = noisy.second[upper[1], upper[0]] = values / scale
    noisy.spent = dict.fromkeys(noisy.classes, privacy.loss)
    return noisy


def _noisy(exact: Tensor, loss: float, numbers: int, random_bytes: RandomBytes) -> tuple[Tensor, float]:
    """Return values with noise and the noise's variance; one sample changes `numbers` of them, by a vector of norm at most 1.

    Both are rounded to multiples of one power of two, and added exactly. The result is then a rounding of value plus noise, and
    the low bits of floating-point numbers tell nothing (Mironov 2012). Rounding the values may increase their difference by a
    step each, for which there is more noise.
    """
    step = 2.0 ** (math.floor(math.log2(loss**-0.5)) - BITS)
    deviation = (1 + 2 * step * math.sqrt(numbers)) * loss**-0.5
    noise = standard_normal(exact.numel(), random_bytes).reshape(exact.shape) * (deviation / step)
    return ((exact / step).round() + noise.round()) * step, deviation**2


def standard_normal(count: int, random_bytes: RandomBytes = secrets.token_bytes) -> Tensor:
    """Return standard normal numbers (count,), float64, from random bytes: a sign, and 52 bits of the distribution function."""
    words = np.frombuffer(random_bytes(8 * count), dtype="<u8")
    share = torch.from_numpy((words >> np.uint64(12)).astype(np.float64)).add_(0.5).mul_(2.0**-53)  # above 0 and below 1/2
    sign = torch.from_numpy((words & np.uint64(1)).astype(np.float64)).mul_(2).sub_(1)
    normal: Tensor = torch.special.ndtri(share)
    return normal * sign
