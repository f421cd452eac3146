"""The classifier behind `AMGCClassifier`, without scikit-learn, whose import takes as long as torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from amgc.core.classifier import Classifier, fill, packed
from amgc.core.expected import ENOUGH, ExpectedAccuracy, margin
from amgc.core.inputs import Label, check_finite, check_small, in_range
from amgc.core.learning import IncrementalStatistics
from amgc.core.parameters import available, read_shrinkage
from amgc.core.regularised import Solution, solve_regularised
from amgc.core.solver import Head
from amgc.core.typical import Typicality
from amgc.core.typicality import measure

if TYPE_CHECKING:
    from typing_extensions import Self


class IncrementalClassifier(IncrementalStatistics):
    """Linear classifier for classes that arrive over time. `AMGCClassifier` documents its parameters and attributes.

    Inputs of `partial_fit` and of predictions are arrays here; `AMGCClassifier` accepts what scikit-learn does.
    """

    _solution: Classifier | None = None

    # ---- predicting --------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities of the seen classes, (n, n_classes)."""
        scores, solved = self._scored(X)
        return solved.probabilities(scores)

    def _scored(self, X: Any) -> tuple[np.ndarray, Classifier]:
        """Return scores (n, n_classes) and the solved classifier that gave them, which other threads do not change."""
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
        return solved.intercept - solved.coef @ solved.centre

    @property
    def temperature_(self) -> float:
        return self._solved().temperature

    @property
    def margins_(self) -> np.ndarray:
        solved = self._solved()
        return solved.solution.margins.cpu().numpy()[solved.rows]

    def typicality(self, X: Any, *, far: Sequence[int] | None = None) -> np.ndarray:
        """Return how typical each row is of the class that `predict` gives it, (n,), from 0 to 1.

        About a share p of the samples of known classes has a typicality below p, so rows below 0.05, say, may be of a class
        that was never seen. With fewer than three samples beyond one a class, and for ``covariance="diagonal"``, nothing is
        known and all are 1.

        far : indices of features that differ most in samples of another kind, such as those of a middle stage of a
            network. Their distance to the nearest class counts as well.
        """
        with self._lock():
            scores, solved = self._scored(X)
            found = self.typical(far)
        if found is None:
            return np.ones(len(scores))
        return found(self._rows(self._checked_rows(X)), solved.rows[scores.argmax(1)])

    def typical(self, far: Sequence[int] | None = None) -> Typicality | None:
        """Return what computes `typicality` from features; None if nothing is known. It is computed on first use."""
        with self._lock():
            solved = self._solved()
            columns = None if far is None else tuple(far)
            if columns is not None and (not columns or not set(columns) <= set(range(self.n_features_in_))):
                raise ValueError(f"far must be indices of features, from 0 to {self.n_features_in_ - 1}; got {far!r}.")
            if self.privacy_ is not None:  # the statistics are of projected rows
                columns = None
            if columns not in solved.typicality:
                solved.typicality[columns] = measure(self.statistics_, columns)
            return solved.typicality[columns]

    def expected_accuracy(self) -> ExpectedAccuracy | None:
        """Return the accuracy to expect for new samples of the seen classes, and the two classes that are confused most.

        It follows from the class statistics, by leave-one-out, and needs no held-out data. None with fewer than two classes or
        fewer than ten samples of a class: that is too few to say.
        """
        self._check_fitted()
        counts = self.statistics_.count
        if len(counts) < 2 or int(counts.min()) < ENOUGH:
            return None
        found = self._solved().solution.expected or self._solve().expected  # files of earlier versions do not have it
        assert found is not None
        first, second = (self.statistics_.classes[row] for row in found.pair)
        return ExpectedAccuracy(found.accuracy, margin(found.accuracy, counts), (first, second), found.confusion)

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
        return packed(self)

    @classmethod
    def from_packed(cls, header: dict[str, Any], tensors: dict[str, Tensor], device: str | None = None) -> Self:
        """Return the classifier with this `packed()`. Raises any exception if the parts do not fit together."""
        parameters = dict(header["parameters"])
        parameters["device"] = available(device or parameters["device"])
        if isinstance(parameters["shrinkage"], list):
            parameters["shrinkage"] = tuple(parameters["shrinkage"])
        result = cls(**parameters)
        fill(result, header, tensors)
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
                shrinkage=self._shrinkage(),
                standardize=self.standardize,
            )

    def _shrinkage(self) -> tuple[float, float] | None:
        """Return the shrinkage; None for one that leave-one-out chooses.

        Statistics of a private classifier take the noise into account already. Leave-one-out, which knows the numbers of
        samples only, would shrink them once more.
        """
        found = read_shrinkage(self.shrinkage)
        return (0.0, 0.0) if found is None and self.privacy_ is not None else found

    def _solve_parameters(self) -> str:
        return repr((self.margin, self.balance, self.shrinkage, self.standardize))

    def _keep(self, solution: Solution) -> Classifier:
        self._solution = Classifier.of_solution(solution, self.statistics_, self._solve_parameters())
        return self._solution

    def _is_new(self) -> Tensor:
        calls = torch.tensor([self._latest[label] for label in self.statistics_.classes])
        return calls == calls.max()

    def _relabelled(self) -> None:
        solved = self._solution
        self._changed()
        if solved is not None:  # the same solution, with its classes in another order
            self._keep(solved.solution)

    def _changed(self) -> None:
        self._solution = None
        super()._changed()

    def _checked_rows(self, X: Any) -> np.ndarray:
        """Check the form of features to predict."""
        return np.asarray(X)
