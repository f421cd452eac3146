"""The classifier behind `AMGCClassifier`, without scikit-learn, whose import takes as long as torch's."""

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

from amgc.core import classifier_file
from amgc.core.classifier import Classifier
from amgc.core.expected import BETTER, ENOUGH, MANY, ROUGH, ExpectedAccuracy
from amgc.core.inputs import Label, check_finite, check_range, check_small, in_range, plain
from amgc.core.parameters import available, check_parameters, read_shrinkage
from amgc.core.privacy import Privacy, Sums
from amgc.core.regularised import Solution, solve_regularised
from amgc.core.release import release
from amgc.core.shrinkage import Standardize
from amgc.core.solver import Balance, Head
from amgc.core.statistics import ClassStatistics, Form
from amgc.core.typicality import Typicality

if TYPE_CHECKING:
    from typing_extensions import Self

# Not attributes: a classifier is copied, pickled and cloned, and a lock cannot be.
_LOCKS: weakref.WeakKeyDictionary[IncrementalClassifier, threading.RLock] = weakref.WeakKeyDictionary()
_GUARD = threading.Lock()


class IncrementalClassifier:
    """Linear classifier for classes that arrive over time. `AMGCClassifier` documents its parameters and attributes.

    Inputs of `partial_fit` and of predictions are arrays here; `AMGCClassifier` accepts what scikit-learn does.
    """

    statistics_: ClassStatistics
    classes_: np.ndarray
    n_features_in_: int
    feature_names_in_: np.ndarray  # if `AMGCClassifier` was given named features
    privacy_: Privacy | None  # the settings of differential privacy with which the classes were learned
    sums_: Sums  # if there are any: the noisy sums that `statistics_` follow from
    _latest: dict[Label, int]  # number of the last call that contained each class; classes of the newest call are new
    _solution: Classifier | None = None
    _waiting: list[tuple[Tensor, np.ndarray]] | None = None  # rows and labels of the lesson that is being collected

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
        self.device = device
        self.dtype = dtype

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the constructor by name."""
        return {name: getattr(self, name) for name in sorted(PARAMETERS)}

    @property
    def privacy(self) -> Privacy | None:
        """The settings of differential privacy; None without `epsilon`."""
        if self.epsilon is None:
            return None
        return Privacy(self.epsilon, self.delta, self.lessons, self.clip, self.directions, self.centre)

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

    def finish(self) -> Self:
        """End the lesson whose batches were given to `collect`. If it fails, the lesson is dropped and nothing changes."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with self._changing():
                if not hasattr(self, "statistics_"):
                    self._restart()
                self._release(torch.cat([rows for rows, _ in waiting]), np.concatenate([y for _, y in waiting]))
        return self

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
        lesson = release(rows, labels, self.privacy_.loss)
        self.sums_ = copy.deepcopy(self.sums_).merge(Sums.of(lesson, self.privacy_.loss))
        self.statistics_ = self.sums_.statistics()
        self._learned(lesson.classes)

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
            self.sums_ = copy.deepcopy(self.sums_).remove(plain(label))
            self.statistics_ = self.sums_.statistics()
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
            solved = self._solution
            self._changed()
            if solved is not None:  # nothing has changed but the order of classes
                self._keep(solved.solution)
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

    def merge(self, other: IncrementalClassifier) -> Self:
        """Add what another classifier has learned, as if this one had been given its data.

        Merged with itself, a classifier counts all its data twice, which a warning says.
        """
        if other is self:
            warnings.warn("a classifier that is merged with itself counts all its data twice.", UserWarning, stacklevel=2)
        with self._lock():
            return self._merge(other)

    def _merge(self, other: IncrementalClassifier) -> Self:
        self._check_fitted()
        if not isinstance(other, IncrementalClassifier):
            raise TypeError(f"merge needs another AMGCClassifier, not {type(other).__name__}.")
        other._check_fitted()
        self._check_parameters()
        names, theirs = (getattr(one, "feature_names_in_", None) for one in (self, other))
        if names is not None and theirs is not None and list(names) != list(theirs):
            raise ValueError("the two classifiers were fitted on different feature names.")
        self._check_kind(other.classes_)
        if not self._same_rows(other):
            raise ValueError("both classifiers must be private, with the same clip, directions and centre, or neither of them.")
        if self.privacy_ is not None:
            self.sums_ = copy.deepcopy(self.sums_).merge(other.sums_)
            self.statistics_ = self.sums_.statistics()
        else:
            self.statistics_.merge(other.statistics_)
        ahead = max(self._latest.values()) - max(other._latest.values())  # the newest classes of both are new
        for label, call in other._latest.items():
            self._latest[label] = max(call + ahead, self._latest.get(label, call + ahead))
        self._changed()
        return self

    # ---- predicting --------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities of the seen classes, (n, n_classes)."""
        scores, solved = self._scored(X)
        scores /= solved.temperature
        scores = np.exp(scores - scores.max(1, keepdims=True))
        return scores / scores.sum(1, keepdims=True)  # type: ignore[no-any-return]

    def _scored(self, X: Any) -> tuple[np.ndarray, Classifier]:
        """Return scores (n, n_classes) and the classifier that they come from: one state, whatever other threads do."""
        self._check_fitted()
        X = self._checked_rows(X)
        check_finite(X)
        solved = self._solved()
        return solved.scores(self._rows(X)), solved

    def _rows(self, X: np.ndarray) -> np.ndarray:
        """Return the rows that the statistics are of: X, or with `epsilon` projected and scaled rows."""
        return X if self.privacy_ is None else self.privacy_.rows(X).numpy()

    @property
    def is_solved(self) -> bool:
        """Whether the classifier of the current statistics and parameters is known, so that predictions do not wait."""
        return self._solution is not None and self._solution.parameters == self._solve_parameters()

    @property
    def head_(self) -> Head:
        return self._solved().solution.head

    @property
    def coef_(self) -> np.ndarray:
        return self._solved().coef

    @property
    def intercept_(self) -> np.ndarray:
        solved = self._solved()
        return solved.intercept - solved.coef @ solved.centre  # type: ignore[no-any-return]

    @property
    def temperature_(self) -> float:
        return self._solved().temperature

    @property
    def margins_(self) -> np.ndarray:
        return self._solved().margins

    def typicality(self, X: Any, *, far: Sequence[int] | None = None) -> np.ndarray:
        """Return how typical each row is of the class that `predict` gives it, (n,), from 0 to 1.

        About a share p of the samples of known classes has a typicality below p, so rows below 0.05, say, may be of a class
        that was never seen. With fewer than three samples beyond one a class, and for ``covariance="diagonal"``, nothing is
        known and all are 1.

        far : indices of features that differ most in what is altogether different, such as those of a middle stage of a
            network. Their distance to the nearest class counts as well.
        """
        with self._lock():
            scores, solved = self._scored(X)
            chosen = solved.classes[scores.argmax(1)].tolist()
            columns = None if far is None else tuple(far)
            if columns is not None and (not columns or not set(columns) <= set(range(self.n_features_in_))):
                raise ValueError(f"far must be indices of features, from 0 to {self.n_features_in_ - 1}; got {far!r}.")
            if self.privacy_ is not None:  # the statistics are of projected rows
                columns = None
            if columns not in solved.typicality:
                solved.typicality[columns] = Typicality(self.statistics_, columns)
            rows = [self.statistics_.index(label) for label in chosen]
        return solved.typicality[columns](self._rows(self._checked_rows(X)), rows)

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """Return the accuracy to expect for new samples of the seen classes, and the two classes that are confused most.

        It follows from the class statistics, by leave-one-out, and needs no held-out data. None with fewer than two classes or
        fewer than ten samples of a class: that is too few to say.
        """
        self._check_fitted()
        fewest = int(self.statistics_.count.min())
        if len(self.statistics_) < 2 or fewest < ENOUGH:
            return None
        found = self._solved().solution.expected or self._solve().expected  # files of earlier versions do not have it
        assert found is not None
        first, second = (self.statistics_.classes[row] for row in found.pair)
        return ExpectedAccuracy(found.accuracy, BETTER if fewest >= MANY else ROUGH, (first, second), found.confusion)

    @property
    def spent_(self) -> dict[Label, float]:
        """ε that was spent on each class, forgotten ones included; empty without `epsilon`."""
        self._check_fitted()
        if self.privacy_ is None:
            return {}
        return {label: self.privacy_.epsilon_of(loss) for label, loss in self.sums_.spent.items()}

    # ---- files -------------------------------------------------------------------------------------------------------

    def packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the contents of a file: a JSON header and named tensors."""
        self._check_fitted()
        return classifier_file.packed(self)

    @classmethod
    def from_packed(cls, header: dict[str, Any], tensors: dict[str, Tensor], device: str | None = None) -> Self:
        """Return the classifier with this `packed()`. Raises any exception if the parts do not fit together."""
        parameters = dict(header["parameters"])
        parameters["device"] = available(device or parameters["device"])
        if isinstance(parameters["shrinkage"], list):
            parameters["shrinkage"] = tuple(parameters["shrinkage"])
        result = cls(**parameters)
        classifier_file.fill(result, header, tensors)
        return result

    # ---- internal -----------------------------------------------------------------------------------------------------

    def _solved(self) -> Classifier:
        """Return the classifier for the current statistics and parameters. It is solved on first use."""
        self._check_fitted()
        solved = self._solution  # another thread may replace it, but not change it
        if solved is not None and solved.parameters == self._solve_parameters():
            return solved
        with self._lock():  # wait until the statistics are whole
            if self._solution is None or not self.is_solved:
                return self._keep(self._solve())
            return self._solution

    def _solve(self) -> Solution:
        self._check_parameters()
        kept = self.statistics_
        check_small(float(kept.mean.abs().max()), kept.dtype)
        with in_range(kept.dtype):
            return solve_regularised(
                kept,
                is_new=self._is_new(),
                margin=float(self.margin),
                balance=self.balance,
                shrinkage=read_shrinkage(self.shrinkage),
                standardize=self.standardize,
            )

    def _solve_parameters(self) -> str:
        return repr((self.margin, self.balance, self.shrinkage, self.standardize))

    def _keep(self, solution: Solution) -> Classifier:
        self._solution = Classifier.of(solution, self.statistics_, self.classes_, self._solve_parameters())
        return self._solution

    def _is_new(self) -> Tensor:
        calls = torch.tensor([self._latest[label] for label in self.statistics_.classes])
        return calls == calls.max()

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

    def _changed(self) -> None:
        self._solution = None
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

    def _checked_rows(self, X: Any) -> np.ndarray:
        """Check the form of features to predict."""
        return np.asarray(X)

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
        if kept.form == "lowrank":
            now["rank"] = kept.rank
        for name, value in now.items():
            if (min(self.rank, kept.dim) if name == "rank" else getattr(self, name)) != value:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, but the classes so far were learned with {value!r}; "
                    "call fit to start again, or set it back."
                )

    def _same_rows(self, other: IncrementalClassifier) -> bool:
        """Return whether both have statistics of the same kind of rows: both private and mapped alike, or neither."""
        mine, theirs = self.privacy_, other.privacy_
        if mine is None or theirs is None:
            return mine is theirs
        one, two = (np.asarray(own.centre or [0.0] * self.n_features_in_) for own in (mine, theirs))
        # Machines differ in the last digits of a centre that an extractor computed.
        near = one.shape == two.shape and np.abs(one - two).max() <= 1e-2 * np.abs(one).max()
        return bool(near) and (mine.clip, self.sums_.dim) == (theirs.clip, other.sums_.dim)

    def _check_kind(self, y: np.ndarray) -> None:
        """Raise if new labels do not sort among the known ones. numpy would turn numbers into strings, and True is 1."""
        ours, theirs = self.classes_.tolist(), y.tolist()
        try:
            if any(isinstance(theirs[0], kind) != isinstance(ours[0], kind) for kind in (str, bool)):
                raise TypeError
            sorted([ours[0], *theirs])
        except TypeError:
            raise TypeError(f"new labels such as {theirs[0]!r} do not go with known ones such as {ours[0]!r}.") from None

    def _lock(self) -> threading.RLock:
        """Return the lock of what changes or solves the statistics. Answers of a solved classifier do not wait for it."""
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


PARAMETERS = [name for name in inspect.signature(IncrementalClassifier.__init__).parameters if name != "self"]
