"""A solved linear classifier as numpy arrays. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Self

ROWS = 4096  # number of rows scored at a time


@dataclass
class Linear:
    """A linear classifier: scores = (X - centre) @ coef.T + intercept. Probabilities are the softmax of scores / temperature.

    coef (K, d), intercept (K,). centre (d,) is the average of the class means; it is subtracted because features may be far
    from zero. classes (K,) : the labels, sorted. rows (K,) : the row of each class in the class statistics.
    """

    coef: NDArray[Any]
    intercept: NDArray[Any]
    centre: NDArray[np.float64]
    temperature: float
    classes: NDArray[Any]
    rows: NDArray[np.intp]

    @classmethod
    def of(
        cls,
        weight: NDArray[Any],
        bias: NDArray[Any],
        mean: NDArray[np.float64],
        temperature: float,
        labels: Sequence[Any],
        **more: Any,
    ) -> Self:
        """Return the classifier with weights (K, d), biases (K,), class means (K, d) and labels in any order of the classes.

        more : fields of a derived class.
        """
        rows = np.array(sorted(range(len(labels)), key=labels.__getitem__), dtype=np.intp)
        centre = mean.mean(0)
        intercept = bias + weight @ centre.astype(weight.dtype)
        classes = np.array([labels[row] for row in rows])
        return cls(weight[rows], intercept[rows], centre, temperature, classes, rows, **more)

    def scores(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return scores (n, K)."""
        scores = np.empty((len(X), len(self.coef)))
        for start in range(0, len(X), ROWS):  # the difference is float64: too large for all rows at once
            rows = slice(start, start + ROWS)
            scores[rows] = (X[rows] - self.centre) @ self.coef.T + self.intercept
        return scores

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the calibrated probabilities of scores (n, K)."""
        return softmax(scores / self.temperature)


def softmax(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return exp(scores) (n, K), divided by the sum of each row."""
    shares: NDArray[np.float64] = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares
