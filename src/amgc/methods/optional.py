"""Optional methods of a `Method`. The engine and the report call them if they exist.

To implement a protocol, define its method. No base class is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from amgc.methods.contract import Batch, Phase, Task, TaskImages

# ---- training --------------------------------------------------------------------------------------------------------


@runtime_checkable
class BeginsEpochs(Protocol):
    def begin_epoch(self) -> None:
        """Prepare for the next pass over the images."""


@runtime_checkable
class MakesViews(Protocol):
    def views(
        self, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images that the network gets for a batch of augmented images, such as rotations, and their labels.

        `images` is the whole batch, for any number of processes; if the network is not trained, its features (n, d). Classes
        that the method adds have labels from `len(task.seen)` on.
        """


@runtime_checkable
class RepeatsFeatures(Protocol):
    def repeats(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
        """Return how often an epoch uses each row of a frozen network's features (n, d), as (n,); None means once.

        All repetitions are shuffled together. `Batch.copy` numbers them, so that a loss can use each one differently, for
        example as a pseudo feature of another old class. The method is called again when a run is resumed, so what it
        prepares need not be saved.
        """


@runtime_checkable
class TrainsSomeParameters(Protocol):
    def trains(self, name: str) -> bool:
        """Return whether this parameter of the network is trained in a task that trains the network."""


@runtime_checkable
class ChoosesParameterGroups(Protocol):
    def parameter_groups(self, phase: Phase, network: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        """Return the groups of the optimiser: `params`, and if they differ from the network's, `lr` and `weight_decay`.

        `network` are the parameters of the network that are trained. The schedule multiplies all learning rates. `trainable`
        must return all other parameters.
        """


@runtime_checkable
class TrainsTwice(Protocol):
    """A second training stage, for example of the head alone or of a small projector. The network does not train in it.

    Batches are of augmented images if the phase says `augment`; otherwise features are computed once, and so are those of
    the networks given to `batch.through`.
    """

    def second_phase(self, task: Task) -> Phase | None:
        """Return the settings of the second stage, whose `head_lr` is used; None: this task has none."""

    def begin_second(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        """Prepare for the second stage. Called once, after the first stage; what changes here must be remembered."""

    def second_loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the loss of the second stage in named terms."""

    def second_trainable(self) -> list[torch.Tensor]:
        """Return the tensors that the second stage trains."""


@runtime_checkable
class CollectsFromImages(Protocol):
    def collect(self, task: Task, images: TaskImages, generator: torch.Generator) -> None:
        """Make a pass over the task's images after its training and before `end`, with gradients if needed.

        For methods that need the images themselves, for example for gradients or for an old network. The network is in
        evaluation mode.
        """


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@runtime_checkable
class DelaysCheckpoints(Protocol):
    def may_save(self, counts: Sequence[int]) -> bool:
        """Return whether a checkpoint may be written now; `counts` are the numbers of images of the new classes.

        Return False while a saved mean is the mean of a single image although the class has several: it would be the
        features of that image. It must become true no later than the end of the epoch.
        """


@runtime_checkable
class ReshapesNetwork(Protocol):
    def reshape_network(self, ended: int, begun: bool) -> None:
        """Give the network its structure after `ended` tasks, before a checkpoint is loaded.

        With `begun`, give it the structure after the beginning of the next task, which is then `self.task`.
        """


@runtime_checkable
class RestoresStructure(Protocol):
    def restore_structure(self) -> None:
        """After the last task, give the network its original layers again, with the same features in evaluation mode.

        Needed to make a model from a run of a method that changes the structure of the network.
        """


# ---- report ----------------------------------------------------------------------------------------------------------


@runtime_checkable
class ReportsGaussians(Protocol):
    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
        """Return the stored Gaussian of a class along axes (m, d): mean (m,), covariance (m, m), enlarged covariance.

        The enlarged covariance is None for a class whose covariance the method does not enlarge.
        """


@runtime_checkable
class TransformsFeatures(Protocol):
    def transformed(self, features: torch.Tensor) -> torch.Tensor:
        """Return features (n, d) in the space of the Gaussians that `gaussian` reports."""


@runtime_checkable
class ReportsMargins(Protocol):
    def margins(self, *, pairs: bool) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Return the margin m_k of each seen class (K,), 0 for classes without one.

        With `pairs`, also return the margins of class k against class j, (K, K). None if the method has no margins.
        """
