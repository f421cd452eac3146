"""A solved linear classifier as numpy arrays, with its classes in sorted order, and as the contents of a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from amgc.core.expected import Expected
from amgc.core.privacy import Sums
from amgc.core.regularised import Solution
from amgc.core.solver import Head
from amgc.core.statistics import ClassStatistics
from amgc.core.typicality import Typicality
from amgc.tensor_files import prefixed, without

if TYPE_CHECKING:
    from amgc.core.incremental import IncrementalClassifier

ROWS = 4096  # number of rows scored at a time


@dataclass
class Classifier:
    """A linear classifier: scores = (X - centre) @ coef.T + intercept. Probabilities are the softmax of scores / temperature.

    coef (K, d), intercept and margins (K,). centre (d,) is the average of the class means; it is subtracted because features
    may be far from zero. `solution` has the classes in order of arrival. `parameters` describes the parameters of the solve.
    """

    solution: Solution
    coef: np.ndarray
    intercept: np.ndarray
    centre: np.ndarray
    margins: np.ndarray
    temperature: float
    parameters: str
    classes: np.ndarray  # (K,) the labels, so that answers fit the scores while another thread learns
    typicality: dict[tuple[int, ...] | None, Typicality] = field(default_factory=dict)  # computed on first use

    @classmethod
    def of(cls, solution: Solution, statistics: ClassStatistics, classes: np.ndarray, parameters: str) -> Classifier:
        """Return the classifier of a solution of the statistics, in the order of `classes`."""
        rows = [statistics.index(label) for label in classes.tolist()]
        head, centre = solution.head, statistics.mean.mean(0)
        parts = head.weight, head.bias + head.weight @ centre.to(head.weight), solution.margins
        coef, intercept, margins = (part.cpu().numpy()[rows] for part in parts)
        return cls(solution, coef, intercept, centre.cpu().numpy(), margins, solution.temperature, parameters, classes)

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Return scores (n, K)."""
        scores = np.empty((len(X), len(self.coef)))
        for start in range(0, len(X), ROWS):  # the difference is float64: too large for all rows at once
            rows = slice(start, start + ROWS)
            scores[rows] = (X[rows] - self.centre) @ self.coef.T + self.intercept
        return scores


def packed(classifier: IncrementalClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the contents of a file: a JSON header and named tensors."""
    solved, statistics, privacy = classifier._solved(), classifier.statistics_, classifier.privacy_
    head = solved.solution.head
    header = {
        "parameters": classifier.parameters() | {"device": str(classifier.device), "centre": privacy and privacy.centre},
        "statistics": statistics.header(),
        "latest": [classifier._latest[label] for label in statistics.classes],
        "features": list(map(str, getattr(classifier, "feature_names_in_", []))) or None,
        "temperature": solved.temperature,
        "expected": solved.solution.expected,
        "certificate": {name: value for name, value in vars(head).items() if name not in ("weight", "bias")},
    }
    tensors = prefixed("statistics.", statistics.tensors())
    if privacy is not None:
        private, sums = classifier.sums_.packed(privacy)
        header["private"] = private | {"features": classifier.n_features_in_}
        tensors |= prefixed("sums.", sums)
    return header, tensors | {"head.weight": head.weight, "head.bias": head.bias, "head.margins": solved.solution.margins}


def fill(classifier: IncrementalClassifier, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Fill a new classifier with what was read. Raises any exception if header and tensors do not fit together."""
    classifier.statistics_ = ClassStatistics.from_file(header["statistics"], without("statistics.", tensors), classifier.device)
    statistics = classifier.statistics_
    classifier.n_features_in_ = statistics.dim
    classifier.privacy_ = classifier.privacy
    if classifier.privacy_ is not None:
        classifier.sums_ = Sums.from_packed(header["private"], without("sums.", tensors))
        if (classifier.sums_.classes, classifier.sums_.dim) != (statistics.classes, statistics.dim):
            raise ValueError("the noisy sums are of other classes than the statistics")
        classifier.n_features_in_ = int(header["private"]["features"])
    if header["features"]:
        classifier.feature_names_in_ = np.array(header["features"], dtype=object)
        if len(classifier.feature_names_in_) != classifier.n_features_in_:
            raise ValueError("not every feature has a name")
    classifier._latest = dict(zip(statistics.classes, header["latest"], strict=True))
    classifier._changed()
    if "certificate" not in header and "head.weight" not in tensors:  # a class was removed from the file
        return  # the classifier is solved when it is needed
    weight, bias, margins = (tensors[f"head.{name}"].to(classifier.device) for name in ("weight", "bias", "margins"))
    if weight.shape != statistics.mean.shape or not bias.shape == margins.shape == weight.shape[:1]:
        raise ValueError(f"the weights have shape {tuple(weight.shape)}")
    known = None
    if header.get("expected"):
        accuracy, (first, second), confusion = header["expected"]
        known = Expected(float(accuracy), (int(first), int(second)), float(confusion))
    classifier._keep(Solution(Head(weight, bias, **header["certificate"]), float(header["temperature"]), margins, known))
