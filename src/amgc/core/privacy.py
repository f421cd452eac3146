"""Differential privacy: what may be revealed of a single sample, and how samples become rows of norm at most 1.

`amgc.core.release` adds noise to sums of rows, once, and `amgc.core.sums` computes class statistics from the noisy sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amgc.core.accounting import check_settings, gaussian_epsilon, gaussian_loss
from amgc.core.background import background
from amgc.core.inputs import Label
from amgc.core.narrowing import Narrowing, narrowing
from amgc.core.spread import random_directions
from amgc.text import listing

ROUNDING = 1e-9  # relative, of losses that add up to the budget


class BudgetError(ValueError):
    """Learning would reveal more than the budget allows."""


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
    background : name of the network whose features the rows are (`amgc.core.background`). Few samples are then projected to the
        directions in which classes of public images differ most, and the mean of public images is the default `centre`.

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
    background: str | None = None

    def __post_init__(self) -> None:
        if self.background is not None and self.centre is None:
            object.__setattr__(self, "centre", tuple(background(self.background).mean.tolist()))
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
        return scaled if directions is None else scaled @ self.narrowing(scaled.shape[1])(directions)

    def narrowing(self, dim: int) -> Narrowing:
        """Return the directions to which rows (n, dim) of few samples are projected."""
        return narrowing(dim, self.background)

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

    def maps_like(self, other: Privacy, dim: int) -> bool:
        """Return whether samples of `dim` features become the same rows."""
        one, two = (np.asarray(own.centre or [0.0] * dim) for own in (self, other))
        # Machines differ in the last digits of a centre that an extractor computed.
        near = one.shape == two.shape and np.abs(one - two).max() <= 1e-2 * np.abs(one).max()
        same = all(getattr(self, name) == getattr(other, name) for name in ("clip", "directions", "background"))
        return bool(near) and same


@lru_cache(maxsize=4)
def _matrix(dim: int, directions: int, centred: bool) -> Tensor:
    made = torch.eye(dim, dtype=torch.float64)
    if dim > directions:  # signs / √d, scaled to preserve squared norms on average
        made = random_directions(dim, directions) * math.sqrt(dim / directions)
    return made - made.mean(0) if centred else made
