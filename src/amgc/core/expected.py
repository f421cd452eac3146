"""The accuracy to expect for new samples, from the class statistics alone.

It is the mean probability that the classifier gives to its own answers, over draws that stand for left-out samples of a class
(`amgc.core.within`). The share of correct answers among the draws would be too high, because draws overlap less than real
classes. The temperature of the probabilities takes that into account (`amgc.core.calibration`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from amgc.core.calibration import relative_scale
from amgc.core.inputs import Label
from amgc.core.solver import Head
from amgc.core.within import Within

# The expected accuracy was compared with that of held-out training images of flowers and leaves (lite0, five random choices of
# the samples). The largest errors were 0.31 with 5 samples a class, 0.19 with 10, 0.08 with 20 and 0.06 with 50.
ENOUGH, MANY = 10, 20  # samples of each class from which an accuracy can be told, roughly and better
ROUGH, BETTER = 0.2, 0.08  # the margins of these


class Expected(NamedTuple):
    """Expected accuracy, classes weighted equally, and the two classes (rows of the statistics) that are confused most.

    confusion : the mean probability of the one class for samples of the other.
    """

    accuracy: float
    pair: tuple[int, int]
    confusion: float


class ExpectedAccuracy(NamedTuple):
    """What `AMGCClassifier.expected_accuracy` returns.

    accuracy : expected for new samples, classes weighted equally. margin : how far off it may be.
    confused : the two classes that are confused most. confusion : the mean probability of the one for samples of the other.
    """

    accuracy: float
    margin: float
    confused: tuple[Label, Label]
    confusion: float


def expected(within: Within, head: Head, temperature: float) -> Expected | None:
    """Return what to expect of the head with this temperature; None with one class, or where a class has one sample only."""
    classes = len(within.count)
    if classes < 2 or int(within.count.min()) < 2:
        return None
    own = temperature / relative_scale(within, head)  # the draws' scores are half of LDA's
    sure, mixed, rows = [], [], []
    for row, left in within.draws:
        shares = torch.softmax(left.scores(within.keep) / own, 1)
        sure.append(shares.max(1).values.mean())
        mixed.append(shares.mean(0))
        rows.append(row)
    table = torch.zeros(classes, classes, dtype=torch.float64)
    table[rows] = torch.stack(mixed)
    seen = torch.zeros(classes, dtype=torch.float64)
    seen[rows] = 1
    pairs = (table + table.T) / (seen[:, None] + seen).clamp_min(1)  # not every class is drawn if there are many
    first, second = divmod(int(pairs.triu(1).argmax()), classes)
    pair = sorted((int(within.order[first]), int(within.order[second])))
    return Expected(float(torch.stack(sure).mean()), (pair[0], pair[1]), float(pairs[first, second]))
