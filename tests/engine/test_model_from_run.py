"""A model created from a run predicts as the run does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tiny
import torch

from amgc.data import Dataset, load
from amgc.engine.model_from_run import model_from_run
from amgc.engine.run import run
from amgc.engine.session import Session
from amgc.engine.watch import Watch
from amgc.methods.registry import methods
from amgc.model import Model, ModelError

pytestmark = pytest.mark.cpus

# A new method that is refused has to be named here.
NOT_LINEAR = {"acil", "adagauss", "adc", "amgc-drift", "amgc-drift-ve", "dpcr", "ds-al", "fecam", "ldc", "ncm", "ranpac", "sdc"}
OFTEN = {"amgc", "amgc-closed", "fecam", "lda", "pass"}  # make test-all tests the others


def finished(
    tmp_path: Path, method: str, dataset: Dataset | None = None, **changes: object
) -> tuple[Path, np.ndarray, torch.Tensor, list[str]]:
    """Return a run, its test images, and the scores of its method, with classes in order of arrival."""
    dataset = dataset or tiny.images()
    config = tiny.config(method, **changes)
    run(config, tmp_path / "run", dataset=dataset)
    session = Session(config, tmp_path / "run", Watch(), dataset)
    session.checkpoints.restore()
    images = session.stream.test(len(session.stream) - 1)
    with torch.no_grad():
        scores = torch.cat([session.method.scores(features) for features, _ in session.features.extract(images)])
    pixels = images.take(torch.arange(len(images))).numpy()
    return tmp_path / "run", pixels[:, 0], scores.double(), list(session.stream.class_names)


def assert_same_answers(model: Model, images: np.ndarray, scores: torch.Tensor, names: list[str]) -> None:
    """Assert the same class for every image, and the same scores up to a constant per image."""
    found = model.predict(images, top=len(names))
    assert [one.label for one in found] == [names[best] for best in scores.argmax(1).tolist()]
    shares = [[dict(zip(one.labels, one.probabilities, strict=True))[name] for name in names] for one in found]
    seen, expected = torch.tensor(shares, dtype=torch.float64).log().clamp_min(-100), scores.log_softmax(1).clamp_min(-100)
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)


def digits() -> Dataset:
    """Return digits with an eighth of the training images and a third of the test images."""
    whole = load("digits")
    train, test = (part.subset(torch.arange(0, len(part), share)) for part, share in ((whole.train, 8), (whole.test, 3)))
    return replace(whole, train=train, test=test)


@pytest.mark.any_cpu
@pytest.mark.parametrize("method", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in methods()])
def test_a_run_of_every_method_becomes_a_model_that_answers_the_same_or_is_refused(tmp_path: Path, method: str) -> None:
    short = {"batch_size": 32}
    folder, images, scores, names = finished(tmp_path, method, digits(), sizes=(4, 3, 3), first=short, later=short)
    assert len(scores.argmax(1).unique()) > 1, "one answer for all would be easy to repeat"
    if method in NOT_LINEAR:
        with pytest.raises(ModelError, match=f"{method} does not classify by a linear head"):
            model_from_run(folder, tmp_path / "model")
        assert not (tmp_path / "model").exists()
        return
    for model in (model_from_run(folder, tmp_path / "model"), Model.open(tmp_path / "model")):
        assert_same_answers(model, images, scores, names)


def test_a_network_that_cannot_be_built_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, *_ = finished(tmp_path, "ssre")
    tiny.variant(monkeypatch, "ssre", restore_structure=None)
    with pytest.raises(ModelError, match="ssre changes the network's structure"):
        model_from_run(folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_network_of_timm_is_restored_without_its_initial_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timm: ModuleType
) -> None:
    """No weights are downloaded. Grey images are repeated for the three channels of a colour network."""
    weights = tmp_path / "published.pth"
    torch.save(timm.create_model("resnet10t").state_dict(), weights)
    create = timm.create_model

    def offline(model: str, *, pretrained: bool = False, **options: object) -> object:
        assert not pretrained, "a download"
        return create(model, **options)

    monkeypatch.setattr(timm, "create_model", offline)
    folder, images, scores, names = finished(
        tmp_path, "lda", features="timm:resnet10t", features_options={"weights": str(weights)}, first={"epochs": 0}
    )
    weights.unlink()
    for model in (model_from_run(folder, tmp_path / "model"), Model.open(tmp_path / "model")):
        assert_same_answers(model, images, scores, names)


@pytest.mark.parametrize(
    ("method", "hyper", "learns"),
    [
        ("amgc", {}, True),
        ("amgc-exact", {"covariance": "lowrank", "rank": 3, "ridge": 0.1}, True),
        ("amgc-closed", {}, True),
        ("dbgc", {}, True),
        ("lda", {}, True),
        ("il2a", {}, True),
        ("finetune", {}, False),
        ("ssre", {}, False),
    ],
)
def test_a_model_from_a_run_answers_as_its_method(tmp_path, method, hyper, learns):
    folder, images, scores, names = finished(tmp_path, method, hyper=hyper)
    model = model_from_run(folder, tmp_path / "model")
    for one in (model, Model.open(tmp_path / "model")):
        assert_same_answers(one, images, scores, names)
        assert sorted(one.classes) == sorted(names)
    assert model.info().changeable is learns
    if learns:
        fits = [one.fit for one in model.predict(images, reject=0.01)]
        assert all(0 <= fit <= 1 for fit in fits)
        assert set(model.classes.values()) == {9}
        assert (method in ("amgc", "amgc-exact")) == bool(model.info().margins)
        model.learn(images[:5], "new")
        assert model.classes["new"] == 5
    else:
        assert model.predict(images[:1])[0].fit is None
        with pytest.raises(ModelError, match="cannot reject"):
            model.predict(images, reject=0.01)
        with pytest.raises(ModelError, match=f"cannot learn: it was created from a run of {method}"):
            model.learn(images[:5], "new")
        with pytest.raises(ModelError, match="cannot be merged"):
            model.merge(model)
    model.forget(names[0])
    assert names[0] not in Model.open(tmp_path / "model").classes


def test_a_linear_head_on_other_features_is_refused(tmp_path: Path) -> None:
    folder, *_ = finished(tmp_path, "fetril", hyper={"classifier": "svc"})  # of unit length
    with pytest.raises(ModelError, match="fetril does not classify by a linear head"):
        model_from_run(folder, tmp_path / "model")


def test_a_run_on_features_or_half_a_run_is_refused(tmp_path):
    run(tiny.config("amgc"), tmp_path / "vectors", dataset=tiny.vectors())
    with pytest.raises(ModelError, match="feature vectors"):
        model_from_run(tmp_path / "vectors", tmp_path / "model")
    folder, *_ = finished(tmp_path, "amgc")
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(
        json.dumps(about | {"sizes": [*about["sizes"], 2], "class_names": [*about["class_names"], "x", "y"]})
    )
    with pytest.raises(ModelError, match="has done 3 of 4 tasks; `amgc resume` it first"):
        model_from_run(folder, tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="no run in"):
        model_from_run(tmp_path / "nothing", tmp_path / "model")
