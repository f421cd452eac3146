"""What the report shows of methods that enlarge the variances of old classes: Gaussians and margins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from amgc.methods.contract import Hyper, Method
from amgc.methods.lazy import gaussian, losses, torch

if TYPE_CHECKING:
    from amgc.core.statistics import ClassStatistics

H = TypeVar("H", bound=Hyper)


class Enlarged(Method[H]):
    """A method that stores class statistics and enlarges variances by VE, Eq. (ve)."""

    statistics: ClassStatistics

    @property
    def margin(self) -> float:
        """λ of VE."""
        raise NotImplementedError

    @property
    def enlarged_classes(self) -> range:
        """The classes whose variances are enlarged."""
        return self.task.old

    def gaussian(self, label: int, axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        mean, spread = gaussian.along(self.statistics, label, axes)
        if not self.margin or label not in self.enlarged_classes:
            return mean, spread, None
        return mean, spread, gaussian.along(self.statistics, label, axes, margin=self.margin)[1]

    def margins(self, *, pairs: bool) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Return m_k of Eq. (margin) for all seen classes, and m_k + β_jk. None if the margin is 0."""
        return self.margins_among(self.head.weight, pairs) if self.margin else None

    def margins_among(self, weight: torch.Tensor, pairs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the margins of the enlarged classes against the first C classes, whose weights (C, d) are given."""
        own = weight.new_zeros(len(self.head))
        against = weight.new_zeros(len(self.head), len(self.head)) if pairs else None
        if self.enlarged_classes:
            labels = torch.tensor(self.enlarged_classes, device=self.device)
            variances = self.variances(self.enlarged_classes).to(weight)
            own[labels] = losses.margins(weight, variances, self.margin, labels)
            if against is not None:
                against[labels, : len(weight)] = losses.pairwise_margins(weight, variances, self.margin, labels)
        return own, against

    def variances(self, labels: Iterable[int]) -> torch.Tensor:
        """Return Λ_k of these classes, (classes, d)."""
        return gaussian.variances(self.statistics, labels)
