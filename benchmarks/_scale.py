"""Figures of benchmarks/scale.py: the points by number of classes, exponents fitted to them, and estimates for ImageNet."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from _kept import RESULTS, kept

FORMS = ("shared", "lowrank", "diagonal", "full")
DIMS = (512, 1280)
SHARD = 10_000  # images of a shard in the estimates
IMAGENETS = {"ImageNet-1k": (1_281_167, 1_000), "ImageNet-21k": (14_197_122, 21_841)}  # images, classes
MACHINES = (1, 10, 100)
FITTED = 3  # the largest numbers of classes that an exponent is fitted to, if there are so many


@dataclass(frozen=True)
class Point:
    """The cost for a number of classes; times in seconds, as printed and as numbers."""

    form: str
    dim: int
    classes: int
    iterations: int  # of the solve; the closed form has none
    fields: tuple[str, ...]  # update, solve, merge, peak, disk, and where it was measured

    def seconds(self, name: str) -> float:
        text = self.fields[("update", "solve", "merge").index(name)]
        value, unit = text.split()
        return float(value) / (1000 if unit.startswith("ms") else 1)


def points(form: str, dim: int) -> list[Point]:
    """Return the points of a form in a number of dimensions, by number of classes."""
    if not (RESULTS / "scale_classes.txt").is_file():
        return []
    results = kept("scale_classes")
    found = []
    for count in re.findall(rf"^  {form} d={dim} K=(\d+)  ", results.text, flags=re.M):
        update, solve, iterations, merge, *rest = results.fields(f"{form} d={dim} K={count}")
        named = [re.sub(r"^(update|solve|merge|peak|disk) ", "", part) for part in (update, solve, merge, *rest)]
        named[2] = named[2].removesuffix("/class")
        found.append(Point(form, dim, int(count), int(iterations.split()[0]), (*named[:-1], named[-1].strip("()"))))
    return sorted(found, key=lambda point: point.classes)


def exponent(given: list[Point], name: str) -> float | None:
    """Return e of the time ~ K^e that fits the largest K best; None with fewer than two points."""
    last = given[-FITTED:]
    if len(last) < 2:
        return None
    x, y = ([math.log(value) for value in values] for values in zip(*((p.classes, p.seconds(name)) for p in last), strict=True))
    return float(np.polyfit(x, y, 1)[0])


def exponents() -> list[tuple[str, int, str, list[int], float, float]]:
    """Return form, dimensions, algorithm of the solve, the numbers of classes, and the exponents of update and solve.

    The iteration and the closed form are different algorithms, so each has its own.
    """
    found = []
    for form in FORMS:
        for dim in DIMS:
            for kind in ("iteration", "closed form"):
                given = [point for point in points(form, dim) if (point.iterations > 0) == (kind == "iteration")][-FITTED:]
                update, solve = exponent(given, "update"), exponent(given, "solve")
                if update is not None and solve is not None:
                    found.append((form, dim, kind, [point.classes for point in given], update, solve))
    return found


def expected_classes(classes: int, images: int) -> float:
    """Return the number of classes that a shard of random images is expected to have.

    >>> round(expected_classes(1_000, 10_000)), round(expected_classes(21_841, 10_000))
    (1000, 8024)
    """
    return classes * (1 - (1 - 1 / classes) ** images)


@dataclass(frozen=True)
class Estimate:
    """What a data set takes: the terms in seconds, and the hours for each number of machines."""

    name: str
    images: int
    classes: int
    present: int  # classes of a shard
    encode: float  # on one machine
    merge: float  # on the driver
    solve: float

    def hours(self, machines: int) -> float:
        """Return N / (r m) + s, or the time of the driver if that is longer, plus s."""
        return (max(self.encode / machines, self.merge) + self.solve) / 3600


def estimates(form: str = "shared", dim: int = 1280) -> list[Estimate]:
    """Return the estimates for ImageNet; none unless all the points that they need were measured."""
    given = {point.classes: point for point in points(form, dim)}
    e = exponent(list(given.values()), "solve")
    if not (RESULTS / "scale_workers.txt").is_file() or 1000 not in given or 10000 not in given or e is None:
        return []
    rate, merge = float(kept("scale_workers").numbers("2 workers")[0]), given[1000].seconds("merge")
    found = []
    for name, (images, classes) in IMAGENETS.items():
        present = round(expected_classes(classes, SHARD))
        solve = given[1000].seconds("solve") if classes == 1000 else given[10000].seconds("solve") * (classes / 10000) ** e
        found.append(Estimate(name, images, classes, present, images / rate, images / SHARD * present * merge, solve))
    return found
