"""Estimate the accuracy on new samples from the class statistics alone.

The estimate is the mean probability that the classifier gives to its own answers, over random draws that represent left-out
samples of a class (`amgc.core.within`). The share of correct answers among the draws would be too high, because draws overlap
less than real classes. The temperature of the probabilities accounts for this (`amgc.core.calibration`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from amgc.core.calibration import relative_scale
from amgc.core.inputs import Label
from amgc.core.solver import Head
from amgc.core.within import Within

ENOUGH = 10  # samples per class that are needed; with 5, errors on held-out training photos were up to 0.31
# The margin has two parts: how far the share of correct answers among as many samples as were learned may be off by chance, and
# how far off the draws are because classes are not Gaussian. With these constants it held for 802 of 804 random choices of
# training samples (flowers and leaves with lite0, CIFAR-100 with a ResNet-18, digits; 2 to 8 classes of 10 to 50 samples). With
# two standard errors, only for 91 % of those with 20 flowers a class.
DEVIATIONS, MODEL = 3.0, 0.06


class Expected(NamedTuple):
    """Expected accuracy, with equal weight for each class, and the two classes (rows of the statistics) confused most often.

    confusion : the mean probability of one of the two classes for samples of the other.
    """

    accuracy: float
    pair: tuple[int, int]
    confusion: float


class ExpectedAccuracy(NamedTuple):
    """The result of `AMGCClassifier.expected_accuracy`.

    accuracy : the expected accuracy on new samples, with equal weight for each class.
    margin : how far it may be from the real accuracy, in 19 of 20 cases or more.
    confused : the two classes that are confused most often.
    confusion : the mean probability of one of the two classes for samples of the other.
    """

    accuracy: float
    margin: float
    confused: tuple[Label, Label]
    confusion: float


def margin(accuracy: float, counts: Tensor) -> float:
    """Return how far an expected accuracy may be off, with this number of samples of each class (K,).

    The binomial standard error as by Agresti and Coull, with two correct and two wrong answers more, so it is not 0 for an
    accuracy of 1. Classes count equally, so the smallest ones matter most.
    """
    samples = len(counts) ** 2 / float((1 / counts.double()).sum())
    share = (samples * accuracy + 2) / (samples + 4)
    return MODEL + DEVIATIONS * math.sqrt(share * (1 - share) / samples)


def expected(within: Within, head: Head, temperature: float) -> Expected | None:
    """Return the estimate for a head with this temperature; None if there is one class, or a class with one sample only."""
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
    # Not every class is drawn if there are many, so a pair has one or two mean probabilities.
    drawn = torch.tensor(rows)
    pairs = torch.stack(mixed)
    pairs[:, drawn] = (pairs[:, drawn] + pairs[:, drawn].T) / 2
    pairs[torch.arange(len(rows)), drawn] = 0
    place, second = divmod(int(pairs.argmax()), classes)
    first = rows[place]
    pair = sorted((int(within.order[first]), int(within.order[second])))
    return Expected(float(torch.stack(sure).mean()), (pair[0], pair[1]), float(pairs[place, second]))
