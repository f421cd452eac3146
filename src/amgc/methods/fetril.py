"""FeTrIL (Petit et al., WACV 2023): pseudo features of old classes are features of new classes shifted to the old mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from amgc.methods.contract import Batch, Features, Method, Phase, Task
from amgc.methods.frozen import FROZEN, FrozenHyper, class_means
from amgc.methods.lazy import torch
from amgc.methods.registry import method
from amgc.options import option

if TYPE_CHECKING:
    from amgc.features.extractor import Extractor


@dataclass(frozen=True)
class FeTrILHyper(FrozenHyper):
    """Hyper-parameters of FeTrIL."""

    later: Phase = Phase(epochs=50, extractor_lr=0.0, head_lr=0.05)  # PyCIL, fetril.json
    similarity: Literal["cosine", "euclidean"] = option(
        "cosine",
        "similarity of means that chooses the new class whose features an old class uses",
        "PyCIL; official: euclidean",
    )
    classifier: Literal["linear", "svc"] = option(
        "linear",
        "linear classifier trained by SGD, or scikit-learn's LinearSVC on features of unit length",
        "PyCIL; official: svc",
    )


@method("fetril", FeTrILHyper())
class FeTrIL(Method[FeTrILHyper]):
    """FeTrIL: a linear classifier of real new features and of pseudo features of the old classes.

    The pseudo features of old class c are f - μ_n + μ_c, for all features f of the most similar new class n. They are computed
    from the batch and not stored. As in PyCIL, each epoch has all real and pseudo features of a task in random order. In the
    official code the first 512 features are not normalised; here all are.
    """

    remembers = ("mean",)

    def __init__(self, hyper: FeTrILHyper, network: Extractor, device: torch.device) -> None:
        super().__init__(hyper, network, device)
        self.mean = torch.zeros(0, network.dim, dtype=torch.float64, device=device)
        self._targets: torch.Tensor | None = None  # (new classes, copies): the class of each copy of a feature
        self._shift: torch.Tensor | None = None  # (seen classes, d): the shift to that class; 0 for new classes

    def phase(self, task: Task) -> Phase:
        return FROZEN if self.hyper.classifier == "svc" and not task.is_first else super().phase(task)

    def repeats(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
        """Use each row once as itself, and once for each old class that uses its class."""
        if self.task.is_first:
            return None
        start, means = self.task.new.start, class_means([(features, labels)], self.task.new).to(self.device)
        similar = self.most_similar(means)
        users = [[start + n, *(similar == n).nonzero()[:, 0].tolist()] for n in range(len(means))]
        most = max(map(len, users))
        self._targets = torch.tensor([row + [-1] * (most - len(row)) for row in users], device=self.device)
        self._shift = torch.cat([self.mean - means[similar], torch.zeros_like(means)]).to(features.dtype)
        return torch.tensor([len(row) for row in users])[labels - start]

    def most_similar(self, means: torch.Tensor) -> torch.Tensor:
        """Return for each old class the most similar new class, given the means of the new ones: (old classes,)."""
        if self.hyper.similarity == "euclidean":
            return torch.cdist(self.mean, means, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        normalize = torch.nn.functional.normalize
        return (normalize(self.mean) @ normalize(means).T).argmax(1)

    def loss(self, batch: Batch) -> dict[str, torch.Tensor]:
        if self._targets is None or self._shift is None or batch.copy is None:
            return super().loss(batch)
        targets = self._targets[batch.labels - self.task.new.start, batch.copy]
        scores = self.head(batch.features + self._shift[targets])
        return {"cross-entropy": torch.nn.functional.cross_entropy(scores, targets)}

    def end(self, task: Task, features: Features, generator: torch.Generator) -> None:
        self._targets = self._shift = None
        batches = list(features)
        means = class_means(batches, task.new)
        if self.hyper.classifier == "svc":
            self.fit_svc(task, torch.cat([rows for rows, _ in batches]), torch.cat([labels for _, labels in batches]), means)
        self.mean = torch.cat([self.mean, means])

    def fit_svc(self, task: Task, features: torch.Tensor, labels: torch.Tensor, means: torch.Tensor) -> None:
        """Fit one support vector machine per class against all others."""
        similar, start = self.most_similar(means), task.new.start
        moved, targets = [features], [labels]
        for old in task.old:
            nearest = features[labels == start + similar[old]]
            moved.append(nearest + (self.mean[old] - means[similar[old]]).to(features))
            targets.append(labels.new_full((len(nearest),), old))
        weight = torch.zeros(len(task.seen), self.network.dim)
        bias = torch.zeros(len(task.seen))
        if len(task.seen) > 1:
            from sklearn.svm import LinearSVC  # takes a second to import

            rows = torch.nn.functional.normalize(torch.cat(moved)).cpu().numpy()
            fitted = LinearSVC(C=1.0, tol=1e-4, dual=False).fit(rows, torch.cat(targets).cpu().numpy())
            weight, bias = torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
            if len(task.seen) == 2:  # scikit-learn fits a single machine
                weight, bias = torch.cat([-weight, weight]), torch.cat([-bias, bias])
        self.head.set(weight, bias)

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        svc = self.hyper.classifier == "svc"
        return self.head(torch.nn.functional.normalize(features) if svc else features)
