"""A solved linear classifier as numpy arrays, with its classes in sorted order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from amgc.core.regularised import Solution
from amgc.core.statistics import ClassStatistics
from amgc.core.typicality import Typicality

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
