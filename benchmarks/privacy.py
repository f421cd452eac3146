"""Differential privacy: accuracy against ε, and what attacks find out with and without it.

    python benchmarks/privacy.py                    # about fifteen minutes; features and photos are development data
    python benchmarks/privacy.py --photos FOLDER    # FOLDER/flowers/train/CLASS/*.jpg, FOLDER/flowers/test, FOLDER/leaves, …
    python benchmarks/privacy.py --cache FOLDER     # also lite0 on CIFAR-100 of $AMGC_DATA; features stay in FOLDER
    python benchmarks/privacy.py --only attacks     # one part, two or three minutes
    python benchmarks/privacy.py --quick            # digits only, to check that it runs

accuracy, lite0, unseen, flowers, leaves: test accuracy in percent, mean ± standard deviation over draws of samples and noise;
δ = 1e-5, one lesson for all classes. "no noise" is AMGCClassifier(covariance="shared"), "no noise, same rows" the same on the
rows of private classifiers, which are scaled. For flowers, leaves and unseen, the 40 classes of CIFAR-100 that are not in the
background of lite0, private classifiers have this background; "nothing public" is without it. For lite0, all classes of
CIFAR-100, they have the mean of generated images instead, and "no centre" is without it.
floor: the same with 500 samples a class if less were secret: "exact covariance" has noise on counts and sums of classes only,
"and known directions" also projects the samples to the 99 directions in which the exact class means differ.
attacks: membership AUC: samples that were learned against others of the same class, for whoever has the model and as many other
samples of each class, by the better of two scores: the Mahalanobis distance to the class mean, and the product with the
difference of the class mean from that of the other samples; "means alone" has the second only, which needs no covariance of the
model. 0.5 is a guess; "bound" is the largest AUC of any attack. forms: the same for photos of flowers, and the accuracy, with
each form of the stored covariance, and with the background of lite0; "answers alone" has only what a model answers: the
probability of the class, and the fit, which is at most 0.5. Then each kind of answer alone; "class" is whether it is right.
Features: the correlation of a sample's features, less the class mean, with those computed from two versions of a model, before
and after learning this sample alone. Images: the pixel correlation of 16 × 16 digits with those rebuilt from these features by
gradient descent through the extractor, patches that were fitted on other digits; "mean of the class" is what anyone would guess
who knows the class. Private models have a budget of two lessons.
rounding: the features from two versions again, without noise, if a model stored rounded statistics: each number to half of its
standard error, which is less than samples leave uncertain. They follow from the means, and from the covariances up to sign.
shares: settings of the mechanism (`amgc.core.release`), one changed at a time, on held-out training samples.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from _photo_sets import SETS, encoded, files, frame
from _report import features_file, kept, shared_data
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

import amgc.core.release as core
from amgc import AMGCClassifier
from amgc.core.accounting import gaussian_loss, largest_area
from amgc.core.statistics import ClassStatistics
from amgc.core.sums import Sums
from amgc.data import Images, load
from amgc.data.augment import normalise
from amgc.features.cache import cached_features
from amgc.features.lite import is_installed
from amgc.model import extractors
from amgc.model.inputs import images_from
from amgc.model.predict import MOST_TOLD

Array = np.ndarray
Split = tuple[Array, Array, Array, Array]  # training features and labels, and those for testing
Centre = list[float] | None
EPSILONS = (8.0, 2.0, 1.0, 0.5)
MEANS = "no noise, means alone"
NO_NOISE, SAME_ROWS, NO_CENTRE, NO_PUBLIC = "no noise", "no noise, same rows", "ε = 8, no centre", ", nothing public"
PARTS = ("accuracy", "lite0", "unseen", "floor", *SETS, "attacks", "forms", "shares", "rounding")


def digits() -> Split:
    X, y = load_digits(return_X_y=True)
    return X[:1200], y[:1200], X[1200:], y[1200:]


def resnet(file: Path) -> Split:
    data = np.load(file)
    x, test = (data[part].astype(np.float32) * data["scale"] for part in ("train_x", "test_x"))
    return x, data["train_y"].astype(int), test, data["test_y"].astype(int)


def photos(folder: Path) -> tuple[Split, Centre]:
    """Return a set of photos, and the centre that `Model.create` chooses for lite0."""
    lite, found = extractors.create("lite0", {}, None, 0), []
    names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    for half in ("train", "test"):
        given = [(row, one) for row, name in enumerate(names) for one in files(folder / half / name)]
        found += [encoded(lite, [path for _, path in given]), np.array([row for row, _ in given])]
    return (found[0], found[1], found[2], found[3]), extractors.public_centre(lite)


@dataclass
class Chosen:
    """Some images of a data set, as the feature cache takes them."""

    images: Images
    rows: torch.Tensor

    @property
    def labels(self) -> torch.Tensor:
        return self.images.labels[self.rows]

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        return self.images.take(self.rows[rows])


def cifar_lite0(root: str | None, cache: Path | None) -> tuple[Split, Centre] | None:
    """Return CIFAR-100 as 664 features of lite0, images enlarged to 192 pixels, and its centre. None if the data are missing.

    The features of each class are kept in a file, so that encoding can be stopped and continued.
    """
    if root is None or cache is None or not is_installed("lite0"):
        print(
            "lite0 on CIFAR-100 needs the images in $AMGC_DATA, --cache FOLDER for the features, and the extra photos: skipped"
        )
        return None
    lite, found = extractors.create("lite0", {"resize": 192}, 32, 0), []
    data = load("cifar100", root=root)
    for half in (data.train, data.test):
        classes = [Chosen(half, (half.labels == label).nonzero().squeeze(1)) for label in range(100)]
        parts = [cached_features(lite, one, preprocess=partial(normalise, mean=lite.mean, std=lite.std), directory=cache)
                 for one in classes]  # fmt: skip
        found += [torch.cat(parts).numpy(), np.concatenate([one.labels.numpy() for one in classes])]
    return (found[0], found[1], found[2], found[3]), extractors.public_centre(lite)


def some(y: Array, count: int | None, random: np.random.Generator) -> Array:
    """Return rows of `count` samples of each class; None for all."""
    return np.concatenate([random.permutation(np.flatnonzero(y == label))[:count] for label in np.unique(y)])


def without_noise(X: Array, y: Array, centre: Centre) -> AMGCClassifier:
    """Return a classifier of exact sums, on the rows of a private one."""
    made = AMGCClassifier(epsilon=1.0, centre=centre).fit(X, y)
    rows = made.privacy_.rows(X)
    made.sums_ = Sums(rows.shape[1]).add(rows, y)  # in all directions
    made.statistics_ = made.sums_.statistics()
    made._shrinkage = lambda: None  # leave-one-out, as for a classifier without noise
    made._changed()
    return made


# ---- accuracy --------------------------------------------------------------------------------------------------------


def unseen(split: Split) -> Split:
    """Return the classes of CIFAR-100 that are not in the background of lite0 (benchmarks/background.py)."""
    classes = np.sort(np.random.default_rng(5).permutation(100)[60:])
    X, y, test, truth = split
    return X[keep := np.isin(y, classes)], y[keep], test[own := np.isin(truth, classes)], truth[own]


def accuracy(
    name: str, split: Split, counts: tuple[int | None, ...], draws: int, centre: Centre = None, public: str | None = None
) -> None:
    X, y, test, truth = split
    print(f"\naccuracy, {name}")
    shown = ["all" if count is None else str(count) for count in counts]
    print(f"  {'samples a class':22s}" + "".join(f"{count:>14s}" for count in shown), flush=True)
    first = (
        [f"ε = {epsilon:g}{NO_PUBLIC}" for epsilon in EPSILONS[:3]] if public else [SAME_ROWS if centre is None else NO_CENTRE]
    )
    for way in (NO_NOISE, *first, *EPSILONS):
        cells = []
        for count in counts:
            found = []
            for seed in range(draws):
                rows = some(y, count, np.random.default_rng(seed))
                if way == NO_NOISE:
                    made = AMGCClassifier(covariance="shared").fit(X[rows], y[rows])
                elif way == SAME_ROWS:
                    made = without_noise(X[rows], y[rows], centre)
                elif way == NO_CENTRE:
                    made = AMGCClassifier(epsilon=8.0).fit(X[rows], y[rows])
                elif isinstance(way, str):
                    epsilon = float(way.removeprefix("ε = ").removesuffix(NO_PUBLIC))
                    made = AMGCClassifier(epsilon=epsilon).fit(X[rows], y[rows])
                else:
                    made = AMGCClassifier(epsilon=way, centre=centre, background=public).fit(X[rows], y[rows])
                found.append(100 * made.score(test, truth))
            cells.append(f"{np.mean(found):.1f} ± {np.std(found, ddof=1):.1f}")
        print(
            f"  {way if isinstance(way, str) else f'ε = {way:g}':22s}" + "".join(f"{cell:>14s}" for cell in cells), flush=True
        )


@contextmanager
def exact_squares() -> Iterator[None]:
    """Release the covariance without noise, and at no cost."""
    before = core.noisy_squares, core.SECOND, core.LEAST
    core.noisy_squares, core.SECOND, core.LEAST = lambda rows, _, random: before[0](rows, 1e12, random), 1e-9, 1e-9
    try:
        yield
    finally:
        core.noisy_squares, core.SECOND, core.LEAST = before


def discriminants(X: Array, y: Array) -> Array:
    """Return the directions (d, K - 1) in which class means differ, scaled to a total variance of 1."""
    rows = X - X.mean(0)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    white = vectors / np.sqrt(np.maximum(values, values[-1] * 1e-9))
    means = np.stack([rows[y == label].mean(0) for label in np.unique(y)]) @ white
    return white @ np.linalg.svd(means, full_matrices=False)[2][:-1].T


def floor(name: str, split: Split, draws: int) -> None:
    X, y, test, truth = (part.astype(np.float64) if part.ndim == 2 else part for part in split)
    known = discriminants(X, y)
    print(f"\nfloor, {name}, all samples")
    print(f"  {'':44s}" + "".join(f"{f'ε = {epsilon:g}':>14s}" for epsilon in (8.0, 1.0)), flush=True)

    def fitted(epsilon: float, way: int) -> float:
        if way == 0:
            return float(AMGCClassifier(epsilon=epsilon).fit(X, y).score(test, truth))
        with exact_squares():
            if way == 1:
                return float(AMGCClassifier(epsilon=epsilon).fit(X, y).score(test, truth))
            centre, clip = (X @ known).mean(0), math.sqrt(known.shape[1])
            made = AMGCClassifier(epsilon=epsilon, centre=centre, clip=clip).fit(X @ known, y)
            return float(made.score(test @ known, truth))

    for way, shown in enumerate(("as released", "exact covariance", "exact covariance and known directions")):
        cells = [[100 * fitted(epsilon, way) for _ in range(draws)] for epsilon in (8.0, 1.0)]
        print(
            f"  {shown:44s}" + "".join(f"{f'{np.mean(one):.1f} ± {np.std(one, ddof=1):.1f}':>14s}" for one in cells), flush=True
        )


# ---- attacks ---------------------------------------------------------------------------------------------------------


def membership(made: AMGCClassifier, inside: Split, other: tuple[Array, Array]) -> tuple[float, float]:
    """Return the AUCs of the two scores, averaged over classes. `inside` has members and others, `other` what is known."""
    X, y, outside, out_y = inside
    statistics = made.statistics_
    X, outside, known = (made._rows(one.astype(np.float64)) for one in (X, outside, other[0]))
    private = made.privacy_ is not None
    pooled = statistics.pooled().double().numpy()
    spread = np.cov((known - np.stack([known[other[1] == label].mean(0) for label in other[1]])).T)
    metric = np.linalg.inv(spread + 0.1 * np.eye(len(spread)) * np.trace(spread) / len(spread))
    best: list[list[float]] = [[], []]
    for label in np.unique(y):
        row = statistics.index(int(label))
        mean = statistics.mean[row].numpy()
        if private:  # without the corrections for noise
            mean = (made.sums_.centre + made.sums_.total[row] / made.sums_.count[row].clamp_min(1)).numpy()
        own = pooled if statistics.form == "shared" else _dense(statistics, row)
        rows = np.concatenate([X[y == label], outside[out_y == label]])
        truth = np.repeat([1, 0], [(y == label).sum(), (out_y == label).sum()])
        residual = rows - mean
        inverse = np.linalg.inv(own + 1e-3 * np.eye(len(own)) * np.trace(own) / len(own))
        best[0].append(roc_auc_score(truth, -((residual @ inverse) * residual).sum(1)))
        public = known[other[1] == label].mean(0)
        best[1].append(roc_auc_score(truth, (rows - public) @ metric @ (mean - public)))
    return float(np.mean(best[0])), float(np.mean(best[1]))


def _dense(statistics: ClassStatistics, row: int) -> Array:
    """Return the stored covariance of a class as a matrix."""
    kept = statistics.covariance
    if statistics.form == "diagonal":
        return np.diag(kept[row].double().numpy())
    return (kept if statistics.form == "full" else kept.dense())[row].double().numpy()


def grouped(y: Array, count: int) -> tuple[Array, Array, Array]:
    """Return rows of members, of others and of what is known: `count` of each class in each."""
    order = np.random.default_rng(0).permutation(len(y))
    own = [order[y[order] == label] for label in np.unique(y)]
    return tuple(np.concatenate([rows[part * count : (part + 1) * count] for rows in own]) for part in range(3))  # type: ignore


def memberships(name: str, split: Split, counts: tuple[int, ...], classes: int) -> None:
    X, y, *_ = split
    X, y = X[y < classes], y[y < classes]
    print(f"\nmembership AUC, {name}")
    print(f"  {'samples a class':22s}" + "".join(f"{count:>10d}" for count in counts) + f"{'bound':>10s}", flush=True)
    forms = ("full", "lowrank", "diagonal", "shared")
    ways: dict[str, dict[str, object]] = {f"no noise, {form}": {"covariance": form} for form in forms}
    ways[MEANS] = {"covariance": "shared"}
    ways |= {f"ε = {epsilon:g}": {"epsilon": epsilon} for epsilon in (8.0, 1.0)}
    for way, parameters in ways.items():
        cells = []
        for count in counts:
            members, others, known = grouped(y, count)
            made = AMGCClassifier(**parameters).fit(X[members], y[members])
            found = membership(made, (X[members], y[members], X[others], y[others]), (X[known], y[known]))
            cells.append(found[1] if way == MEANS else max(found))
        limit = f"{largest_area(gaussian_loss(parameters['epsilon'], 1e-5)):.2f}" if "epsilon" in parameters else "-"
        print(f"  {way:22s}" + "".join(f"{cell:>10.2f}" for cell in cells) + f"{limit:>10s}", flush=True)


def answers(made: AMGCClassifier, inside: Split, far: range | None) -> dict[str, float]:
    """Return the AUC of what a model answers, by kind of answer, averaged over classes."""
    X, y, outside, out_y = inside
    rows, labels = np.concatenate([X, outside]), np.concatenate([y, out_y])
    truth = np.repeat([1, 0], [len(y), len(out_y)])
    shares, fits = made.predict_proba(rows), made.typicality(rows, far=far)
    sure = shares[np.arange(len(rows)), np.searchsorted(made.classes_, labels)]
    right = made.classes_[shares.argmax(1)] == labels
    kinds = {"probability": sure, "probability, one digit": sure.round(1), "fit without limit": fits}
    kinds |= {"fit": np.minimum(fits, MOST_TOLD), "class": right}
    areas = {kind: [roc_auc_score(truth[labels == label], score[labels == label]) for label in np.unique(y)]
             for kind, score in kinds.items()}  # fmt: skip
    return {kind: float(np.mean(own)) for kind, own in areas.items()}


def forms(name: str, split: Split, counts: tuple[int, ...], far: range | None, public: str | None) -> None:
    X, y, test, truth = split
    print(f"\nforms, {name}: membership AUC, and accuracy")
    columns = [f"{count}, {what}" for what in ("AUC", "answers alone", "accuracy") for count in counts]
    print(f"  {'samples a class':18s}" + "".join(f"{column:>20s}" for column in columns), flush=True)
    ways: dict[str, dict[str, object]] = {form: {"covariance": form} for form in ("full", "lowrank", "diagonal", "shared")}
    ways |= {"full, background": {"background": public}} if public else {}
    told: dict[str, dict[str, list[float]]] = {}
    for way, parameters in ways.items():
        found: list[list[float]] = [[], [], []]
        for count in counts:
            members, others, known = grouped(y, count)
            made = AMGCClassifier(**parameters).fit(X[members], y[members])
            inside = X[members], y[members], X[others], y[others]
            found[0].append(max(membership(made, inside, (X[known], y[known]))))
            own = answers(made, inside, far)
            for kind, area in own.items():
                told.setdefault(way, {}).setdefault(kind, []).append(area)
            found[1].append(max(own["probability"], own["fit"]))
            found[2].append(100 * made.score(test, truth))
        cells = [f"{one:.2f}" for one in found[0] + found[1]] + [f"{one:.1f}" for one in found[2]]
        print(f"  {way:18s}" + "".join(f"{cell:>20s}" for cell in cells), flush=True)
    for way in ("full", *(["full, background"] if public else [])):
        print(f"\nanswers of {way}, {name}: membership AUC")
        print(f"  {'samples a class':24s}" + "".join(f"{count:>10d}" for count in counts))
        for kind, areas in told[way].items():
            print(f"  {kind:24s}" + "".join(f"{area:>10.2f}" for area in areas), flush=True)


def one_more(X: Array, y: Array, rows: Array, new: int, epsilon: float | None) -> tuple[Array, AMGCClassifier]:
    """Return the features of sample `new`, computed from the models before and after it was learned, and the model."""
    made = AMGCClassifier(epsilon=epsilon, lessons=2, covariance="shared").fit(X[rows], y[rows])
    row = made.statistics_.index(int(y[new]))
    if epsilon is None:
        before = float(made.statistics_.count[row]) * made.statistics_.mean[row].clone()
        made.partial_fit(X[[new]], y[[new]])
        return (float(made.statistics_.count[row]) * made.statistics_.mean[row] - before).numpy(), made
    before = made.sums_.total[row].clone()
    made.partial_fit(X[[new]], y[[new]])
    return (made.sums_.centre + made.sums_.total[row] - before).numpy(), made


def correlation(one: Array, other: Array) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def reconstructions(name: str, X: Array, y: Array, epsilons: tuple[float | None, ...], rebuild: Rebuild | None) -> None:
    tried = 10 if rebuild is None else len(rebuild.images)
    for epsilon in epsilons:
        features, images = [], []
        for new in range(tried):
            found, made = one_more(X, y, np.arange(tried, len(X)), new, epsilon)
            centre = made._rows(X[y == y[new]].astype(np.float64)).mean(0)
            features.append(correlation(found - centre, made._rows(X[[new]].astype(np.float64))[0] - centre))
            if rebuild is not None:
                images.append(correlation(rebuild(found, made), rebuild.images[new]))
        way = NO_NOISE if epsilon is None else f"ε = {epsilon:g}"
        pixels = f"{np.mean(images):>10.2f}" if images else f"{'-':>10s}"
        print(f"  {name + ', ' + way:34s}{np.mean(features):>10.2f}{pixels}", flush=True)
    if rebuild is not None:
        guess = [correlation(rebuild.means[label], image) for label, image in zip(y, rebuild.images, strict=False)]
        print(f"  {name + ', mean of the class':34s}{'-':>10s}{np.mean(guess):>10.2f}", flush=True)


class Rebuild:
    """Images of digits, 16 × 16, their features, and how to get from features to an image."""

    def __init__(self, tried: int, steps: int, filters: int) -> None:
        found = load_digits()
        images = np.kron(found.images, np.ones((2, 2))) * 15.9
        rgb = list(np.repeat(images[..., None], 3, 3).astype(np.uint8))
        options = extractors.defaults("patches") | {"filters": filters, "mirror": False}
        self.extractor = extractors.create("patches", options, 16, 0)
        extractors.fit(self.extractor, frame(self.extractor), images_from(rgb[1000:]), 0)
        self.X, self.y, self.steps = encoded(self.extractor, rgb[:400]), found.target[:400], steps
        self.images = images[:tried]
        self.means = [images[1000:][found.target[1000:] == label].mean(0) for label in range(10)]
        again = self.features(torch.from_numpy(np.stack(rgb[:2])).permute(0, 3, 1, 2).float())
        torch.testing.assert_close(again, torch.from_numpy(self.X[:2]), rtol=0, atol=1e-2)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of images (n, 3, 16, 16) as the extractor does, with gradients."""
        made, settled, parts = self.extractor, self.extractor.settled, []
        for place, (side, _) in enumerate(made.banks):
            columns = torch.nn.functional.unfold(images, side, stride=settled.stride).transpose(1, 2)  # (n, positions, values)
            columns = columns - columns.mean(2, keepdim=True)
            columns = columns / (columns.square().mean(2, keepdim=True).clamp_min(1e-12).sqrt() + settled.contrast)
            weight = made.get_buffer(f"weight{place}")
            shrunk = torch.nn.functional.softshrink(columns @ weight[:-1] + weight[-1], settled.threshold)
            high, wide = made._positions(side)
            cell = (torch.arange(high) * settled.grid // high)[:, None] * settled.grid + torch.arange(
                wide
            ) * settled.grid // wide
            member = torch.nn.functional.one_hot(cell.flatten(), settled.grid**2).float().T
            averages = member / member.sum(1, keepdim=True)  # (cells, positions)
            parts += [
                (averages @ half).clamp_min(1e-12).pow(settled.power).flatten(1) for half in (shrunk.relu(), (-shrunk).relu())
            ]
        return (torch.cat(parts, 1) - made.centre) / made.deviation

    def __call__(self, features: Array, made: AMGCClassifier) -> Array:
        """Return the image whose features are nearest, by gradient descent."""
        target = torch.from_numpy(features)
        grey = torch.zeros(1, 1, 16, 16).normal_(0, 0.1, generator=torch.Generator().manual_seed(0)).requires_grad_()
        optimiser = torch.optim.Adam([grey], lr=0.1)
        for _ in range(self.steps):
            rows = self.features(255 * torch.sigmoid(grey).expand(1, 3, 16, 16)).double()
            if made.privacy_ is not None:
                rows = made.privacy_.rows(rows, made.sums_.dim)
            loss = (rows[0] - target).square().sum() / target.square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return torch.sigmoid(grey).detach().numpy()[0, 0]


def rounding(name: str, split: Split, counts: tuple[int, ...]) -> None:
    X, y = split[0].astype(np.float64), split[1]
    print(f"\nrounding to half a standard error, {name}, correlation")
    print(f"  {'samples a class':22s}" + "".join(f"{count:>10d}" for count in counts), flush=True)
    found: dict[str, list[list[float]]] = {"from means": [], "from covariances": []}
    for count in counts:
        for way in found.values():
            way.append([])
        for label in range(10):
            rows = X[y == label][: count + 1]
            true = rows[-1] - rows[:-1].mean(0)
            (mean, spread), (later, wider) = (rounded(part) for part in (rows[:-1], rows))
            found["from means"][-1].append(correlation((count + 1) * later - count * mean - mean, true))
            _, vectors = np.linalg.eigh(count * wider - (count - 1) * spread)
            found["from covariances"][-1].append(abs(correlation(vectors[:, -1], true)))
    for way, columns in found.items():
        print(f"  {way:22s}" + "".join(f"{np.mean(column):>10.2f}" for column in columns), flush=True)


def rounded(rows: Array) -> tuple[Array, Array]:
    """Return mean and covariance of rows, each number rounded to multiples of half of its standard error."""
    mean, spread = rows.mean(0), np.cov(rows.T)
    variances = spread.diagonal()
    steps = np.sqrt(variances / len(rows)) / 2, np.sqrt((np.outer(variances, variances) + spread**2) / len(rows)) / 2
    return tuple(np.round(one / (step + 1e-300)) * step for one, step in zip((mean, spread), steps, strict=True))  # type: ignore


# ---- shares ----------------------------------------------------------------------------------------------------------


def shares(name: str, split: Split, count: int) -> None:
    X, y, *_ = split
    held = some(y, 50, np.random.default_rng(0))
    rest = np.setdiff1d(np.arange(len(y)), held)
    rest = rest[some(y[rest], count, np.random.default_rng(0))]
    print(f"\nshares, {name}, {count} samples a class, 50 others held out")
    print(f"  {'setting':22s}" + "".join(f"{f'ε = {epsilon:g}':>10s}" for epsilon in (8.0, 1.0)), flush=True)
    changes: list[tuple[str, float]] = [("COUNT", 0.005), ("SECOND", 0.05), ("SECOND", 0.12), ("COMMON", 0.01)]
    changes += [("DIRECTIONS", 3.0), ("DIRECTIONS", 12.0)]
    for setting, value in [("default", 0.0), *changes, ("ROUNDS", 2)]:
        before = getattr(core, setting, None)
        if before is not None:
            setattr(core, setting, value)
        cells = []
        for epsilon in (8.0, 1.0):
            found = [AMGCClassifier(epsilon=epsilon).fit(X[rest], y[rest]).score(X[held], y[held]) for _ in range(2)]
            cells.append(100 * float(np.mean(found)))
        shown = setting if before is None else f"{setting} {value:g}"
        print(f"  {shown:22s}" + "".join(f"{cell:>10.1f}" for cell in cells), flush=True)
        if before is not None:
            setattr(core, setting, before)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--photos", type=Path, default=shared_data() and shared_data() / "data/photos")
    arguments.add_argument("--cache", type=Path, help="folder for the features of CIFAR-100")
    arguments.add_argument("--only", choices=PARTS)
    arguments.add_argument("--quick", action="store_true", help="digits only, seconds")
    given = arguments.parse_args()
    parts = (given.only,) if given.only else PARTS
    file = None if given.quick else features_file()
    cifar = ("CIFAR-100, ResNet-18", resnet(file)) if file else None
    folder = None if given.quick or given.photos is None or not given.photos.is_dir() else given.photos
    features = cifar or ("digits", digits())
    if "accuracy" in parts:
        with kept("privacy_accuracy"):
            accuracy(*features, *(((10, 50, 100, 500), 2) if cifar else ((10, None), 2)))
    if "floor" in parts:
        with kept("privacy_floor"):
            floor(*features, 2)
    if {"lite0", "unseen"} & {*parts} and not given.quick:
        found = cifar_lite0(os.environ.get("AMGC_DATA"), given.cache)
        if found and "lite0" in parts:
            with kept("privacy_lite0"):
                accuracy("CIFAR-100, lite0", found[0], (10, 50, 500), 2, found[1])
        if found and "unseen" in parts:
            with kept("privacy_unseen"):
                accuracy("40 classes, lite0", unseen(found[0]), (10, 50, 100), 2, public="lite0")
    for name in SETS if folder else ():
        if name in parts:
            split, _ = photos(folder / name)
            with kept(f"privacy_{name}"):
                accuracy(f"{name}, lite0", split, (10, 50, None), 3, public="lite0")
    if "attacks" in parts:
        with kept("privacy_attacks"):
            memberships(*features, (10, 50, 100, 160) if cifar else (10, 30), 20 if cifar else 10)
            print(f"\nreconstruction, correlation\n  {'':34s}{'features':>10s}{'pixels':>10s}", flush=True)
            rebuild = Rebuild(*((2, 20, 20) if given.quick else (10, 1000, 200)))
            if cifar:
                rows = some(cifar[1][1], 50, np.random.default_rng(0))
                reconstructions("CIFAR-100, ResNet-18", cifar[1][0][rows], cifar[1][1][rows], (None, 8.0, 1.0), None)
            reconstructions("digits", rebuild.X, rebuild.y, (None, 8.0, 1.0), rebuild)
    if "forms" in parts:
        far = None
        if folder:
            split, far = photos(folder / "flowers")[0], extractors.create("lite0", {}, None, 0).far
        with kept("privacy_forms"):
            chosen = ("flowers, lite0", split) if folder else ("digits", digits())
            forms(*chosen, (10, 20, 32), far, "lite0" if folder else None)
    if "shares" in parts:
        with kept("privacy_shares"):
            shares(*features, 450 if cifar else 20)
    if "rounding" in parts:
        with kept("privacy_rounding"):
            rounding(*features, (10, 50, 100, 400) if cifar else (10, 50))


if __name__ == "__main__":
    main()
