"""Observe a run after each task, for the report; `amgc.runs.observed` has the format.

The plane is the paper's Figure 1: test features of two classes in a plane that is chosen once and kept, with its d-dimensional
axes, in `observed/plane.safetensors`, so that movements of the features are visible. Everything is computed from the features
and predictions of the evaluation, and is bit-identical in a run that was interrupted. No training image and no row of features
is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amgc import tensor_files
from amgc.files import MISFITS, misfit
from amgc.methods.contract import Task
from amgc.methods.optional import ReportsGaussians, ReportsMargins, TransformsFeatures
from amgc.runs import observed as seen
from amgc.runs.observed import Observed, write_observed

if TYPE_CHECKING:
    from pathlib import Path

    from amgc.engine.session import Session

KIND = "plane"
POINTS = 100  # test images per class that are shown
PAIRED = 200  # maximum number of classes for which pairwise margins are stored
ROOM = 256_000_000  # bytes of features among which the two classes are chosen
CANDIDATES = 100  # classes among which they are chosen, at most


@dataclass(frozen=True)
class Plane:
    """Two orthonormal axes (2, d) through `origin` (d,), float64, and the classes that they were made for."""

    classes: tuple[int, int]
    axes: Tensor
    origin: Tensor

    def coordinates(self, rows: Tensor) -> Tensor:
        """Return the coordinates (n, 2) of rows (n, d)."""
        return (rows.double() - self.origin) @ self.axes.T


class Observer:
    """Collects test features while a task is evaluated, and writes what was observed. Only on the first process."""

    def __init__(self, session: Session, task: Task) -> None:
        self.session, self.task = session, task
        self.plane = read_plane(session.folder.plane, task.index)
        labels = self.candidates() if self.plane is None else self.plane.classes
        self.rows: dict[int, list[Tensor]] = {label: [] for label in labels if session.processes.is_first}

    def candidates(self) -> range:
        """Return the classes to choose from: task 1's, as many as fit into memory, but at least two."""
        first = self.session.stream.sizes[0]
        fitting = ROOM // (4 * POINTS * self.session.network.dim)
        return range(min(max(first, 2), max(fitting, 2), CANDIDATES, len(self.task.seen)))

    def see(self, features: Tensor, labels: Tensor) -> None:
        """Keep features (n, d) of the candidates. Batches always come in the same order."""
        for label in self.rows.keys() & set(labels.tolist()):
            missing = POINTS - sum(map(len, self.rows[label]))
            if missing > 0:
                self.rows[label].append(features[(labels == label).nonzero()[:missing, 0]])

    def write(self, confusion: Tensor) -> None:
        """Write what was observed; `confusion` (K, K) counts test images of class k that were classified as class j."""
        if not self.session.processes.is_first:
            return
        self.session.folder.plane.parent.mkdir(exist_ok=True)
        cells = confusion.nonzero()
        counts = confusion[cells[:, 0], cells[:, 1]]
        found = tuple(torch.cat([cells, counts[:, None]], 1).tolist())
        with torch.no_grad():
            write_observed(self.session.folder, Observed(self.task.index, found, self.margins(), self.figure()))

    def margins(self) -> seen.Margins | None:
        method = self.session.method
        found = method.margins(pairs=len(self.task.seen) <= PAIRED) if isinstance(method, ReportsMargins) else None
        if found is None or not finite(*found):
            return None
        own, pairs = found
        return seen.Margins(rounded(own), None if pairs is None else rounded(pairs))

    def figure(self) -> seen.Plane | None:
        """Return the two classes' points and Gaussians; choose the plane if there is none yet."""
        method = self.session.method
        rows = {label: torch.cat(parts) for label, parts in self.rows.items() if parts}
        if isinstance(method, TransformsFeatures):
            rows = {label: method.transformed(features) for label, features in rows.items()}
        if self.plane is None and len(rows) > 1:
            self.plane = choose_plane(rows)
            header = {"task": self.task.index, "classes": list(self.plane.classes)}
            parts = {"axes": self.plane.axes, "origin": self.plane.origin}
            tensor_files.write(self.session.folder.plane, KIND, header, parts)
        if self.plane is None:
            return None
        points = [self.plane.coordinates(rows[label]) for label in self.plane.classes]
        if not finite(*points):
            return None
        one, two = (self.gaussian(self.plane, label) for label in self.plane.classes)
        return seen.Plane(self.plane.classes, (rounded(points[0]), rounded(points[1])), (one, two))

    def gaussian(self, plane: Plane, label: int) -> seen.Gaussian | None:
        """Return the class as the method remembers it."""
        method = self.session.method
        found = method.gaussian(label, plane.axes) if isinstance(method, ReportsGaussians) else None
        if found is None or not finite(*found):
            return None
        mean, covariance = (part.double().cpu() for part in found[:2])
        enlarged = None if found[2] is None else rounded(found[2].double().cpu())
        return seen.Gaussian(rounded(mean - plane.axes @ plane.origin), rounded(covariance), enlarged)


def finite(*parts: Tensor | None) -> bool:
    return all(part is None or bool(torch.isfinite(part).all()) for part in parts)


def read_plane(path: Path, task: int) -> Plane | None:
    """Return the plane that an earlier task chose. One that this task chose before it was interrupted is chosen again."""
    if not path.exists():
        return None
    header, tensors = tensor_files.read(path, KIND)
    try:
        if header["task"] >= task:
            return None
        one, two = header["classes"]
        return Plane((one, two), tensors["axes"], tensors["origin"])
    except MISFITS as error:
        raise misfit(path, error) from error


def choose_plane(rows: dict[int, Tensor]) -> Plane:
    """Return a plane through the means of the two nearest classes; its second axis is along their largest orthogonal variance.

    rows : features (n, d) of each class.
    """
    one, two = nearest(rows)
    pair = [rows[label].double() for label in (one, two)]
    means = [part.mean(0) for part in pair]
    first = unit(means[1] - means[0])
    within = torch.cat([part - mean for part, mean in zip(pair, means, strict=True)])
    within = within - (within @ first)[:, None] * first
    strength, mixtures = torch.linalg.eigh(within @ within.T)  # (n, n), because images are few
    second = mixtures[:, -1] @ within if float(strength[-1]) > 0 else torch.zeros_like(first)
    if not float(second.norm()) > 0:  # single images: any orthogonal direction, if there is one
        second = torch.zeros_like(first)
        second[first.abs().argmin()] = float(len(first) > 1)
    second = second - (second @ first) * first
    second = second / second.norm().clamp_min(torch.finfo(torch.float64).tiny)
    second = second * (-1) ** int(second[second.abs().argmax()] < 0)  # the sign of an eigenvector is arbitrary
    return Plane((one, two), torch.stack([first, second]), (means[0] + means[1]) / 2)


def nearest(rows: dict[int, Tensor]) -> tuple[int, int]:
    """Return the two classes whose means are nearest, in units of their spread along the line between them.

    That is the pair with the least |δ|⁴ / var(δᵀx).

    var(δᵀx) is the mean of the two classes' variances of δᵀx, δ the difference of their means.
    """
    labels = sorted(rows)
    means = torch.stack([rows[label].double().mean(0) for label in labels])
    squared = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist").square()
    spread = torch.zeros_like(squared)  # of class k along the difference to class j, at [k, j]
    for k, label in enumerate(labels):
        along = (rows[label].double() - means[k]) @ means.T
        spread[k] = (along - along[:, k : k + 1]).square().mean(0)
    spread = (spread + spread.T) / 2
    apart = torch.where(squared > 0, squared.square() / spread, 0.0).tolist()
    pairs = [(i, j) for i in range(len(labels)) for j in range(i + 1, len(labels))]
    one, two = min(pairs, key=lambda pair: float(apart[pair[0]][pair[1]]))
    return labels[one], labels[two]


def unit(vector: Tensor) -> Tensor:
    """Return the vector scaled to length 1; for a zero vector, the first axis."""
    if not float(vector.norm()) > 0:
        vector = torch.zeros_like(vector)
        vector[0] = 1
    length: Tensor = vector.norm()
    return vector / length


def rounded(values: Tensor | list[Any] | float) -> Any:
    """Return nested lists of numbers with six digits; more would only make the files larger."""
    if isinstance(values, Tensor):
        values = values.tolist()
    return [rounded(part) for part in values] if isinstance(values, list) else float(f"{values:.6g}")
