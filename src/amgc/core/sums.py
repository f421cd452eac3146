"""Sums over samples with noise, and the class statistics that follow from them.

A lesson, the data of one call, is reduced to sums: the number of samples and the sum of features of each class, and the sum of
x xᵀ over all classes. `amgc.core.release` adds Gaussian noise to them, once. Classifiers, files, merges and later versions are
functions of the noisy sums and reveal nothing more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amgc.core import estimates, symmetric
from amgc.core.estimates import LEAST_SIGNAL, MOST_SIGNAL, along_each, largest_noise, noise_scale, signal, spectrum
from amgc.core.inputs import Label, group_by_label
from amgc.core.narrowing import Narrowing
from amgc.core.privacy import Privacy
from amgc.core.release import Lesson
from amgc.core.statistics import ClassStatistics

LEAST = 0.2  # of the total variance in a direction that is left within classes; less than that may be due to noise
MATRICES = ("second", "total_noise", "second_noise")  # of `Sums`


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

    def narrowed(self, narrow: Narrowing, directions: int) -> Sums:
        """Return the sums of rows that are projected to fewer directions."""
        if directions == self.dim:
            return self
        by = narrow.further(self.dim, directions)
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
