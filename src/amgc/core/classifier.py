"""A solved linear classifier with what it was solved from, and as the contents of a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from amgc.core.expected import Expected
from amgc.core.linear import Linear
from amgc.core.privacy import Sums
from amgc.core.regularised import Solution
from amgc.core.solver import Head
from amgc.core.statistics import ClassStatistics
from amgc.core.typical import TYPICAL, Typicality
from amgc.tensor_files import prefixed, without

if TYPE_CHECKING:
    from amgc.core.incremental import IncrementalClassifier


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
    solution = Solution(Head(weight, bias, **header["certificate"]), float(header["temperature"]), margins, known)
    solved = classifier._keep(solution)
    if typical := without(TYPICAL, tensors):
        arrays = {name: tensor.numpy() for name, tensor in typical.items()}
        found = Typicality.from_arrays(arrays, len(statistics), statistics.dim)
        solved.typicality[None if found.far is None else tuple(found.far.tolist())] = found
