"""`AMGCClassifier`: a scikit-learn classifier that learns new classes without the old data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from amgc import files, tensor_files
from amgc.core.incremental import IncrementalClassifier
from amgc.core.inputs import Label, check_finite, check_range
from amgc.core.parameters import DeviceError

KIND = "classifier"


class AMGCClassifier(ClassifierMixin, BaseEstimator, IncrementalClassifier):
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
        number the first only. With `epsilon`, "auto" shrinks nothing further: the statistics are cleaned of noise already.
    standardize : bool or "auto", default="auto"
        Whether to regularise as if every feature had unit variance. Otherwise the result depends on the features' units. "auto"
        does so if the variances differ by orders of magnitude, and else by the share that leave-one-out chooses.
    epsilon : float or None, default=None
        Budget of differential privacy for each sample; 1 is strong, 8 is weak. Every call of `fit` or `partial_fit` adds noise
        to its sums, once, and one covariance is stored for all classes. None: no noise. Anyone with the classifier can then
        compute whether a sample was learned, and from two versions of it a sample that was learned in between.
    delta : float, default=1e-5
        Probability with which the bound of `epsilon` may fail. It should be well below 1 / number of samples.
    lessons : int, default=1
        Number of calls in which a class can be learned. Each spends the same part of the budget, and more are an error.
    clip : float or None, default=None
        With `epsilon`: norm to which longer rows are scaled down, chosen without the data. None: rows are centred at their own
        average over the features and scaled to norm 1.
    directions : int, default=768
        With `epsilon`: more features than this are projected to that many fixed directions, and to fewer if the first
        call has few samples for the budget: later calls use as many as it did.
    centre : array-like (n_features,) or None, default=None
        With `epsilon`: subtracted from rows first, chosen without the data, such as the mean of public samples. It raises the
        accuracy if all rows have much in common.
    background : {"lite0"} or None, default=None
        Network whose features the rows are. Its background, the covariances of its features on public images, is known before
        any sample. With few samples, a part of the ridge has the form that it suggests; leave-one-out chooses how much. It
        raises the accuracy with 1 to 20 samples a class. "lite0" is for the default features of lite0, as `amgc.Model` computes
        them. It has no effect with numbers as `shrinkage`, or ``covariance="diagonal"``. With `epsilon`, its mean is the
        default `centre`, and few samples are projected to the directions in which classes of public images differ most.
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
        not determined. With `epsilon` they apply to the projected and scaled rows.
    temperature_ : float, divides the scores in `predict_proba`.
    margins_ : ndarray (n_classes,), the paper's m_k for each of `classes_`, computed with the regularised covariances; 0 for
        classes that are not enlarged.
    spent_ : dict, ε that was spent on each class, forgotten ones included; empty without `epsilon`.
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

    @classmethod
    def paper(cls, **changes: Any) -> AMGCClassifier:
        """Return a classifier with the paper's values: λ = 0.4, two means, no shrinkage except the variance floor of 1e-4."""
        values: dict[str, Any] = {"margin": 0.4, "balance": "two_means", "shrinkage": (0.0, 0.0)}
        return cls(**values | changes)

    # ---- learning ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> AMGCClassifier:
        """Learn these classes. Everything learned before is discarded."""
        with self._changing():
            X, y = self._checked_data(X, y, reset=True)
            self._restart()
            self._update(X, y)
            self._solved()
        return self

    def partial_fit(self, X: Any, y: Any, classes: Iterable[Label] | None = None) -> AMGCClassifier:
        """Learn from more data. New labels become new classes; known classes are updated.

        `classes` is not needed. If it is given, as by some scikit-learn tools, it must contain every label of `y`.
        """
        if classes is not None:
            unexpected = sorted(set(np.asarray(y).ravel().tolist()) - set(np.asarray(list(classes)).tolist()))
            if unexpected:
                raise ValueError(f"y holds the labels {unexpected}, which are not in classes.")
        return super().partial_fit(X, y)

    # ---- predicting --------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores X @ coef_.T + intercept_, (n, n_classes). For two classes: the second score minus the first, (n,)."""
        scores, _ = self._scored(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely class of each row."""
        scores, solved = self._scored(X)
        return solved.classes[scores.argmax(1)]  # type: ignore[no-any-return]

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write statistics, solution and parameters to one safetensors file. It contains no samples."""
        tensor_files.write(path, KIND, *self.packed())

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

    # ---- checks by scikit-learn --------------------------------------------------------------------------------------

    def _checked_data(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        self._check_parameters()
        X, y = validate_data(
            self, X, y, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False, multi_output=True
        )
        y = column_or_1d(y, warn=True)
        if y.dtype == object and len({(isinstance(label, str), isinstance(label, bool)) for label in y.tolist()}) > 1:
            raise TypeError("the labels are of several types; use only strings, only numbers or only booleans.")
        with warnings.catch_warnings():  # about many classes in few rows, which is usual here
            warnings.filterwarnings("ignore", message="The number of unique classes", category=UserWarning)
            check_classification_targets(y)
        check_finite(X)
        check_range(X, self.dtype)
        return X, y

    def _checked_rows(self, X: Any) -> np.ndarray:
        return validate_data(self, X, reset=False, dtype=[np.float64, np.float32], ensure_all_finite=False)  # type: ignore[no-any-return]

    def _check_fitted(self) -> None:
        check_is_fitted(self)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "statistics_")
