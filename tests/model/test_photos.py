"""Real photographs with lite0 features. The tests skip without the photographs of ../shared, or without the weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from amgc.features.lite import is_installed
from amgc.model import Model
from amgc.model.extractors import encode_batches
from amgc.model.inputs import images_from

pytestmark = [pytest.mark.cpus, pytest.mark.slow]

LEARNED, SHOWN = 10, 20  # photographs a class, all of the training part


def folders(name: str) -> dict[str, list[Path]]:
    """Return the training photographs of a set by class."""
    given = os.environ.get("AMGC_SHARED")
    root = Path(given) if given else Path(__file__).resolve().parents[3] / "shared"
    folder = root / "data/photos" / name / "train"
    if not folder.is_dir() or not is_installed("lite0"):
        pytest.skip("needs ../shared/data/photos and the extra `photos`")
    return {one.name: sorted(one.iterdir())[: LEARNED + SHOWN] for one in sorted(folder.iterdir())}


@pytest.fixture(scope="module", params=["flowers", "leaves"])
def taught(request, tmp_path_factory) -> Iterator[tuple[Model, Model, dict[str, list[Path]]]]:
    """Return a model taught at once, one taught class by class backwards and in two parts, and the photographs."""
    photos = folders(request.param)
    home = tmp_path_factory.mktemp(request.param)
    once, stepwise = (Model.create(home / name, "lite0") for name in ("once", "stepwise"))
    once.learn_all({label: files[:LEARNED] for label, files in photos.items()})
    for label, files in reversed(photos.items()):
        stepwise.learn(files[: LEARNED // 3], label)
    for label, files in photos.items():
        stepwise.learn(files[LEARNED // 3 : LEARNED], label)
    yield once, stepwise, photos


def test_teaching_class_by_class_equals_teaching_at_once(taught):
    once, stepwise, photos = taught
    shown = [files[-1] for files in photos.values()]
    assert once.info().covariance == "full"
    for mine, theirs in zip(once.predict(shown, top=100), stepwise.predict(shown, top=100), strict=True):
        shares, same = (dict(zip(one.labels, one.probabilities, strict=True)) for one in (mine, theirs))
        assert shares == pytest.approx(same, abs=1e-4)
        assert mine.fit == pytest.approx(theirs.fit, abs=2e-3)  # a step of its p-values is one of 4,096 draws


def test_probabilities_are_calibrated_and_answers_better_than_the_nearest_mean(taught):
    once, _, photos = taught
    shown = [file for files in photos.values() for file in files[LEARNED:]]
    found = once.evaluate(shown, [label for label, files in photos.items() for _ in files[LEARNED:]])
    assert found.calibration_error <= 0.12
    assert found.accuracy >= nearest_mean(once, photos)
    assert found.rejected(0.05)[0] <= 0.15


def nearest_mean(model: Model, photos: dict[str, list[Path]]) -> float:
    """Return the accuracy of the class mean with the largest cosine, on the same features."""
    files = [file for own in photos.values() for file in own]
    rows = [
        features.numpy() for _, features, _ in encode_batches(model._state.extractor, model._state.frame, images_from(files))
    ]
    features = np.concatenate(rows).reshape(len(photos), LEARNED + SHOWN, -1).astype(float)
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    mean = features[:, :LEARNED].mean(1)
    mean /= np.linalg.norm(mean, axis=-1, keepdims=True)
    return float(((features[:, LEARNED:] @ mean.T).argmax(-1) == np.arange(len(photos))[:, None]).mean())
