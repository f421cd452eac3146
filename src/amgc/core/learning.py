"""The class statistics of a classifier, and the operations that change them: learn, forget, rename and merge."""

from __future__ import annotations

import copy
import inspect
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from amgc.core.inputs import Label, check_finite, check_range, in_range, plain
from amgc.core.parameters import check_parameters
from amgc.core.privacy import Privacy
from amgc.core.release import release
from amgc.core.shrinkage import Standardize
from amgc.core.solver import Balance
from amgc.core.statistics import ClassStatistics, Form
from amgc.core.sums import Sums

if TYPE_CHECKING:
    from typing_extensions import Self

# Not attributes: a classifier is copied, pickled and cloned, and a lock cannot be.
_LOCKS: weakref.WeakKeyDictionary[IncrementalStatistics, threading.RLock] = weakref.WeakKeyDictionary()
_GUARD = threading.Lock()


class IncrementalStatistics:
    """Statistics of classes that arrive over time, and the parameters of `IncrementalClassifier`, which derives from it."""

    statistics_: ClassStatistics
    classes_: np.ndarray
    n_features_in_: int
    feature_names_in_: np.ndarray  # if `AMGCClassifier` was given named features
    privacy_: Privacy | None  # the settings of differential privacy with which the classes were learned
    sums_: Sums  # if there are any: the noisy sums that `statistics_` follow from
    _latest: dict[Label, int]  # number of the last call that contained each class; classes of the newest call are new
    _waiting: list[tuple[Tensor, np.ndarray]] | None = None  # rows and labels of the lesson that is being collected
    narrow_to: int | None = None  # directions of the first lesson with `epsilon`; None: it chooses

    def __init__(
        self,
        *,
        margin: float = 0.0,
        covariance: Form = "full",
        rank: int = 56,
        balance: Balance = "per_class",
        shrinkage: Literal["auto"] | float | tuple[float, float] = "auto",
        standardize: Standardize = "auto",
        epsilon: float | None = None,
        delta: float = 1e-5,
        lessons: int = 1,
        clip: float | None = None,
        directions: int = 768,
        centre: Sequence[float] | None = None,
        background: str | None = None,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        self.margin = margin
        self.covariance = covariance
        self.rank = rank
        self.balance = balance
        self.shrinkage = shrinkage
        self.standardize = standardize
        self.epsilon = epsilon
        self.delta = delta
        self.lessons = lessons
        self.clip = clip
        self.directions = directions
        self.centre = centre
        self.background = background
        self.device = device
        self.dtype = dtype

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the constructor by name."""
        return {name: getattr(self, name) for name in sorted(PARAMETERS)}

    @property
    def privacy(self) -> Privacy | None:
        """The settings of differential privacy; None without `epsilon`."""
        settings = self.delta, self.lessons, self.clip, self.directions, self.centre, self.background
        return None if self.epsilon is None else Privacy(self.epsilon, *settings)

    # ---- learning ----------------------------------------------------------------------------------------------------

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn from more data. New labels become new classes; known classes are updated."""
        with self._changing():
            first = not hasattr(self, "statistics_")
            X, y = self._checked_data(X, y, reset=first)
            if first:
                self._restart()
            else:
                self._check_kind(y)
                self._check_form()
            self._update(X, y)
        return self

    def collect(self, X: Any, y: Any) -> Self:
        """Learn a batch of a lesson. With `epsilon`, rows wait in memory for `finish`, which adds noise to their sums once."""
        if (privacy := self.privacy) is None:
            return self.partial_fit(X, y)
        X, y = self._checked_data(X, y, reset=self._waiting is None and not hasattr(self, "statistics_"))
        self._waiting = [*(self._waiting or []), (privacy.rows(X).float(), y)]
        return self

    def __getstate__(self) -> Any:
        """Refuse to copy or pickle rows that have no noise yet."""
        if self._waiting is not None:
            raise ValueError(
                "a lesson is being collected, and its rows have no noise yet; call finish before you copy or save."
            )
        return getattr(super(), "__getstate__", self.__dict__.copy)()  # Python 3.10 has none

    def finish(self) -> Self:
        """End the lesson whose batches were given to `collect`. If it fails, the lesson is dropped and nothing changes."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with self._changing():
                if not hasattr(self, "statistics_"):
                    self._restart()
                self._release(torch.cat([rows for rows, _ in waiting]), np.concatenate([y for _, y in waiting]))
        return self

    @classmethod
    def of_statistics(cls, statistics: ClassStatistics, **parameters: Any) -> Self:
        """Return a classifier with these statistics, as if all classes had been learned in one call."""
        result = cls(**parameters)
        result._check_parameters()
        result.n_features_in_ = statistics.dim
        result._restart().merge(statistics)
        result._learned(result.statistics_.classes)
        return result

    def _update(self, X: np.ndarray, y: np.ndarray) -> None:
        """Add samples to the statistics, with noise if there is an epsilon."""
        if self.privacy_ is not None:
            return self._release(self.privacy_.rows(X), y)
        self.statistics_.update(X, y)
        self._learned(np.unique(y).tolist())

    def _release(self, rows: Tensor, labels: np.ndarray) -> None:
        """Add the sums of a lesson with noise."""
        assert self.privacy_ is not None
        self.privacy_.check(self.sums_.spent, np.unique(labels).tolist())
        directions, narrow = self.sums_.dim if self.sums_.spent else self.narrow_to, self.privacy_.narrowing(rows.shape[1])
        if directions is not None:
            rows = rows.double() @ narrow(directions)
        released = release(rows, labels, self.privacy_.loss, narrow=narrow if directions is None else None)
        sums = Sums.of(released, self.privacy_.loss)
        self._set_sums(copy.deepcopy(self.sums_).merge(sums) if self.sums_.spent else sums)
        self._learned(sums.classes)

    def _set_sums(self, sums: Sums) -> None:
        """Replace the noisy sums, and the statistics that follow from them."""
        self.sums_, self.statistics_ = sums, sums.statistics()

    def forget(self, label: Label) -> Self:
        """Remove a class, as if it had never been seen."""
        with self._lock():
            return self._forget(label)

    def _forget(self, label: Label) -> Self:
        self._check_fitted()
        if self.privacy_ is not None:
            self.statistics_.index(label)  # raises an error if it is not known
            if len(self.statistics_) == 1:
                raise ValueError(
                    "the last class of a private classifier cannot be forgotten: the record of its budget would be lost."
                )
            self._set_sums(copy.deepcopy(self.sums_).remove(plain(label)))
        else:
            self.statistics_.remove(label)
        if not len(self.statistics_):  # as if nothing had ever been seen
            for name in ("statistics_", "classes_", "n_features_in_", "feature_names_in_", "privacy_", "_latest", "_solution"):
                self.__dict__.pop(name, None)
            return self
        self._latest.pop(plain(label))
        self._changed()
        return self

    def rename(self, label: Label, new: Label, *, join: bool = False) -> Self:
        """Give a class another label. If another class has it, `join` makes one class of both, as if learned as one."""
        with self._lock():
            return self._rename(label, new, join)

    def _rename(self, label: Label, new: Label, join: bool) -> Self:
        self._check_fitted()
        label, new = plain(label), plain(new)
        self.statistics_.index(label)  # raises an error if it is not known
        if label == new:
            return self
        self._check_kind(np.array([new]))
        if self.privacy_ is not None and (join or new not in self.statistics_):
            self.sums_ = copy.deepcopy(self.sums_).rename(label, new)
        if new not in self.statistics_:
            self.statistics_.rename(label, new)
            self._latest = {new if name == label else name: call for name, call in self._latest.items()}
            self._relabelled()
            return self
        if not join:
            raise ValueError(f"there is a class {new!r} already; join=True makes one class of {label!r} and {new!r}.")
        self._check_parameters()
        if self.privacy_ is not None:
            self.statistics_ = self.sums_.statistics()
        else:
            self.statistics_.join(label, new)
        self._latest[new] = max(self._latest.pop(label), self._latest[new])
        self._changed()
        return self

    def merge(self, other: IncrementalStatistics) -> Self:
        """Add what another classifier has learned, as if this one had been given its data.

        Warns if a classifier is merged with itself, because all its data then count twice.
        """
        if other is self:
            warnings.warn("a classifier that is merged with itself counts all its data twice.", UserWarning, stacklevel=2)
        with self._lock():
            return self._merge(other)

    def _merge(self, other: IncrementalStatistics) -> Self:
        self._check_fitted()
        if not isinstance(other, IncrementalStatistics):
            raise TypeError(f"merge needs another AMGCClassifier, not {type(other).__name__}.")
        other._check_fitted()
        self._check_parameters()
        names, theirs = (getattr(one, "feature_names_in_", None) for one in (self, other))
        if names is not None and theirs is not None and list(names) != list(theirs):
            raise ValueError("the two classifiers were fitted on different feature names.")
        self._check_kind(other.classes_)
        mine, others = self.privacy_, other.privacy_
        if (mine is None) != (others is None) or (mine and others and not mine.maps_like(others, self.n_features_in_)):
            raise ValueError(
                "both classifiers must be private, with the same clip, directions, centre and background, or neither of them."
            )
        if self.privacy_ is not None:
            whole = self.privacy_.matrix(self.n_features_in_).shape[1]
            to = self.privacy_.narrowing(whole), min(self.sums_.dim, other.sums_.dim)
            self._set_sums(copy.deepcopy(self.sums_).narrowed(*to).merge(other.sums_.narrowed(*to)))
        else:
            self.statistics_.merge(other.statistics_)
        ahead = max(self._latest.values()) - max(other._latest.values())  # the newest classes of both are new
        for label, call in other._latest.items():
            self._latest[label] = max(call + ahead, self._latest.get(label, call + ahead))
        self._changed()
        return self

    # ---- internal -----------------------------------------------------------------------------------------------------

    def _restart(self) -> ClassStatistics:
        dtype = torch.float64 if self.dtype == "float64" else torch.float32
        self.privacy_ = self.privacy
        if self.privacy_ is not None:
            self.sums_ = Sums(self.privacy_.matrix(self.n_features_in_).shape[1])
        self.statistics_ = ClassStatistics(self.n_features_in_, self.covariance, self.rank, dtype=dtype, device=self.device)
        self._latest = {}
        return self.statistics_

    def _learned(self, labels: list[Label]) -> None:
        call = max(self._latest.values(), default=0) + 1
        self._latest = self._latest | dict.fromkeys(labels, call)
        self._changed()

    def _relabelled(self) -> None:
        """Update what follows from the labels. Only their names have changed."""
        self._changed()

    def _changed(self) -> None:
        """Update what follows from the statistics."""
        self.classes_ = np.array(sorted(self.statistics_.classes))  # type: ignore[type-var]

    def _checked_data(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Check parameters, features and labels. `reset` accepts any number of features."""
        self._check_parameters()
        X = np.asarray(X)
        if reset:
            self.n_features_in_ = X.shape[1]
        check_finite(X)
        check_range(X, self.dtype)
        return X, np.asarray(y)

    def _check_fitted(self) -> None:
        if not hasattr(self, "statistics_"):
            raise ValueError("this classifier has no classes yet; call partial_fit first.")

    def _check_parameters(self) -> None:
        check_parameters(**self.parameters())

    def _check_form(self) -> None:
        """Raise if parameters of the stored statistics have changed since `fit`."""
        kept = self.statistics_
        if self.privacy != self.privacy_:
            raise ValueError(
                f"the classes so far were learned with {self.privacy_ or 'no privacy'}, which cannot change to "
                f"{self.privacy or 'none'}; call fit to start again, or set it back."
            )
        if self.privacy_ is not None:
            return
        now: dict[str, Any] = {"covariance": kept.form, "dtype": str(kept.dtype).removeprefix("torch.")}
        now |= {"rank": kept.rank} if kept.form == "lowrank" else {}
        for name, value in now.items():
            if (min(self.rank, kept.dim) if name == "rank" else getattr(self, name)) != value:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, but the classes so far were learned with {value!r}; "
                    "call fit to start again, or set it back."
                )

    def _check_kind(self, y: np.ndarray) -> None:
        """Raise if new labels cannot be sorted with the known ones. numpy would turn numbers into strings, and True into 1."""
        ours, theirs = self.classes_.tolist(), y.tolist()
        try:
            if any(isinstance(theirs[0], kind) != isinstance(ours[0], kind) for kind in (str, bool)):
                raise TypeError
            sorted([ours[0], *theirs])
        except TypeError:
            raise TypeError(f"new labels such as {theirs[0]!r} do not go with known ones such as {ours[0]!r}.") from None

    def _lock(self) -> threading.RLock:
        """Return the lock that changes and solves hold. Predictions of a solved classifier do not wait for it."""
        with _GUARD:
            return _LOCKS.setdefault(self, threading.RLock())

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, and leave the classifier as it was if there is an error."""
        with self._lock():
            before = dict(self.__dict__)
            try:
                with in_range(torch.float64 if self.dtype == "float64" else torch.float32):
                    yield
            except BaseException:
                self.__dict__ = before
                raise


PARAMETERS = [name for name in inspect.signature(IncrementalStatistics.__init__).parameters if name != "self"]
