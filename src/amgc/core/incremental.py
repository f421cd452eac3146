"""The classifier behind `AMGCClassifier`, without scikit-learn, whose import takes as long as torch's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from amgc.core.background import Background, background, checksum
from amgc.core.expected import ENOUGH, Expected, ExpectedAccuracy, margin
from amgc.core.inputs import Label, check_finite, check_small, in_range
from amgc.core.learning import IncrementalStatistics
from amgc.core.linear import Linear
from amgc.core.parameters import available, read_shrinkage
from amgc.core.regularised import Solution, solve_regularised
from amgc.core.solver import Head
from amgc.core.statistics import ClassStatistics
from amgc.core.sums import Sums
from amgc.core.typical import TYPICAL, Typicality
from amgc.core.typicality import measure
from amgc.tensor_files import prefixed, without

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class Classifier(Linear):
    """A solved classifier. `solution` has the classes in order of arrival.

    parameters : describes the parameters of the solve. typicality : computed on first use, by the features `far`.
    """

    solution: Solution
    parameters: str
    typicality: dict[tuple[int, ...] | None, Typicality | None] = field(default_factory=dict)

    @classmethod
    def of_solution(cls, solution: Solution, statistics: ClassStatistics, parameters: str) -> Classifier:
        """Return the classifier of a solution of the statistics."""
        parts = solution.head.weight, solution.head.bias, statistics.mean
        weight, bias, mean = (part.cpu().numpy() for part in parts)
        more = {"solution": solution, "parameters": parameters}
        return cls.of(weight, bias, mean, solution.temperature, statistics.classes, **more)


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
        return X if self.privacy_ is None else self.privacy_.rows(X, self.sums_.dim).numpy()

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
        fewer than ten samples of a class: that is too few to say; and with `epsilon`, because of the noise.
        """
        self._check_fitted()
        counts = self.statistics_.count
        if len(counts) < 2 or int(counts.min()) < ENOUGH or self.privacy_ is not None:
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
        solved, statistics, privacy = self._solved(), self.statistics_, self.privacy_
        head = solved.solution.head
        header = {
            "parameters": self.parameters() | {"device": str(self.device), "centre": privacy and privacy.centre},
            "statistics": statistics.header(),
            "latest": [self._latest[label] for label in statistics.classes],
            "features": list(map(str, getattr(self, "feature_names_in_", []))) or None,
            "temperature": solved.temperature,
            "expected": solved.solution.expected,
            "certificate": {name: value for name, value in vars(head).items() if name not in ("weight", "bias")},
        }
        tensors = prefixed("statistics.", statistics.tensors())
        if privacy is not None:
            private, sums = self.sums_.packed(privacy)
            header["private"] = private | {
                "features": self.n_features_in_,
                "background": privacy.background and checksum(privacy.background),
            }
            tensors |= prefixed("sums.", sums)
        return header, tensors | {"head.weight": head.weight, "head.bias": head.bias, "head.margins": solved.solution.margins}

    @classmethod
    def from_packed(cls, header: dict[str, Any], tensors: dict[str, Tensor], device: str | None = None) -> Self:
        """Return the classifier with this `packed()`. Raises any exception if the parts do not fit together."""
        parameters = dict(header["parameters"])
        parameters["device"] = available(device or parameters["device"])
        if isinstance(parameters["shrinkage"], list):
            parameters["shrinkage"] = tuple(parameters["shrinkage"])
        result = cls(**parameters)
        result._fill(header, tensors)
        return result

    def _fill(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Fill a new classifier with the contents of a file."""
        self.statistics_ = ClassStatistics.from_file(header["statistics"], without("statistics.", tensors), self.device)
        statistics = self.statistics_
        self.n_features_in_ = statistics.dim
        self.privacy_ = self.privacy
        if self.privacy_ is not None:
            self.sums_ = Sums.from_packed(header["private"], without("sums.", tensors))
            if (self.sums_.classes, self.sums_.dim) != (statistics.classes, statistics.dim):
                raise ValueError("the noisy sums are of other classes than the statistics")
            self.n_features_in_ = int(header["private"]["features"])
            if header["private"].get("background") != checksum(self.privacy_.background):
                raise ValueError("its public directions are those of another version of amgc")
            if self.sums_.dim > self.privacy_.matrix(self.n_features_in_).shape[1]:
                raise ValueError("the noisy sums have more directions than rows")
        if header["features"]:
            self.feature_names_in_ = np.array(header["features"], dtype=object)
            if len(self.feature_names_in_) != self.n_features_in_:
                raise ValueError("not every feature has a name")
        self._latest = dict(zip(statistics.classes, header["latest"], strict=True))
        self._changed()
        if "certificate" not in header and "head.weight" not in tensors:  # a class was removed from the file
            return  # the classifier is solved when it is needed
        weight, bias, margins = (tensors[f"head.{name}"].to(self.device) for name in ("weight", "bias", "margins"))
        if weight.shape != statistics.mean.shape or not bias.shape == margins.shape == weight.shape[:1]:
            raise ValueError(f"the weights have shape {tuple(weight.shape)}")
        known = None
        if header.get("expected"):
            accuracy, (first, second), confusion = header["expected"]
            known = Expected(float(accuracy), (int(first), int(second)), float(confusion))
        solution = Solution(Head(weight, bias, **header["certificate"]), float(header["temperature"]), margins, known)
        solved = self._keep(solution)
        if typical := without(TYPICAL, tensors):
            arrays = {name: tensor.numpy() for name, tensor in typical.items()}
            found = Typicality.from_arrays(arrays, len(statistics), statistics.dim)
            solved.typicality[None if found.far is None else tuple(found.far.tolist())] = found

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
                background=self._background(),
                noisy=self.privacy_ is not None,
            )

    def _background(self) -> Background | None:
        """Return what is known of the features beforehand. Rows of a private classifier are others."""
        if self.background is None or self.privacy_ is not None:
            return None
        found = background(self.background)
        if found.dim != self.n_features_in_:
            raise ValueError(
                f"background={self.background!r} is of {found.dim} features, and the rows have {self.n_features_in_}; use "
                "background=None."
            )
        return found

    def _restart(self) -> ClassStatistics:
        found = super()._restart()
        self._background()  # raises an error if it does not fit
        return found

    def _shrinkage(self) -> tuple[float, float] | None:
        """Return the shrinkage; None for one that leave-one-out chooses.

        Statistics of a private classifier take the noise into account already. Leave-one-out, which knows the numbers of
        samples only, would shrink them once more.
        """
        found = read_shrinkage(self.shrinkage)
        return (0.0, 0.0) if found is None and self.privacy_ is not None else found

    def _solve_parameters(self) -> str:
        return repr((self.margin, self.balance, self.shrinkage, self.standardize, self.background))

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
