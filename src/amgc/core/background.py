"""What is known of a network's features before any image of a model: their means and covariances on public images.

`benchmarks/background.py` computes them once, and the package contains the files. They depend on the network and on the public
images only. So they are a constant of every model with that network.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from amgc import tensor_files
from amgc.core import symmetric

KIND = "background"
FOLDER = Path(__file__).with_name("backgrounds")
# Weights of the level beside the covariance within and the covariance between the public classes.
WITHIN, BETWEEN = 1.0, 1.0


@dataclass(frozen=True, eq=False)
class Background:
    """Features of public images: mean (d,), covariance within (d, d) and between (d, d) their classes, float64.

    about : the images. network : the checksum of the network's weights (`amgc.features.weights.checksum`).
    """

    mean: Tensor
    within: Tensor
    between: Tensor
    about: str
    network: str

    @property
    def dim(self) -> int:
        return len(self.mean)

    def ridge(self, share: float, level: Tensor) -> Tensor:
        """Return what to add to a covariance of few samples (d, d), with an average variance of 1.

        With a covariance S within classes and class means that vary by B, LDA with means that are drawn towards their average
        by the posterior of n samples is LDA with the covariance S + S B⁻¹ S / n.

        share : 1 / n. level (d,) : what would be added to the variances without a background; S is mixed with it.
        """
        unit = self.within.diagonal().mean()
        within = mixed(self.within / unit, level, WITHIN)
        between = mixed(self.between / unit, torch.ones_like(level), BETWEEN)
        found = within + share * within @ torch.linalg.solve(between, within)
        symmetric_part: Tensor = (found + found.T) / 2
        return symmetric_part / symmetric_part.diagonal().mean()

    def save(self, path: Path) -> None:
        """Write a file in half precision: standard deviations, correlations, and the leading directions between classes."""
        deviation = self.within.diagonal().sqrt()
        values, vectors = torch.linalg.eigh(self.between)
        kept = values > 1e-4 * values[-1]
        length = values[kept].sqrt()
        tensors = {
            "mean": self.mean.float(),
            "deviation": deviation.float(),
            "correlation": symmetric.packed(self.within / deviation / deviation[:, None]).half(),
            "directions": vectors[:, kept].half(),
            "length": length.float(),
        }
        tensor_files.write(path, KIND, {"about": self.about, "network": self.network}, tensors)


def mixed(matrix: Tensor, level: Tensor, weight: float) -> Tensor:
    """Return a covariance mixed with variances of the proportions `level` (d,), with the same average variance."""
    extra = weight * matrix.diagonal().mean() * level / level.mean()
    return (matrix + torch.diag(extra)) / (1 + weight)


def names() -> list[str]:
    """Return the names of the networks whose background is known."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def checksum(name: str | None) -> str | None:
    """Return the SHA-256 of a background's file; None for none. That of tensors computed from it would differ between CPUs."""
    return None if name is None else hashlib.sha256((FOLDER / f"{name}.safetensors").read_bytes()).hexdigest()


@cache
def background(name: str) -> Background:
    """Return the background of a network's default features.

    >>> known = background("lite0")
    >>> known.dim, known.within.shape
    (664, torch.Size([664, 664]))
    """
    if name not in names():
        raise ValueError(f"there is no background of {name!r}; there are those of {', '.join(names())}.")
    header, tensors = tensor_files.read(FOLDER / f"{name}.safetensors", KIND)
    mean, deviation = tensors["mean"].double(), tensors["deviation"].double()
    correlation = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    symmetric.unpack_into(correlation, tensors["correlation"].double())
    directions = tensors["directions"].double() * tensors["length"].double()
    within = symmetric.mirrored(correlation) * torch.outer(deviation, deviation)
    between = directions @ directions.T
    return Background(mean, within, (between + between.T) / 2, str(header["about"]), str(header["network"]))
