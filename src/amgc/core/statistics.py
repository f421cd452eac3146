"""What is remembered of each class: how many samples, their mean and their covariance. Never a sample.

Everything that adds data (a batch, another `ClassStatistics`) goes through one formula, the exact merge of two groups' moments
by Chan, Golub and LeVeque, which stays accurate when the features sit far from zero.
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
from amgc.core import symmetric
from amgc.core.covariance import Covariances, LowRank, SharedCovariance
from amgc.core.inputs import Label, group_by_label, listing, plain, read_features
from amgc.core.scatter import ROWS, Scatter

Form: TypeAlias = Literal["full", "lowrank", "diagonal", "shared"]
KIND = "class statistics"


class ClassStatistics:
    """Count, mean and covariance per class, updated from a stream.

    Parameters
    ----------
    dim : the number of features d.
    covariance : what is kept of each class's spread.
        "full": the d × d matrix. "lowrank": a factor of `rank` columns and the exact variances. "diagonal": the variances.
        "shared": one d × d matrix, the pooled within-class covariance, for all classes together; for tens of thousands of
        features (12,800: 655 MB in float32, and as much again for a solve; a MemoryError at once where that would not fit).
    rank : columns of the factor, for "lowrank". The default keeps a class of 512 features in 64 KB.
    dtype, device : of the covariances; means are float64.

    `update` gives the same result for any order and batch size (for "lowrank": count, mean and variances do; the factor is
    exact while a class's covariance has no more than `rank` dimensions, and else the leading part of it). Covariances are
    the unbiased estimate (n - 1); that of a single sample is zero.

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
        self.classes: list[Label] = []
        self._index: dict[Label, int] = {}
        self._used: dict[str, Tensor] = {}  # per-class rows; may hold spare ones beyond len(classes)
        self._used["count"] = torch.zeros(0, dtype=torch.int64)
        self._used["mean"] = torch.zeros(0, dim, dtype=torch.float64, device=self.device)
        for name, shape in self._row_shapes().items():
            self._used[name] = torch.zeros(0, *shape, dtype=dtype, device=self.device)
        if covariance == "shared":
            # The sum of squares about the class means, over all classes; kept as a sum so that adding is all there is to do.
            self._scatter = Scatter(self.dim, dtype, self.device)
            self._freedom = 0  # its degrees of freedom, Σ_k (n_k - 1)

    def _row_shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors kept per class besides count and mean."""
        d = self.dim
        if self.form == "lowrank":
            return {"factor": (d, self.rank), "diagonal": (d,)}
        return {} if self.form == "shared" else {self.form: (d, d) if self.form == "full" else (d,)}

    # ---- what is known -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.classes)

    def __contains__(self, label: object) -> bool:
        return plain(label) in self._index

    def __repr__(self) -> str:
        kept = f"rank {self.rank} " if self.form == "lowrank" else ""
        return f"ClassStatistics({len(self)} classes, d = {self.dim}, {kept}{self.form})"

    def index(self, label: Label) -> int:
        """The row of a class; KeyError with the known classes if there is none."""
        label = plain(label)
        if label not in self._index:
            raise KeyError(f"class {label!r} is not known; known are {listing(self.classes)}.")
        return self._index[label]

    def _rows(self, name: str) -> Tensor:
        return self._used[name][: len(self)]

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
        """(K, d, d); its diagonals (K, d) for "diagonal"; a `LowRank` for "lowrank". For "shared" K views of one matrix."""
        if self.form == "full":
            return self._rows("full")
        if self.form == "diagonal":
            return self._rows("diagonal")
        if self.form == "lowrank":
            return LowRank(self._rows("factor"), self._rows("diagonal"))
        return self.pooled().expand(len(self), -1, -1)

    @property
    def covariances(self) -> Covariances:
        """The same as a sum of parts, in the cheapest form for the losses and the solver."""
        if self.form == "full":
            return Covariances(full=self._rows("full"))
        if self.form == "diagonal":
            return Covariances(diagonal=self._rows("diagonal"))
        if self.form == "lowrank":
            factor = self._rows("factor")
            residual = self._rows("diagonal") - factor.square().sum(-1)
            return Covariances(factor=factor, diagonal=residual.clamp_min(0))
        return Covariances(common=self.pooled())

    def pooled(self) -> Tensor:
        """The within-class covariance over all classes, weighted by degrees of freedom: (d, d), or (d,) for "diagonal"."""
        if self.form == "shared":
            return symmetric.mirrored(self._scatter.upper, 1 / max(self._freedom, 1))
        freedom = (self.count - 1).to(torch.float64)
        share = freedom / freedom.sum().clamp_min(1)
        return self.covariances.average(share.to(self.device))

    def shared(self) -> SharedCovariance:
        """The covariance of a "shared" form as the closed form wants it: the kept triangle itself, not a copy."""
        if self.form != "shared":
            raise ValueError(f"these statistics keep {self.form!r} covariances, not a shared one.")
        upper, share = self._scatter.upper, 1 / max(self._freedom, 1)
        return SharedCovariance(upper, share, upper.diagonal().double() * share)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the pooled covariance, Σ_k (n_k - 1)."""
        return self._freedom if self.form == "shared" else int((self.count - 1).sum())

    @property
    def nbytes(self) -> int:
        """Bytes that are kept, as `save` writes them (without the small header)."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    # ---- adding and taking away --------------------------------------------------------------------------------------

    def update(self, features: Any, labels: Sequence[Label] | np.ndarray | Tensor) -> ClassStatistics:
        """Add samples: features (N, d), one label each. New labels become new classes, in order of arrival."""
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
        count, mean = torch.tensor(sizes), torch.empty(len(names), self.dim, dtype=torch.float64, device=self.device)
        centred = torch.empty(len(features), self.dim, dtype=self.dtype, device=self.device)
        start = 0
        for k, size in enumerate(sizes):
            rows = features[order[start : start + size]].double()
            mean[k] = rows.mean(0)
            centred[start : start + size] = rows - mean[k]
            start += size
        spread: dict[str, list[Tensor]] = {name: [] for name in self._row_shapes()}
        for group in torch.split(centred, sizes) if spread else ():
            freedom = max(len(group) - 1, 1)
            if self.form == "full":
                product = (group.T @ group).div_(freedom)
                spread["full"].append(product.triu_().add_(product.triu(1).T))  # symmetric to the bit
            if "diagonal" in spread:
                spread["diagonal"].append(group.square().sum(0) / freedom)
            if self.form == "lowrank":
                spread["factor"].append(self._leading(group.T / math.sqrt(freedom), spread["diagonal"][-1]))
        self._absorb(names, count, mean, spread)
        return self

    def _update_shared(self, features: Tensor, names: list[Label], groups: Sequence[Tensor]) -> ClassStatistics:
        """Add samples to the shared covariance, a few thousand rows at a time: there may be gigabytes of them.

        b more rows of a known class of n samples also move its mean, by Chan's formula another n b / (n + b) δ δᵀ with
        δ = mean of the rows - mean so far. Rows taken about a centre √(n / (n + b)) δ short of their own mean have exactly that
        sum of squares: no row is added, however small the batches are.
        """
        mean = torch.zeros(len(names), self.dim, dtype=torch.float64, device=self.device)
        for own, group in zip(mean, groups, strict=True):
            for rows in torch.split(group, ROWS):
                own += features[rows].sum(0, dtype=torch.float64)
            own /= len(group)
        centres = mean.clone()
        known = [(k, self._index[name]) for k, name in enumerate(names) if name in self._index]
        for k, row in known:
            old = int(self.count[row])
            centres[k] -= math.sqrt(old / (old + len(groups[k]))) * (mean[k] - self.mean[row])
        largest = max(abs(float(end)) for end in (*features.aminmax(), *centres.aminmax()))
        if 4 * len(features) * largest**2 > torch.finfo(self.dtype).max:  # perhaps: look at each
            for centre, group in zip(centres, groups, strict=True):
                self._check_size([(features[group] - centre).to(self.dtype).square().sum(0)])
        self._absorb(names, torch.tensor([len(group) for group in groups]), mean, {})
        for centre, group in zip(centres, groups, strict=True):
            for rows in torch.split(group, ROWS):
                self._scatter.add(features[rows], centre)
        self._freedom += len(features) - len(names) + len(known)
        return self

    def merge(self, other: ClassStatistics) -> ClassStatistics:
        """Add all that `other` has seen, exactly as if its samples had been given to `update` here."""
        if not isinstance(other, ClassStatistics):
            raise TypeError(f"merge needs ClassStatistics, not {type(other).__name__}.")
        if (other.dim, other.form) != (self.dim, self.form):
            raise ValueError(
                f"cannot merge {other.form!r} statistics of {other.dim} features into {self.form!r} ones of {self.dim}."
            )
        if other is self:
            other = copy.deepcopy(other)
        where = {"dtype": self.dtype, "device": self.device}
        spread = {name: [row.to(**where) for row in other._rows(name)] for name in self._row_shapes()}
        if self.form == "lowrank" and other.rank != self.rank:
            spread["factor"] = [self._leading(f, v) for f, v in zip(spread["factor"], spread["diagonal"], strict=True)]
        steps, known = self._steps(other) if self.form == "shared" else (torch.empty(0), 0)
        self._absorb(other.classes, other.count, other.mean.to(self.device), spread)
        if self.form == "shared":
            self._scatter.add(steps)
            self._freedom += known
            self._scatter.upper.add_(other._scatter.upper.to(**where))  # type: ignore[call-overload]
            self._freedom += other._freedom
        return self

    def _steps(self, other: ClassStatistics) -> tuple[Tensor, int]:
        """Rows by whose squares the shared sum grows when the means of classes that both know become one; and how many."""
        both = [(self._index[name], k) for k, name in enumerate(other.classes) if name in self._index]
        mine, theirs = [row for row, _ in both], [k for _, k in both]
        olds, fresh = self.count[mine].double(), other.count[theirs].double()
        reach = (olds * fresh / (olds + fresh)).sqrt().to(self.device)
        steps = ((other.mean[theirs].to(self.device) - self.mean[mine]) * reach[:, None]).to(self.dtype)
        self._check_size([steps.square().sum(0)])
        return steps, len(both)

    def _absorb(self, names: Sequence[Label], count: Tensor, mean: Tensor, spread: dict[str, list[Tensor]]) -> None:
        """Merge groups, one per name, into the classes: all that can fail first, then the change."""
        groups = [
            {"count": count[k], "mean": mean[k]} | {key: rows[k] for key, rows in spread.items()} for k in range(len(names))
        ]
        known = [k for k, name in enumerate(names) if name in self._index]
        added = [k for k, name in enumerate(names) if name not in self._index]
        self._reserve(len(added))
        shifts = [mean[k] - self.mean[self._index[names[k]]] for k in known]
        merged = [self._merged(self._index[names[k]], groups[k], shift) for k, shift in zip(known, shifts, strict=True)]
        changes = merged + [groups[k] for k in added]
        self._check_size([rows[key] for rows in changes for key in spread])
        targets = [self._index[names[k]] for k in known] + list(range(len(self), len(self) + len(added)))
        for target, rows in zip(targets, changes, strict=True):
            for key, value in rows.items():
                self._used[key][target] = value
        self.classes += [names[k] for k in added]
        self._index = {name: i for i, name in enumerate(self.classes)}

    def _merged(self, row: int, group: dict[str, Tensor], shift: Tensor) -> dict[str, Tensor]:
        """The pairwise formula of Chan et al., in unbiased covariances: a known class and a group of more samples of it."""
        old, fresh = int(self.count[row]), int(group["count"])
        total = old + fresh
        kept, added = (old - 1) / (total - 1), (fresh - 1) / (total - 1)
        moved = old * fresh / total / (total - 1)
        step = shift.to(self.dtype)
        mine = {key: rows[row] for key, rows in self._used.items()}
        result = {"count": torch.tensor(total), "mean": mine["mean"] + shift * (fresh / total)}
        if self.form == "full":
            result["full"] = (mine["full"] * kept).add_(group["full"], alpha=added)
            result["full"].add_(torch.outer(step, step), alpha=moved)
        if "diagonal" in group:
            result["diagonal"] = (mine["diagonal"] * kept).add_(group["diagonal"], alpha=added)
            result["diagonal"].addcmul_(step, step, value=moved)
        if self.form == "lowrank":
            parts = kept**0.5 * mine["factor"], added**0.5 * group["factor"], moved**0.5 * step[:, None]
            result["factor"] = self._leading(torch.cat(parts, 1), result["diagonal"])
        return result

    def _check_size(self, spreads: Sequence[Tensor]) -> None:
        """Squares of large features may not fit the type that covariances are kept in."""
        if not all(bool(torch.isfinite(spread).all()) for spread in spreads):
            raise ValueError(
                f"the features are too large for covariances in {str(self.dtype).removeprefix('torch.')}; "
                "scale them down, or use float64."
            )

    def _reserve(self, more: int) -> None:
        """Room for `more` classes and some to spare, so that classes that come one by one do not copy everything each time."""
        needed = len(self) + more
        for key, buffer in self._used.items():
            if needed > len(buffer):
                spare = buffer.new_zeros(needed + len(self) // 4 - len(buffer), *buffer.shape[1:])
                self._used[key] = torch.cat([buffer, spare])

    def _leading(self, factor: Tensor, variances: Tensor) -> Tensor:
        """The `rank` strongest columns of a factor (d, m), rotated to be orthogonal; zeros fill up.

        Strong in the features' own units: in units of their deviations the same rank costs real features 0.6 points.
        """
        wide = factor.double()
        if wide.shape[1] <= self.dim:
            values, vectors = torch.linalg.eigh(wide.T @ wide)
            columns = (wide @ vectors).flip(1)[:, : self.rank]
        else:
            values, vectors = torch.linalg.eigh(wide @ wide.T)
            columns = (vectors * values.clamp_min(0).sqrt()).flip(1)[:, : self.rank]
        filled = torch.zeros(self.dim, self.rank, dtype=columns.dtype, device=columns.device)
        filled[:, : columns.shape[1]] = columns * (variances > 0)[:, None]  # no rounding where nothing varies
        return filled.to(self.dtype)

    def remove(self, label: Label) -> ClassStatistics:
        """Forget a class: as if none of its samples had ever been given.

        With "shared" its mean and count are gone, but its share of the pooled covariance cannot be told apart from the
        others' and stays: a warning says so.
        """
        gone = self.index(label)
        if self.form == "shared":
            warnings.warn(
                f"the shared covariance still contains class {label!r}'s part of it; "
                "use covariance='full' where a class must be forgotten without a trace.",
                stacklevel=2,
            )
        keep = [i for i in range(len(self)) if i != gone]
        self._used = {name: rows[: len(self)][keep] for name, rows in self._used.items()}
        self.classes = [self.classes[i] for i in keep]
        self._index = {name: i for i, name in enumerate(self.classes)}
        return self

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one safetensors file, whole or not at all."""
        tensor_files.write(path, KIND, self.header(), self.tensors())

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> ClassStatistics:
        """Read what `save` wrote."""
        header, tensors = tensor_files.read(path, KIND)
        try:
            return cls.from_file(header, tensors, device)
        except files.MISFITS as error:
            raise files.misfit(path, error) from error

    def header(self) -> dict[str, Any]:
        """What `from_file` needs beside the tensors, ready for JSON."""
        for label in self.classes:
            if not isinstance(label, str | int | float | bool):
                raise TypeError(f"a class label saved to a file must be a string or a number, not {label!r}.")
        about: dict[str, Any] = {"dim": self.dim, "covariance": self.form, "rank": self.rank}
        about |= {"dtype": str(self.dtype).removeprefix("torch."), "classes": self.classes}
        return about | ({"freedom": self._freedom} if self.form == "shared" else {})

    def tensors(self, *, exact: bool = False) -> dict[str, Tensor]:
        """What a file keeps: of a symmetric matrix the upper triangle, of a factor its correlations in half precision
        (with `exact` the factor as it is, for a run that is to go on bit for bit).
        """
        tensors = {name: self._rows(name) for name in self._used}
        if self.form == "lowrank" and not exact:
            tensors["factor"] = (tensors["factor"] / _deviation(tensors["diagonal"])).half()
        if self.form == "full":
            upper = torch.triu_indices(self.dim, self.dim)
            tensors["full"] = tensors["full"][:, upper[0], upper[1]]
        if self.form == "shared":
            tensors["scatter"] = symmetric.packed(self._scatter.upper)
        return tensors

    @classmethod
    def from_file(
        cls, header: dict[str, Any], tensors: dict[str, Tensor], device: torch.device | str = "cpu"
    ) -> ClassStatistics:
        """The statistics whose `header()` and `tensors()` these are."""
        dtype = {"float32": torch.float32, "float64": torch.float64}[header["dtype"]]
        result = cls(header["dim"], header["covariance"], header["rank"], dtype=dtype, device=device)
        result.classes = list(header["classes"])
        result._index = {name: i for i, name in enumerate(result.classes)}
        if len(result._index) != len(result.classes):
            raise ValueError("a class is listed twice")
        for name, empty in result._used.items():
            rows = tensors[name].to(empty.device)
            if name == "factor" and rows.dtype == torch.float16:
                rows = rows.to(dtype) * _deviation(tensors["diagonal"].to(rows.device))
            if name == "full":
                upper = torch.triu_indices(result.dim, result.dim)
                packed, rows = rows, empty.new_empty(len(rows), result.dim, result.dim)
                rows[:, upper[0], upper[1]] = packed
                rows[:, upper[1], upper[0]] = packed
            if rows.shape != (len(result.classes), *empty.shape[1:]) or rows.dtype != empty.dtype:
                raise ValueError(f"{name!r} has shape {tuple(rows.shape)} and type {rows.dtype}")
            if not bool(torch.isfinite(rows).all()):
                raise ValueError(f"{name!r} holds NaN or infinity")
            result._used[name] = rows
        if bool((result.count < 1).any()):
            raise ValueError("a class has no samples")
        if result.form == "shared":
            result._freedom = int(header["freedom"])
            symmetric.unpack_into(result._scatter.upper, tensors["scatter"].to(result.device))
        return result


def _deviation(variances: Tensor) -> Tensor:
    """Standard deviations (K, d, 1) to divide by: 1 where there is no variance."""
    return torch.where(variances > 0, variances, 1.0).sqrt()[..., None]
