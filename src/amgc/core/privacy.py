"""Differential privacy: class statistics with noise, and the record of what they reveal.

A lesson, the data of one call, is reduced to sums: the number of samples and the sum of features of each class, and the sum of
x xᵀ over all classes. `amgc.core.release` adds Gaussian noise to them, once. Classifiers, files, merges and later versions are
functions of the noisy sums and reveal nothing more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amgc.core import estimates, symmetric
from amgc.core.accounting import check_settings, gaussian_epsilon, gaussian_loss
from amgc.core.estimates import LEAST_SIGNAL, MOST_SIGNAL, along_each, largest_noise, noise_scale, signal, spectrum
from amgc.core.inputs import Label, group_by_label
from amgc.core.release import Lesson, narrowing
from amgc.core.spread import random_directions
from amgc.core.statistics import ClassStatistics
from amgc.text import listing

LEAST = 0.2  # of the total variance in a direction that is left within classes; less than that may be due to noise
MATRICES = ("second", "total_noise", "second_noise")  # of `Sums`
ROUNDING = 1e-9  # relative, of losses that add up to the budget


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
    directions : more features than this are projected to that many fixed random directions. A first lesson of few samples uses
        fewer (`amgc.core.release.enough_directions`).
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
    directions: int = 768
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

    def rows(self, features: Any, directions: int | None = None) -> Tensor:
        """Return features (n, d) as rows (n, m), float64, of norm at most 1, or projected to `directions`."""
        given = torch.as_tensor(features).double()
        if self.centre is not None:
            if len(self.centre) != given.shape[1]:
                raise ValueError(f"centre has {len(self.centre)} numbers, but rows have {given.shape[1]} features.")
            given = given - torch.tensor(self.centre, dtype=torch.float64)
        if given.shape[1] > self.directions:
            made = given @ self.matrix(given.shape[1])
        else:  # the same, faster
            made = given - given.mean(1, keepdim=True) if self.clip is None else given
        scaled: Tensor = made / made.norm(dim=1, keepdim=True).clamp_min(self.shortest)
        return scaled if directions is None else scaled @ narrowing(scaled.shape[1], directions)

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

    classes : labels, K. centre (m,) : what was subtracted from rows before. count (K,), total (K, m) : number of samples and
    sum of rows of each class. second (m, m) : Σ x xᵀ over all classes.
    noise (K, 2) : variances of the noise in count and, averaged over the features, in total. total_noise (m, m) : covariances
        of the noise in the totals, summed over the classes. second_noise (m, m) : E[N²] of the noise N in second. All are 0 for
        exact sums.
    others : degrees of freedom in `second` of classes that were removed.
    spent : the loss of each class, also of those that were removed.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.classes: list[Label] = []
        self.centre = torch.zeros(dim, dtype=torch.float64)
        self.count = torch.zeros(0, dtype=torch.float64)
        self.total = torch.zeros(0, dim, dtype=torch.float64)
        self.noise = torch.zeros(0, 2, dtype=torch.float64)
        self.second, self.total_noise, self.second_noise = (torch.zeros(dim, dim, dtype=torch.float64) for _ in range(3))
        self.others = 0.0
        self.spent: dict[Label, float] = {}

    @classmethod
    def of(cls, lesson: Lesson, loss: float) -> Sums:
        """Return the noisy sums of one lesson, which had this loss."""
        made = cls(len(lesson.centre))
        made.classes, made.centre = list(lesson.classes), lesson.centre
        made.count, made.total, made.second = lesson.count, lesson.total, lesson.second
        variance = float(lesson.total_noise.trace()) / max(made.dim, 1)
        made.noise = torch.tensor([[lesson.count_noise, variance]], dtype=torch.float64).repeat(len(made.classes), 1)
        made.total_noise, made.second_noise = len(made.classes) * lesson.total_noise, lesson.second_noise
        made.spent = dict.fromkeys(made.classes, loss)
        return made

    def add(self, rows: Tensor, labels: Sequence[Label] | np.ndarray) -> Sums:
        """Add rows (n, m), as `Privacy.rows` returns them, with one label each, without noise."""
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
        if not self.classes and not self.others:
            self.centre = other.centre.clone()
        other = other._moved(self.centre)
        new = [label for label in other.classes if label not in self.classes]
        self.classes = self.classes + new
        place = torch.tensor([self.classes.index(label) for label in other.classes], dtype=torch.int64)
        for name in ("count", "total", "noise"):
            mine = getattr(self, name)
            longer = torch.cat([mine, mine.new_zeros(len(new), *mine.shape[1:])])
            setattr(self, name, longer.index_add_(0, place, getattr(other, name)))
        for name in MATRICES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.others += other.others
        self.spent = self.spent | {label: self.spent.get(label, 0.0) + loss for label, loss in other.spent.items()}
        return self

    def _moved(self, centre: Tensor) -> Sums:
        """Return the same sums about another centre."""
        by = self.centre - centre
        if not bool(by.any()):
            return self
        moved = copy.copy(self)
        moved.centre = centre.clone()
        moved.total = self.total + torch.outer(self.count, by)
        cross = torch.outer(by, self.total.sum(0))
        moved.second = self.second + cross + cross.T + self.count.sum() * torch.outer(by, by)
        return moved

    def narrowed(self, whole: int, directions: int) -> Sums:
        """Return the sums of rows that are projected to fewer of the random directions; `whole` is the size of all rows."""
        if directions == self.dim:
            return self
        by = narrowing(whole, directions)
        if self.dim < whole:  # the rows are in the first directions already
            by = torch.eye(self.dim, dtype=torch.float64)[:, :directions] * math.sqrt(self.dim / directions)
        made = copy.copy(self)
        made.dim, made.centre, made.total = directions, self.centre @ by, self.total @ by
        made.second, made.total_noise = (estimates.symmetric(by.T @ own @ by) for own in (self.second, self.total_noise))
        scale = estimates.symmetric(by.T @ noise_scale(self.second_noise) @ by)
        made.second_noise = scale * scale.trace()
        variance = self.dim / directions * float(made.total_noise.trace() / self.total_noise.trace().clamp_min(1e-300))
        made.noise = torch.stack([self.noise[:, 0], self.noise[:, 1] * variance], 1)
        return made

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
        own = self.total_noise * (self.noise[row, 1] / self.noise[:, 1].sum().clamp_min(1e-300))
        self.second = self.second - torch.outer(total, total) / count + own / count  # the product contains the noise's square
        self.total_noise = self.total_noise - own
        self.others += float(count) - 1
        return self._without(row)

    def _without(self, row: int) -> Sums:
        keep = [place for place in range(len(self.classes)) if place != row]
        self.classes = [self.classes[place] for place in keep]
        self.count, self.total, self.noise = self.count[keep], self.total[keep], self.noise[keep]
        return self

    def statistics(self) -> ClassStatistics:
        """Return class statistics, in "shared" form, that take the noise into account.

        Counts are drawn towards their average as far as noise explains how they differ. Means are drawn towards theirs in each
        direction as far as noise explains how the means differ in it, and their average towards 0, the centre of the rows. The
        covariance is the total one less that of the drawn means: new samples deviate from these by so much. Covariances of
        means between directions whose variance is lost in the noise are left out.
        """
        count = estimates.shrunk_counts(self.count, self.noise[:, 0]).clamp_min(1)
        samples = float(count.sum()) + self.others
        mean = self.total / count[:, None]
        common = (count @ mean) / count.sum()
        mean = mean - common
        by_chance = float(self.total_noise.trace()) / float(count.sum()) ** 2
        common = common * max(1 - by_chance / max(float(common.square().sum()), 1e-300), 0.0)
        # Removed classes have left what varied within them, but not the deviation of their means.
        second = self.second - count.sum() * torch.outer(common, common)
        if bool(self.second_noise.any()):
            scale = noise_scale(self.second_noise)
            vectors, values = spectrum(second, scale, samples)
            known = values > largest_noise(vectors, scale, samples)
        else:
            values, vectors = torch.linalg.eigh(second / samples)
            values, known = values.clamp_min(float(values[-1]) * 1e-14), torch.ones(self.dim, dtype=torch.bool)
        white = mean @ (vectors / values.sqrt())  # coordinates in which the total variance is 1
        share = count / samples
        own = share @ (self.noise[:, 1] / self.noise[:, 1].sum().clamp_min(1e-300) / count.square())
        noise = along_each(vectors, self.total_noise) / values * own
        classes = len(count)
        squares = (share @ white.square()) * classes / max(classes - 1, 0.5)  # means deviate less from their own average
        found = signal(squares, noise, classes) if bool(noise.any()) else squares.clamp(LEAST_SIGNAL, MOST_SIGNAL)
        white = white * (found / (found + noise))
        between = (white * share[:, None]).T @ white
        between = torch.where(torch.outer(known, known), between, torch.diag(between.diagonal()))
        within = torch.eye(self.dim, dtype=torch.float64) - between
        if bool(self.second_noise.any()):
            size, turned = torch.linalg.eigh(within)
            within = (turned * size.clamp_min(LEAST)) @ turned.T
        back = (vectors * values.sqrt()).T
        freedom = max(round(float((count - 1).sum()) + self.others), 1)
        header = {"dim": self.dim, "covariance": "shared", "rank": 1, "dtype": "float64", "classes": self.classes}
        tensors = {
            "count": count.round().long(),
            "mean": self.centre + common + white @ back,
            "scatter": symmetric.packed((samples * back.T @ within @ back).triu()),
        }
        return ClassStatistics.from_file(header | {"freedom": freedom}, tensors)

    # ---- files -------------------------------------------------------------------------------------------------------

    def packed(self, privacy: Privacy) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the contents of a file: a JSON header and named tensors."""
        header = {"dim": self.dim, "classes": self.classes, "others": self.others, "settings": asdict(privacy)}
        spent = [[label, loss, privacy.epsilon_of(loss)] for label, loss in self.spent.items()]
        tensors = {name: getattr(self, name) for name in ("centre", "count", "total", "noise")}
        tensors |= {name: symmetric.packed(getattr(self, name).triu()) for name in MATRICES}
        return header | {"spent": spent}, tensors

    @classmethod
    def from_packed(cls, header: dict[str, Any], tensors: dict[str, Tensor]) -> Sums:
        """Return the sums with this `packed()`. Raises any exception if the parts do not fit together."""
        made = cls(int(header["dim"]))
        made.classes = list(header["classes"])
        classes = len(made.classes)
        shapes = {"centre": (made.dim,), "count": (classes,), "total": (classes, made.dim), "noise": (classes, 2)}
        if missing := ({*shapes, *MATRICES} - tensors.keys()):
            raise ValueError(
                f"private classes of an earlier version, without {min(missing)!r}, cannot be read; learn them again"
            )
        for name, shape in shapes.items():
            if tensors[name].shape != shape:
                raise ValueError(f"{name!r} has shape {tuple(tensors[name].shape)}")
            setattr(made, name, tensors[name].double())
        for name in MATRICES:
            matrix = getattr(made, name)
            symmetric.unpack_into(matrix, tensors[name].double())
            setattr(made, name, matrix.triu() + matrix.triu(1).T)
        if not all(bool(torch.isfinite(getattr(made, name)).all()) for name in (*shapes, *MATRICES)):
            raise ValueError("a sum is NaN or infinite")
        made.others = float(header["others"])
        made.spent = {label: float(loss) for label, loss, _ in header["spent"]}
        if not all(0 <= loss < math.inf for loss in made.spent.values()):
            raise ValueError("a loss is negative or infinite")
        if any(bool((part < 0).any()) for part in (made.noise, made.total_noise.diagonal(), made.second_noise.diagonal())):
            raise ValueError("a variance of noise is negative")
        return made
