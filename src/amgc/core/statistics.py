"""The statistics that are stored of each class: number of samples, mean and covariance. Samples are never stored.

Batches and other `ClassStatistics` are added by one formula, the exact merge of the moments of two groups by Chan, Golub and
LeVeque. It is accurate also for features far from zero.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from amgc import files, tensor_files
from amgc.core import packing, symmetric
from amgc.core.covariance import CLASSES, Covariances, LowRank, SharedCovariance
from amgc.core.inputs import Label, group_by_label, plain, read_features
from amgc.core.scatter import Scatter, group_moments
from amgc.core.spread import Spread
from amgc.text import listing

Form: TypeAlias = Literal["full", "lowrank", "diagonal", "shared"]
KIND = "class statistics"


class ClassStatistics:
    """Count, mean and covariance per class, updated from a stream of samples.

    Parameters
    ----------
    dim : int, the number of features d.
    covariance : {"full", "lowrank", "diagonal", "shared"}, the form of the stored covariances.
        "full": a d × d matrix per class. "lowrank": a factor of `rank` columns and the exact variances. "diagonal": the
        variances. "shared": one d × d matrix for all classes, the pooled within-class covariance. It suits tens of thousands
        of features: 12,800 need 655 MB in float32, and as much again for a solve. If that does not fit, a MemoryError is
        raised immediately.
    rank : int, columns of the factor for "lowrank". The default stores a class of 512 features in 64 KB.
    dtype, device : of the covariances. Means are in float64.

    The order and the size of batches do not matter. For "lowrank" this holds for count, mean and variances. The factor is
    exact while a class's covariance has at most `rank` dimensions, and its leading part otherwise. Covariances are the
    unbiased estimate (n - 1). The covariance of a single sample is zero.

    >>> statistics = ClassStatistics(2)
    >>> _ = statistics.update([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]], ["cat", "cat", "dog"])
    >>> statistics.classes, statistics.count.tolist(), statistics.mean.tolist()
    (['cat', 'dog'], [2, 1], [[1.0, 0.0], [5.0, 5.0]])
    >>> statistics.covariance[0].tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        dim: int,
        covariance: Form = "full",
        rank: int = 56,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if covariance not in get_args(Form):
            raise ValueError(f"covariance must be one of {', '.join(get_args(Form))}, not {covariance!r}.")
        if dim < 1:
            raise ValueError(f"dim must be at least 1, not {dim}.")
        if rank < 1:
            raise ValueError(f"rank must be at least 1, not {rank}.")
        self.dim = int(dim)
        self.form: Form = covariance
        self.rank = int(min(rank, dim))
        self.dtype = dtype
        self.device = torch.device(device)
        self._set_classes([])
        self._used: dict[str, Tensor] = {}  # one row per class, and spare rows beyond len(classes)
        self._used["count"] = torch.zeros(0, dtype=torch.int64)
        self._used["mean"] = torch.zeros(0, dim, dtype=torch.float64, device=self.device)
        self._spread = Spread(covariance, self.dim, self.rank, dtype)
        for name, shape in self._spread.shapes().items():
            self._used[name] = torch.zeros(0, *shape, dtype=dtype, device=self.device)
        if covariance == "shared":
            # The sum over all classes of squares about the class means. A sum, so that updates only add to it.
            self._scatter = Scatter(self.dim, dtype, self.device)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.classes)

    def __contains__(self, label: object) -> bool:
        return plain(label) in self._index

    def __repr__(self) -> str:
        kept = f"rank {self.rank} " if self.form == "lowrank" else ""
        return f"ClassStatistics({len(self)} classes, d = {self.dim}, {kept}{self.form})"

    def index(self, label: Label) -> int:
        """Return the row of a class. Raises KeyError for unknown classes."""
        label = plain(label)
        if label not in self._index:
            raise KeyError(f"class {label!r} is not known; known are {listing(self.classes)}.")
        return self._index[label]

    def _rows(self, name: str) -> Tensor:
        return self._used[name][: len(self)]

    def _set_classes(self, classes: list[Label]) -> None:
        self.classes, self._index = classes, {name: row for row, name in enumerate(classes)}

    @property
    def count(self) -> Tensor:
        """Samples per class, (K,) int64."""
        return self._rows("count")

    @property
    def mean(self) -> Tensor:
        """Class means, (K, d) float64."""
        return self._rows("mean")

    @property
    def covariance(self) -> Tensor | LowRank:
        """Covariances (K, d, d); for "diagonal" variances (K, d), for "lowrank" a `LowRank`, for "shared" views of one."""
        if self.form in ("full", "diagonal"):
            return self._rows(self.form)
        if self.form == "lowrank":
            return LowRank(self._rows("factor"), self._rows("diagonal"))
        return self.pooled().expand(len(self), -1, -1)

    @property
    def covariances(self) -> Covariances:
        """The covariances as a sum of parts, the form that the losses and the solver use."""
        if self.form in ("full", "diagonal"):
            return Covariances(**{self.form: self._rows(self.form)})
        if self.form == "lowrank":
            factor = self._rows("factor")
            explained = torch.cat([part.square().sum(-1) for part in torch.split(factor, CLASSES)])
            return Covariances(factor=factor, diagonal=(self._rows("diagonal") - explained).clamp_min(0))
        return Covariances(common=self.pooled())

    def pooled(self) -> Tensor:
        """Return the within-class covariance of all classes, weighted by degrees of freedom: (d, d), or (d,) for "diagonal"."""
        if self.form == "shared":
            return symmetric.mirrored(self._scatter.upper, 1 / max(self.freedom, 1))
        freedom = (self.count - 1).to(torch.float64)
        share = freedom / freedom.sum().clamp_min(1)
        return self.covariances.average(share.to(self.device))

    def shared(self) -> SharedCovariance:
        """Return the covariance of the "shared" form for the closed form: the stored triangle itself, not a copy."""
        if self.form != "shared":
            raise ValueError(f"these statistics store {self.form!r} covariances, not a shared one.")
        upper, share = self._scatter.upper, 1 / max(self.freedom, 1)
        return SharedCovariance(upper, share, upper.diagonal().double() * share)

    def sizes(self) -> Tensor:
        """Return the traces of the class covariances, (K,) in float64; for "shared" only, which has nothing else per class."""
        return self._rows("size").double()

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the pooled covariance, Σ_k (n_k - 1)."""
        return self._scatter.freedom if self.form == "shared" else int((self.count - 1).sum())

    @property
    def nbytes(self) -> int:
        """Bytes that `save` writes, without the small header."""
        return packing.nbytes(self)

    # ---- updating ----------------------------------------------------------------------------------------------------

    def update(self, features: Any, labels: Sequence[Label] | np.ndarray | Tensor) -> ClassStatistics:
        """Add samples: features (N, d) with one label each. New labels become new classes, in order of arrival."""
        features = read_features(features, self.dim, self.device)
        names, inverse = group_by_label(labels)
        if len(inverse) != len(features):
            raise ValueError(f"{len(features)} rows of features but {len(inverse)} labels.")
        if not names:
            return self
        order = torch.from_numpy(np.argsort(inverse, kind="stable")).to(self.device)
        sizes = np.bincount(inverse, minlength=len(names)).tolist()
        if self.form == "shared":
            return self._update_shared(features, names, torch.split(order, sizes))
        mean, spreads = torch.empty(len(names), self.dim, dtype=torch.float64, device=self.device), []
        for own, group in zip(mean, torch.split(order, sizes), strict=True):
            rows = features[group].double()
            own.copy_(rows.mean(0))
            spreads.append(self._spread.of((rows - own).to(self.dtype)))
        self._absorb(names, torch.tensor(sizes), mean, spreads)
        return self

    def _update_shared(self, features: Tensor, names: list[Label], groups: Sequence[Tensor]) -> ClassStatistics:
        """Add samples to the shared covariance in blocks of a few thousand rows, because they may be gigabytes.

        If a class of n samples gets b more, its mean moves. By Chan's formula this adds n b / (n + b) δ δᵀ to the sum of
        squares, where δ is the mean of the new rows minus the mean so far. The same sum results from the new rows alone if
        they are centred at their own mean minus √(n / (n + b)) δ. So no extra row is added, even for small batches.
        """
        mean, traces = group_moments(features, groups)
        centres = mean.clone()
        known = [(k, self._index[name]) for k, name in enumerate(names) if name in self._index]
        for k, row in known:
            old = int(self.count[row])
            centres[k] -= math.sqrt(old / (old + len(groups[k]))) * (mean[k] - self.mean[row])
        largest = max(abs(float(end)) for end in (*features.aminmax(), *centres.aminmax()))
        if 4 * len(features) * largest**2 > torch.finfo(self.dtype).max:  # it may overflow: check each class
            for centre, group in zip(centres, groups, strict=True):
                self._spread.check([(features[group] - centre).to(self.dtype).square().sum(0)])
        sizes = [{"size": size} for size in traces.to(self.dtype)]
        self._absorb(names, torch.tensor([len(group) for group in groups]), mean, sizes)
        self._scatter.add(features, groups, centres)
        self._scatter.freedom += len(features) - len(names) + len(known)
        return self

    def merge(self, other: ClassStatistics) -> ClassStatistics:
        """Add the statistics of `other`, as if `update` had been called with its samples."""
        if not isinstance(other, ClassStatistics):
            raise TypeError(f"merge needs ClassStatistics, not {type(other).__name__}.")
        if (other.dim, other.form) != (self.dim, self.form):
            raise ValueError(
                f"cannot merge {other.form!r} statistics of {other.dim} features into {self.form!r} ones of {self.dim}."
            )
        if other is self:
            other = copy.deepcopy(other)
        where: Any = {"dtype": None if self.dtype == torch.float64 else self.dtype, "device": self.device}  # float64 holds both
        names = self._spread.shapes()
        spreads = [{name: other._rows(name)[k].to(**where) for name in names} for k in range(len(other))]
        if self.form == "lowrank" and other.rank != self.rank:
            spreads = [one | {"factor": self._spread.leading(one["factor"], one["diagonal"])} for one in spreads]
        self._merge_groups(other.classes, other.count, other.mean.to(self.device), spreads)
        if self.form == "shared":
            self._scatter.upper.add_(other._scatter.upper.to(**where))
            self._scatter.freedom += other.freedom
        return self

    def join(self, label: Label, into: Label) -> ClassStatistics:
        """Make one class of two, as if the samples of `label` had been given with the label `into`."""
        gone = self.index(label)
        if gone == self.index(into):
            raise ValueError(f"class {label!r} cannot be joined with itself.")
        spread = {name: self._rows(name)[gone] for name in self._spread.shapes()}
        self._merge_groups([plain(into)], self.count[[gone]], self.mean[[gone]], [spread])
        self._delete(gone)
        return self

    def rename(self, label: Label, new: Label) -> ClassStatistics:
        """Give a class another label. No other class may have it."""
        row, new = self.index(label), plain(new)
        if self._index.get(new, row) != row:
            raise ValueError(f"there is a class {new!r} already; `join` makes one class of two.")
        self._set_classes([new if i == row else name for i, name in enumerate(self.classes)])
        return self

    def _merge_groups(self, names: Sequence[Label], count: Tensor, mean: Tensor, spreads: Sequence[dict[str, Tensor]]) -> None:
        """Merge groups, one per name. A shared sum gains the squares about the common mean of groups of known classes."""
        if self.form != "shared":
            return self._absorb(names, count, mean, spreads)
        both = [(self._index[name], k) for k, name in enumerate(names) if name in self._index]
        mine, theirs = [row for row, _ in both], [k for _, k in both]
        olds, fresh = self.count[mine].double(), count[theirs].double()
        reach = (olds * fresh / (olds + fresh)).sqrt().to(self.device)
        steps = ((mean[theirs] - self.mean[mine]) * reach[:, None]).to(self.dtype)
        self._spread.check([steps.square().sum(0)])
        self._absorb(names, count, mean, spreads)
        self._scatter.add(steps, [torch.arange(len(steps))], steps.new_zeros(1, self.dim))
        self._scatter.freedom += len(both)

    def _absorb(self, names: Sequence[Label], count: Tensor, mean: Tensor, spreads: Sequence[dict[str, Tensor]]) -> None:
        """Merge groups, one per name, into the classes. Everything that can fail comes before the first change."""
        added = [k for k, name in enumerate(names) if name not in self._index]
        self._reserve(len(added))
        targets = dict(zip(added, range(len(self), len(self) + len(added)), strict=True))
        changes: dict[int, dict[str, Tensor]] = {}
        for k, name in enumerate(names):
            if k in targets:
                changes[targets[k]] = {"count": count[k], "mean": mean[k], **spreads[k]}
                continue
            row, old, fresh = self._index[name], int(self.count[self._index[name]]), int(count[k])
            mine, shift = {key: rows[row] for key, rows in self._used.items()}, mean[k] - self.mean[row]
            moments = {"count": torch.tensor(old + fresh), "mean": mine["mean"] + shift * (fresh / (old + fresh))}
            changes[row] = moments | self._spread.merged(mine, old, spreads[k], fresh, shift)
        self._spread.check([change[key] for change in changes.values() for key in self._spread.shapes()])
        for row, change in changes.items():
            for key, value in change.items():
                self._used[key][row] = value
        self._set_classes(self.classes + [names[k] for k in added])

    def _reserve(self, more: int) -> None:
        """Allocate rows for `more` classes and some spare ones, so that single new classes do not copy everything each time."""
        needed = len(self) + more
        for key, buffer in self._used.items():
            if needed > len(buffer):
                grown = self._used[key] = buffer.new_zeros(needed + len(self) // 4, *buffer.shape[1:])
                grown[: len(buffer)] = buffer

    def remove(self, label: Label) -> ClassStatistics:
        """Remove a class, as if its samples had never been added.

        With "shared", only its mean and count are removed. Its part of the pooled covariance cannot be separated from the
        others' and stays, and a warning says so. The degrees of freedom become those of the other classes.
        """
        gone = self.index(label)
        if self.form == "shared":
            warnings.warn(
                f"the shared covariance still contains class {label!r}'s part of it; "
                "use covariance='full' where a class must be forgotten without a trace.",
                stacklevel=2,
            )
            left = self.freedom - int(self.count[gone]) + 1
            self._scatter.upper.mul_(left / max(self.freedom, 1))
            self._scatter.freedom = left
        self._delete(gone)
        return self

    def _delete(self, gone: int) -> None:
        """Delete the row of a class."""
        keep = [i for i in range(len(self)) if i != gone]
        self._used = {name: rows[: len(self)][keep] for name, rows in self._used.items()}
        self._set_classes([self.classes[i] for i in keep])

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one safetensors file, atomically."""
        tensor_files.write(path, KIND, self.header(), self.tensors())

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> ClassStatistics:
        """Read what `save` wrote."""
        header, tensors = tensor_files.read(path, KIND)
        try:
            return cls.from_file(header, tensors, device)
        except files.MISFITS as error:
            raise files.misfit(path, error) from error

    header = packing.header
    tensors = packing.tensors

    @classmethod
    def from_file(
        cls, header: dict[str, Any], tensors: dict[str, Tensor], device: torch.device | str = "cpu"
    ) -> ClassStatistics:
        """Return the statistics with this `header()` and these `tensors()`."""
        dtype = {"float32": torch.float32, "float64": torch.float64}[header["dtype"]]
        result = cls(header["dim"], header["covariance"], header["rank"], dtype=dtype, device=device)
        packing.fill(result, header, tensors)
        return result
