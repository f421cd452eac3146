"""SDC (Yu et al., CVPR 2020): the mean of an old class moves as the new images near it do."""

from __future__ import annotations

from dataclasses import dataclass

from amgc.methods.compensated import SOURCES, Compensated, CompensatedHyper
from amgc.methods.contract import Features, Task, TaskImages
from amgc.methods.lazy import drift, torch
from amgc.methods.registry import method
from amgc.options import option


@dataclass(frozen=True)
class SDCHyper(CompensatedHyper):
    """Hyper-parameters of SDC."""

    sigma: float = option(0.3, "σ of the Gaussian weights of new images around an old mean", "SDC; ADC's lwf.json", above=0)


@method("sdc", SDCHyper(), sources=SOURCES)
class SDC(Compensated[SDCHyper]):
    """SDC: the nearest class mean; old means move by the drift of the new images near them, measured after each task.

    Features have unit length, as in the official code. The network is trained like that of ADC and LDC, by LwF, instead of
    with triplets.
    """

    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        if self.old is not None:
            old, new = (unit(images.features(network).double()) for network in (self.old, self.network))
            self.means = self.means + drift.displacement(self.means, old, new, self.hyper.sigma)

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        super().end(task, ((unit(rows), labels) for rows, labels in features), generator)


def unit(rows: torch.Tensor) -> torch.Tensor:
    """Return rows (n, d) scaled to length 1."""
    return torch.nn.functional.normalize(rows, dim=1)
