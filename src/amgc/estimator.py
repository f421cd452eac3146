"""`AMGCClassifier`: a scikit-learn classifier that learns new classes without the old data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from amgc import files, tensor_files
from amgc.core.classifier import Classifier
from amgc.core.expected import Expected
from amgc.core.inputs import Label, check_finite, plain
from amgc.core.parameters import DeviceError, available, check_parameters, read_shrinkage
from amgc.core.regularised import Solution, solve_regularised
from amgc.core.shrinkage import Standardize
from amgc.core.solver import Balance, Head
from amgc.core.statistics import ClassStatistics, Form
from amgc.core.typicality import Typicality

KIND = "classifier"
# The expected accuracy was compared with that of held-out training images of flowers and leaves (lite0, five random choices of
# the samples). The largest errors were 0.31 with 5 samples a class, 0.19 with 10, 0.08 with 20 and 0.06 with 50.
ENOUGH, MANY = 10, 20  # samples of each class from which an accuracy can be told, roughly and better
ROUGH, BETTER = 0.2, 0.08  # the margins of these


class ExpectedAccuracy(NamedTuple):
    """What `AMGCClassifier.expected_accuracy` returns.

    accuracy : expected for new samples, classes weighted equally. margin : how far off it may be.
    confused : the two classes that are confused most. confusion : the mean probability of the one for samples of the other.
    """

    accuracy: float
    margin: float
    confused: tuple[Label, Label]
    confusion: float


class AMGCClassifier(ClassifierMixin, BaseEstimator):
    """Linear classifier for classes that arrive over time. It stores the mean and covariance of each class, and no samples.

    `partial_fit` accepts any labels; new ones are added to `classes_`. It only updates the class statistics. The classifier
    that minimises the AMGC loss is solved when it is first needed, by `predict` for example, so many small batches are cheap.
    With ``margin=0`` the order and the size of the batches do not matter.

    Parameters
    ----------
    margin : float, default=0
        λ of variance enlarging. The variances of old classes, those not in the latest `fit` or `partial_fit` call, are
        multiplied by 1 + margin. This gives them a margin against the new classes. It helps if the features of old classes
        have drifted since they were learned, and costs accuracy otherwise. The paper uses 0.4.
    covariance : {"full", "lowrank", "diagonal", "shared"}, default="full"
        Form of the stored covariances: a matrix per class; a factor of `rank` columns and the exact variances; the variances;
        or one matrix for all classes, which has a closed form and suits tens of thousands of features. For 12,800 features it
        needs 655 MB, and as much again for the solve. If that does not fit, a MemoryError is raised.
    rank : int, default=56
        Columns of the factor for ``covariance="lowrank"``. The default stores a class of 512 features in 64 KB.
    balance : {"per_class", "two_means"}, default="per_class"
        Weights of the classes in the loss: all the same, or the new classes together as much as the old ones (as in the paper).
    shrinkage : "auto", float or pair of floats in [0, 1], default="auto"
        "auto" chooses all regularisation by the class statistics. The number that is added to each variance is chosen by
        leave-one-out, computed in closed form. Class means are drawn towards their average with the weight of two samples. The
        pooled covariance counts like three samples per feature; classes with far fewer samples get it unmixed. Numbers set the
        shrinkage of each class covariance towards the pooled one, and of the result towards the pooled diagonal; a single
        number the first only.
    standardize : bool or "auto", default="auto"
        Whether to regularise as if every feature had unit variance. Otherwise the result depends on the features' units. "auto"
        does so if the variances differ by orders of magnitude. Embeddings and pixels are better without.
    device : str, default="cpu"
        Device of the statistics and the solve, such as "cuda".
    dtype : {"float32", "float64"}, default="float32"
        Precision of the covariances and the solve. Means are always in float64.

    Attributes
    ----------
    classes_ : ndarray, the labels seen so far, sorted.
    statistics_ : ClassStatistics, all that is stored of the data. Its classes are in order of arrival.
    coef_, intercept_ : the linear classifier, (n_classes, n_features) and (n_classes,), in the order of `classes_`. The solve
        bounds the error of the loss (`head_.gap`). Without shrinkage, coefficients of features with very small variances are
        not determined.
    temperature_ : float, divides the scores in `predict_proba`.
    margins_ : ndarray (n_classes,), the paper's m_k for each of `classes_`, computed with the regularised covariances; 0 for
        classes that are not enlarged.
    head_ : Head, the solution with its certificate (loss, gap, gradient norm). Its classes are in order of arrival.
    n_features_in_, feature_names_in_ : as in scikit-learn.

    References
    ----------
    Yao and Chang, "Adaptive Margin Global Classifier for Exemplar-Free Class-Incremental Learning".

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.model_selection import train_test_split
    >>> from amgc import AMGCClassifier
    >>> X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
    >>> classifier = AMGCClassifier()
    >>> for task in ([0, 1], [2, 3], [4, 5]):
    ...     now = np.isin(y, task)
    ...     classifier = classifier.partial_fit(X[now], y[now])
    >>> classifier.classes_.tolist()
    [0, 1, 2, 3, 4, 5]
    >>> bool(classifier.score(X_test[y_test < 6], y_test[y_test < 6]) > 0.97)
    True
    """

    statistics_: ClassStatistics
    classes_: np.ndarray
    _latest: dict[Label, int]  # number of the last call that contained each class; classes of the newest call are new
    _solution: Classifier | None = None

    def __init__(
        self,
        *,
        margin: float = 0.0,
        covariance: Form = "full",
        rank: int = 56,
        balance: Balance = "per_class",
        shrinkage: Literal["auto"] | float | tuple[float, float] = "auto",
        standardize: Standardize = "auto",
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        self.margin = margin
        self.covariance = covariance
        self.rank = rank
        self.balance = balance
        self.shrinkage = shrinkage
        self.standardize = standardize
        self.device = device
        self.dtype = dtype

    @classmethod
    def paper(cls, **changes: Any) -> AMGCClassifier:
        """Return a classifier with the paper's values: λ = 0.4, two means, no shrinkage except the variance floor of 1e-4."""
        values: dict[str, Any] = {"margin": 0.4, "balance": "two_means", "shrinkage": (0.0, 0.0)}
        return cls(**values | changes)

    # ---- learning ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> AMGCClassifier:
        """Learn these classes. Everything learned before is discarded."""
        with self._unchanged_on_error():
            X, y = self._checked_data(X, y, reset=True)
            self._restart().update(X, y)
            self._learned(y)
            self._solved()
        return self

    def partial_fit(self, X: Any, y: Any, classes: Iterable[Label] | None = None) -> AMGCClassifier:
        """Learn from more data. New labels become new classes; known classes are updated.

        `classes` is not needed. If it is given, as by some scikit-learn tools, it must contain every label of `y`.
        """
        with self._unchanged_on_error():
            first = not hasattr(self, "statistics_")
            X, y = self._checked_data(X, y, reset=first)
            if classes is not None:
                unexpected = sorted(set(y.tolist()) - set(np.asarray(list(classes)).tolist()))
                if unexpected:
                    raise ValueError(f"y holds the labels {unexpected}, which are not in classes.")
            if first:
                self._restart()
            else:
                self._check_kind(y)
                self._check_form()
            self.statistics_.update(X, y)
            self._learned(y)
        return self

    def forget(self, label: Label) -> AMGCClassifier:
        """Remove a class, as if it had never been seen."""
        check_is_fitted(self)
        self.statistics_.remove(label)
        if not len(self.statistics_):  # as if nothing had ever been seen
            for name in ("statistics_", "classes_", "n_features_in_", "feature_names_in_", "_latest", "_solution"):
                self.__dict__.pop(name, None)
            return self
        self._latest.pop(plain(label))
        self._changed()
        return self

    def rename(self, label: Label, new: Label, *, join: bool = False) -> AMGCClassifier:
        """Give a class another label. If another class has it, `join` makes one class of both, as if learned as one."""
        check_is_fitted(self)
        label, new = plain(label), plain(new)
        self.statistics_.index(label)  # raises an error if it is not known
        if label == new:
            return self
        self._check_kind(np.array([new]))
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
        self.statistics_.join(label, new)
        self._latest[new] = max(self._latest.pop(label), self._latest[new])
        self._changed()
        return self

    def merge(self, other: AMGCClassifier) -> AMGCClassifier:
        """Add what another classifier has learned, as if this one had been given its data."""
        check_is_fitted(self)
        if not isinstance(other, AMGCClassifier):
            raise TypeError(f"merge needs another AMGCClassifier, not {type(other).__name__}.")
        check_is_fitted(other)
        self._check_parameters()
        names, theirs = (getattr(one, "feature_names_in_", None) for one in (self, other))
        if names is not None and theirs is not None and list(names) != list(theirs):
            raise ValueError("the two classifiers were fitted on different feature names.")
        self._check_kind(other.classes_)
        self.statistics_.merge(other.statistics_)
        ahead = max(self._latest.values()) - max(other._latest.values())  # the newest classes of both are new
        for label, call in other._latest.items():
            self._latest[label] = max(call + ahead, self._latest.get(label, call + ahead))
        self._changed()
        return self

    # ---- predicting --------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores X @ coef_.T + intercept_, (n, n_classes). For two classes: the second score minus the first, (n,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely class of each row."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(1)]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities of the seen classes, (n, n_classes)."""
        scores = self._scores(X) / self.temperature_
        scores = np.exp(scores - scores.max(1, keepdims=True))
        return scores / scores.sum(1, keepdims=True)  # type: ignore[no-any-return]

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32], ensure_all_finite=False)
        check_finite(X)
        return self._solved().scores(X)

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

    def typicality(self, X: Any) -> np.ndarray:
        """Return how typical each row is of the class that `predict` gives it, (n,), from 0 to 1.

        About a share p of the samples of known classes has a typicality below p, so rows below 0.05, say, may be of a class
        that was never seen. With fewer than three samples beyond one a class, and for ``covariance="diagonal"``, nothing is
        known and all are 1.
        """
        chosen = self.classes_[self._scores(X).argmax(1)].tolist()
        solved = self._solved()
        if self.statistics_.form == "diagonal":
            return np.ones(len(chosen))
        if solved.typicality is None:
            solved.typicality = Typicality(self.statistics_)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return solved.typicality(X, [self.statistics_.index(label) for label in chosen])

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """Return the accuracy to expect for new samples of the seen classes, and the two classes that are confused most.

        It follows from the class statistics, by leave-one-out, and needs no held-out data. None with fewer than two classes or
        fewer than ten samples of a class: that is too few to say.
        """
        check_is_fitted(self)
        fewest = int(self.statistics_.count.min())
        if len(self.statistics_) < 2 or fewest < ENOUGH:
            return None
        found = self._solved().solution.expected or self._solve().expected  # files of earlier versions do not have it
        assert found is not None
        first, second = (self.statistics_.classes[row] for row in found.pair)
        return ExpectedAccuracy(found.accuracy, BETTER if fewest >= MANY else ROUGH, (first, second), found.confusion)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write statistics, solution and parameters to one safetensors file. It contains no samples."""
        tensor_files.write(path, KIND, *self.packed())

    def packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the contents of a file: a JSON header and named tensors."""
        check_is_fitted(self)
        solved = self._solved()
        head = solved.solution.head
        header = {
            "parameters": self.get_params(deep=False) | {"device": str(self.device)},
            "statistics": self.statistics_.header(),
            "latest": [self._latest[label] for label in self.statistics_.classes],
            "features": list(map(str, getattr(self, "feature_names_in_", []))) or None,
            "temperature": solved.temperature,
            "expected": solved.solution.expected,
            "certificate": {name: value for name, value in vars(head).items() if name not in ("weight", "bias")},
        }
        tensors = {f"statistics.{name}": value for name, value in self.statistics_.tensors().items()}
        return header, tensors | {
            "head.weight": head.weight,
            "head.bias": head.bias,
            "head.margins": solved.solution.margins,
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | None = None) -> AMGCClassifier:
        """Read a file that `save` wrote, to its own device or to another `device`."""
        header, tensors = tensor_files.read(path, KIND)
        try:
            return cls.from_packed(header, tensors, device)
        except DeviceError:
            raise
        except files.MISFITS as error:
            raise files.misfit(path, error) from error

    @classmethod
    def from_packed(cls, header: dict[str, Any], tensors: dict[str, Tensor], device: str | None = None) -> AMGCClassifier:
        """Return the classifier with this `packed()`. Raises any exception if the parts do not fit together."""
        parameters = dict(header["parameters"])
        parameters["device"] = available(device or parameters["device"])
        if isinstance(parameters["shrinkage"], list):
            parameters["shrinkage"] = tuple(parameters["shrinkage"])
        result = cls(**parameters)
        kept = {key.removeprefix("statistics."): value for key, value in tensors.items() if key.startswith("statistics.")}
        result.statistics_ = ClassStatistics.from_file(header["statistics"], kept, result.device)
        result.n_features_in_ = result.statistics_.dim
        if header["features"]:
            result.feature_names_in_ = np.array(header["features"], dtype=object)
            if len(result.feature_names_in_) != result.n_features_in_:
                raise ValueError("not every feature has a name")
        result._latest = dict(zip(result.statistics_.classes, header["latest"], strict=True))
        result._changed()
        weight, bias, margins = (tensors[f"head.{name}"].to(result.device) for name in ("weight", "bias", "margins"))
        if weight.shape != result.statistics_.mean.shape or not bias.shape == margins.shape == weight.shape[:1]:
            raise ValueError(f"the weights have shape {tuple(weight.shape)}")
        known = None
        if header.get("expected"):
            accuracy, (first, second), confusion = header["expected"]
            known = Expected(float(accuracy), (int(first), int(second)), float(confusion))
        result._keep(Solution(Head(weight, bias, **header["certificate"]), float(header["temperature"]), margins, known))
        return result

    # ---- internal -----------------------------------------------------------------------------------------------------

    def _solved(self) -> Classifier:
        """Return the classifier for the current statistics and parameters. It is solved on first use."""
        check_is_fitted(self)
        if self._solution is None or self._solution.parameters != self._solve_parameters():
            return self._keep(self._solve())
        return self._solution

    def _solve(self) -> Solution:
        self._check_parameters()
        return solve_regularised(
            self.statistics_,
            is_new=self._is_new(),
            margin=float(self.margin),
            balance=self.balance,
            shrinkage=read_shrinkage(self.shrinkage),
            standardize=self.standardize,
        )

    def _solve_parameters(self) -> str:
        return repr((self.margin, self.balance, self.shrinkage, self.standardize))

    def _keep(self, solution: Solution) -> Classifier:
        rows = [self.statistics_.index(label) for label in self.classes_.tolist()]
        self._solution = Classifier.of(solution, self.statistics_, rows, self._solve_parameters())
        return self._solution

    def _is_new(self) -> Tensor:
        calls = torch.tensor([self._latest[label] for label in self.statistics_.classes])
        return calls == calls.max()

    def _restart(self) -> ClassStatistics:
        dtype = torch.float64 if self.dtype == "float64" else torch.float32
        self.statistics_ = ClassStatistics(self.n_features_in_, self.covariance, self.rank, dtype=dtype, device=self.device)
        self._latest = {}
        return self.statistics_

    def _learned(self, y: np.ndarray) -> None:
        call = max(self._latest.values(), default=0) + 1
        self._latest = self._latest | dict.fromkeys(np.unique(y).tolist(), call)
        self._changed()

    def _changed(self) -> None:
        self._solution = None
        self.classes_ = np.array(sorted(self.statistics_.classes))  # type: ignore[type-var]

    def _checked_data(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        self._check_parameters()
        X, y = validate_data(
            self, X, y, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False, multi_output=True
        )
        y = column_or_1d(y, warn=True)
        if y.dtype == object and len({isinstance(label, str) for label in y.tolist()}) > 1:
            raise TypeError("the labels are of several types; use only strings or only numbers.")
        with warnings.catch_warnings():  # about many classes in few rows, which is usual here
            warnings.filterwarnings("ignore", message="The number of unique classes", category=UserWarning)
            check_classification_targets(y)
        check_finite(X)
        return X, y

    def _check_parameters(self) -> None:
        check_parameters(**self.get_params(deep=False))

    def _check_form(self) -> None:
        """Raise if parameters of the stored statistics have changed since `fit`."""
        kept = self.statistics_
        now: dict[str, Any] = {"covariance": kept.form, "dtype": str(kept.dtype).removeprefix("torch.")}
        if kept.form == "lowrank":
            now["rank"] = kept.rank
        for name, value in now.items():
            if (min(self.rank, kept.dim) if name == "rank" else getattr(self, name)) != value:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, but the classes so far were learned with {value!r}; "
                    "call fit to start again, or set it back."
                )

    def _check_kind(self, y: np.ndarray) -> None:
        """Raise if new labels do not sort among the known ones. numpy would turn numbers into strings."""
        ours, theirs = self.classes_.tolist(), y.tolist()
        try:
            if isinstance(theirs[0], str) != isinstance(ours[0], str):
                raise TypeError
            sorted([ours[0], *theirs])
        except TypeError:
            raise TypeError(f"new labels such as {theirs[0]!r} do not go with known ones such as {ours[0]!r}.") from None

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "statistics_")
