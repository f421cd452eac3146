"""The size to which CIFAR-100's images are enlarged for lite0: accuracy on held-out TRAINING images, and the cost.

    python benchmarks/warm_size.py --root DATA    # minutes; --quick: one size, random images

40 training images of each class are encoded; on 30 of them LDA (scikit-learn, shrunk) is fitted, 10 are held out, four times.
No test image is read. The presets warm-cifar100-* use the size that this table is for.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
from _report import kept
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from amgc.data import Images, load
from amgc.data.augment import normalise
from amgc.features import build

SIZES = (64, 96, 128, 160, 192, 224)
IMAGES, FOLDS = 40, 4


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--root", default=os.environ.get("AMGC_DATA", "data"), help="folder of cifar-100-python")
    arguments.add_argument("--quick", action="store_true", help="one size and few classes, to see that it runs")
    chosen = arguments.parse_args()
    classes = 5 if chosen.quick else 100
    if chosen.quick:  # random images: it needs no data set
        noise = torch.randint(0, 256, (classes * IMAGES, 3, 32, 32), dtype=torch.uint8)
        train = Images.of(noise, torch.arange(classes).repeat(IMAGES))
    else:
        train = load("cifar100", root=chosen.root).train
    rows = torch.cat([(train.labels == label).nonzero().squeeze(1)[:IMAGES] for label in range(classes)])
    labels = train.labels[rows].numpy()
    fold = np.tile(np.arange(IMAGES) % FOLDS, classes)
    with kept("warm_size"):
        print(f"{classes} classes, {IMAGES} training images each: LDA on held-out training images, {FOLDS} folds")
        print("  size  accuracy, %  ms an image")
        for size in SIZES[:1] if chosen.quick else SIZES:
            network = build("lite0", image_shape=(3, 32, 32), stages=(7,), unit=False, resize=size).eval()
            start = time.perf_counter()
            with torch.inference_mode():
                found = [network(normalise(train.take(part), network.mean, network.std)) for part in torch.split(rows, 100)]
            took = 1000 * (time.perf_counter() - start) / len(rows)
            features, right = torch.cat(found).double().numpy(), []
            for held in range(FOLDS):
                judge = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1)
                judge.fit(features[fold != held], labels[fold != held])
                right.append(judge.score(features[fold == held], labels[fold == held]))
            print(f"  {size:4d}  {100 * np.mean(right):11.1f}  {took:11.1f}")


if __name__ == "__main__":
    main()
