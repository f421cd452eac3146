"""Compare the accuracy that a classifier expects, from its class statistics, with that on photographs it did not learn.

    python benchmarks/expected.py                    # minutes on two cores; the photos are development data
    python benchmarks/expected.py --photos FOLDER    # FOLDER/flowers/train/CLASS/*.jpg, FOLDER/flowers/test, FOLDER/leaves, …
    python benchmarks/expected.py --quick            # generated images, to check that it runs

Features of lite0, `AMGCClassifier(background="lite0")` as in models, 20 draws of 5, 10, 20 and 50 photos a class from train/.
stated: the expected accuracy. With 5 photos `expected_accuracy()` returns None and the page says nothing; that row is what it
would say. held out: accuracy on the photos of train/ that were not drawn, by which the margins were chosen. test: accuracy on
test/. Accuracies weight classes equally, in percent: mean ± standard deviation over the draws. Errors are stated minus measured
on test photos, in points. margin: the mean of the stated ones. within it: draws whose error on test photos is not larger than
their margin.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from _photo_sets import SETS, Array, draw_sets, encoded, files
from _report import kept, shared_data

from amgc import AMGCClassifier
from amgc.model import extractors

COUNTS = (5, 10, 20, 50)
DRAWS = 20
COLUMNS = ("photos a class", "stated", "held out", "test", "mean error", "largest error", "margin", "within it")


def read(folder: Path) -> dict[str, tuple[Array, Array]]:
    """Return the features (n, d) and classes (n,) of train/ and test/."""
    lite = extractors.create("lite0", {}, None, 0)
    names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    found = {}
    for half in ("train", "test"):
        given = [(row, path) for row, name in enumerate(names) for path in files(folder / half / name)]
        found[half] = encoded(lite, [path for _, path in given]), np.array([row for row, _ in given])
    return found


def draw(labels: Array, count: int, seed: int) -> Array:
    """Return a mask (n,) of `count` random samples of each class."""
    random, mask = np.random.default_rng(seed), np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        mask[random.permutation(np.flatnonzero(labels == label))[:count]] = True
    return mask


def accuracy(classifier: AMGCClassifier, samples: Array, labels: Array) -> float:
    """Return the accuracy, classes weighted equally, in percent."""
    right = classifier.predict(samples) == labels
    return 100 * float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def compare(photos: dict[str, tuple[Array, Array]], count: int, seed: int) -> tuple[float, float, float, float | None]:
    """Return the stated accuracy, those on held-out and on test photos, and the margin if one is stated, in percent."""
    samples, labels = photos["train"]
    drawn = draw(labels, count, seed)
    classifier = AMGCClassifier(background="lite0").fit(samples[drawn], labels[drawn])
    stated, inside = classifier.expected_accuracy(), classifier._solved().solution.expected
    assert inside is not None
    held, test = accuracy(classifier, samples[~drawn], labels[~drawn]), accuracy(classifier, *photos["test"])
    return 100 * inside.accuracy, held, test, None if stated is None else 100 * stated.margin


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--photos", type=Path)
    arguments.add_argument("--quick", action="store_true")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary, kept("expected"):
        shared = shared_data()
        folder = given.photos or (shared / "data/photos" if shared else None)
        if given.quick:
            folder = draw_sets(Path(temporary))
        if folder is None or not folder.is_dir():
            raise SystemExit("There are no photos: name their folder with --photos.")
        counts, draws = ((3, 6), 2) if given.quick else (COUNTS, DRAWS)
        for name in SETS:
            photos = read(folder / name)
            print(f"{name}, {len(np.unique(photos['train'][1]))} classes, {len(photos['test'][1])} test photos")
            widths = [max(14, len(column)) for column in COLUMNS]
            print("  " + "  ".join(f"{column:>{width}}" for column, width in zip(COLUMNS, widths, strict=True)))
            for count in counts:
                found = [compare(photos, count, seed) for seed in range(draws)]
                stated, held, test = (np.array(values) for values in zip(*(one[:3] for one in found), strict=True))
                shown = [f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" for values in (stated, held, test)]
                errors = np.abs(stated - test)
                margins = [one[3] for one in found if one[3] is not None]
                margin = (
                    [f"{np.mean(margins):.0f}", f"{np.sum(errors <= margins)} of {draws}"] if margins else ["not stated", "–"]
                )
                cells = [str(count), *shown, f"{(stated - test).mean():+.1f}", f"{errors.max():.1f}", *margin]
                print("  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
