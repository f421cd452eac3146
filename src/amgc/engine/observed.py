"""What a run writes down after each task for people to look at: `observed/task-N.json`.

    {"version": 1, "task": index from 0,
     "confusion": [[true, predicted, count], …],          cells that are not 0; classes in order of arrival
     "margins": null | {"own": [m_k, …], "pairs": [[…], …] | null},                  see `Method.margins`
     "plane": null | {"classes": [a, b], "points": [[[x, y], …], [[x, y], …]], "gaussians": [g, g]}}
                     g: null | {"mean": [x, y], "covariance": 2 × 2, "enlarged": 2 × 2 | null}, see `Method.gaussian`

The plane is the paper's Figure 1: two classes' test features in a plane that is laid once and kept, with its d-dimensional
axes, in `observed/plane.safetensors`, so that one sees the features move. All of it comes from the features and predictions
of the evaluation, and is the same to the bit in a run that was interrupted. No training image and no row of features is in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amgc import files
from amgc.methods.contract import Task

if TYPE_CHECKING:
    from pathlib import Path

    from amgc.engine.session import Session

FOLDER, PLANE, KIND = "observed", "plane.safetensors", "plane"
VERSION = 1  # of task-N.json
POINTS = 100  # test images of a class that are shown
PAIRED = 200  # classes beyond which pairwise margins, a number for each two, are left out
ROOM = 256_000_000  # bytes of features among which the two classes are looked for, once
CANDIDATES = 100  # classes among which they are, at most


@dataclass(frozen=True)
class Plane:
    """Two orthonormal axes (2, d) through `origin` (d,), float64, and the classes that they were made for."""

    classes: tuple[int, int]
    axes: Tensor
    origin: Tensor

    def coordinates(self, rows: Tensor) -> Tensor:
        """(n, 2) of rows (n, d)."""
        return (rows.double() - self.origin) @ self.axes.T


class Observer:
    """Looks on while a task is evaluated, on the first process, and writes down what it saw."""

    def __init__(self, session: Session, task: Task) -> None:
        self.session, self.task = session, task
        self.folder = session.folder / FOLDER
        self.plane = read_plane(self.folder / PLANE, task.index)
        labels = self.candidates() if self.plane is None else self.plane.classes
        self.rows: dict[int, list[Tensor]] = {label: [] for label in labels if session.processes.is_first}

    def candidates(self) -> range:
        """Task 1's classes, as many as there is room for; if it has one, the first two."""
        first = self.session.stream.sizes[0]
        fitting = ROOM // (4 * POINTS * self.session.network.dim)
        return range(min(max(first, 2), max(fitting, 2), CANDIDATES, len(self.task.seen)))

    def see(self, features: Tensor, labels: Tensor) -> None:
        """A batch of test features (n, d) and labels (n,), as they are evaluated: always in the same order."""
        for label in self.rows.keys() & set(labels.tolist()):
            missing = POINTS - sum(map(len, self.rows[label]))
            if missing > 0:
                self.rows[label].append(features[(labels == label).nonzero()[:missing, 0]])

    def write(self, confusion: Tensor) -> None:
        """`confusion` (K, K): how many test images of class k were taken for class j."""
        if not self.session.processes.is_first:
            return
        self.folder.mkdir(exist_ok=True)
        cells = confusion.nonzero()
        counts = confusion[cells[:, 0], cells[:, 1]]
        content = {
            "version": VERSION,
            "task": self.task.index,
            "confusion": torch.cat([cells, counts[:, None]], 1).tolist(),
            "margins": self.margins(),
            "plane": self.picture(),
        }
        with files.atomic(self.folder / f"task-{self.task.index + 1}.json") as temporary:
            temporary.write_text(json.dumps(content, allow_nan=False))

    def margins(self) -> dict[str, Any] | None:
        with torch.no_grad():
            found = self.session.method.margins(pairs=len(self.task.seen) <= PAIRED)
        if found is None or not all(bool(torch.isfinite(part).all()) for part in found if part is not None):
            return None
        own, pairs = found
        return {"own": rounded(own), "pairs": None if pairs is None else rounded(pairs)}

    def picture(self) -> dict[str, Any] | None:
        """The two classes' points and Gaussians; the plane is laid if there is none."""
        method = self.session.method
        with torch.no_grad():
            rows = {label: method.compared(torch.cat(parts)) for label, parts in self.rows.items() if parts}
            if self.plane is None and len(rows) > 1:
                self.plane = lay_plane(rows)
                about = {"task": self.task.index, "classes": list(self.plane.classes)}
                parts = {"axes": self.plane.axes, "origin": self.plane.origin}
                files.write(self.folder / PLANE, KIND, about, parts)
            if self.plane is None:
                return None
            points = [self.plane.coordinates(rows[label]) for label in self.plane.classes]
            gaussians = [self.gaussian(self.plane, label) for label in self.plane.classes]
        if not all(bool(torch.isfinite(part).all()) for part in points):
            return None
        return {"classes": list(self.plane.classes), "points": [rounded(part) for part in points], "gaussians": gaussians}

    def gaussian(self, plane: Plane, label: int) -> dict[str, Any] | None:
        """As the method remembers the class."""
        found = self.session.method.gaussian(label, plane.axes)
        if found is None:
            return None
        mean, covariance, enlarged = (None if part is None else part.double().cpu() for part in found)
        if any(part is not None and not bool(torch.isfinite(part).all()) for part in (mean, covariance, enlarged)):
            return None
        assert mean is not None and covariance is not None
        return {
            "mean": rounded(mean - plane.axes @ plane.origin),
            "covariance": rounded(covariance),
            "enlarged": None if enlarged is None else rounded(enlarged),
        }


def read_plane(path: Path, task: int) -> Plane | None:
    """The plane that an earlier task laid; one that this task had laid before it was interrupted will be laid again."""
    if not path.exists():
        return None
    about, tensors = files.read(path, KIND)
    try:
        if about["task"] >= task:
            return None
        one, two = about["classes"]
        return Plane((one, two), tensors["axes"], tensors["origin"])
    except files.MISFITS as error:
        raise files.misfit(path, error) from error


def lay_plane(rows: dict[int, Tensor]) -> Plane:
    """Through the means of the two classes that are nearest; the second axis along their largest spread across that.

    rows: of each class (n, d).
    """
    one, two = nearest(rows)
    pair = [rows[label].double() for label in (one, two)]
    means = [part.mean(0) for part in pair]
    first = unit(means[1] - means[0])
    within = torch.cat([part - mean for part, mean in zip(pair, means, strict=True)])
    within = within - (within @ first)[:, None] * first
    strength, mixtures = torch.linalg.eigh(within @ within.T)  # (n, n): there are fewer images than features, or not many
    second = mixtures[:, -1] @ within if float(strength[-1]) > 0 else torch.zeros_like(first)
    if not float(second.norm()) > 0:  # single images: any direction across will do, if there is one
        second = torch.zeros_like(first)
        second[first.abs().argmin()] = float(len(first) > 1)
    second = second - (second @ first) * first
    second = second / second.norm().clamp_min(torch.finfo(torch.float64).tiny)
    second = second * (-1) ** int(second[second.abs().argmax()] < 0)  # an eigenvector has no sign of its own
    return Plane((one, two), torch.stack([first, second]), (means[0] + means[1]) / 2)


def nearest(rows: dict[int, Tensor]) -> tuple[int, int]:
    """The two classes whose means are nearest in units of their spread along the line between them: least |δ|⁴ / var(δᵀx).

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
    """Of length 1; of a zero vector, the first axis."""
    if not float(vector.norm()) > 0:
        vector = torch.zeros_like(vector)
        vector[0] = 1
    length: Tensor = vector.norm()
    return vector / length


def rounded(values: Tensor | list[Any] | float) -> Any:
    """Nested lists of numbers with six digits: more would make the files large and show nothing."""
    if isinstance(values, Tensor):
        values = values.tolist()
    return [rounded(part) for part in values] if isinstance(values, list) else float(f"{values:.6g}")
