"""A model from a run answers as the run does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from amgc.engine.run import run
from amgc.engine.session import Session
from amgc.engine.takeover import model_from_run
from amgc.engine.watch import Watch
from amgc.model import Model, ModelError


def finished(tmp_path: Path, method: str, **changes: object) -> tuple[Path, np.ndarray, list[int], list[str]]:
    """A run, its test images, and what its method says of them."""
    dataset = tiny.images()
    config = tiny.config(method, **changes)
    run(config, tmp_path / "run", dataset=dataset)
    session = Session(config, tmp_path / "run", Watch(), dataset)
    session.resume()
    images = session.stream.test(2)
    with torch.no_grad():
        scores = torch.cat([session.method.scores(features) for features, _ in session.plain_features(images)])
    pixels = images.take(torch.arange(len(images))).numpy()
    return tmp_path / "run", pixels[:, 0], scores.argmax(1).tolist(), list(session.stream.class_names)


@pytest.mark.parametrize(
    ("method", "hyper", "learns"),
    [
        ("amgc", {}, True),
        ("amgc", {"freeze": True, "covariance": "lowrank", "rank": 3, "ridge": 0.1}, True),
        ("amgc", {"freeze": True, "covariance": "shared", "margin": 0.0}, True),
        ("dbgc", {}, True),
        ("lda", {}, True),
        ("finetune", {}, False),
        ("joint", {}, False),
        ("ewc", {}, False),
    ],
)
def test_a_model_from_a_run_answers_as_its_method(tmp_path, method, hyper, learns):
    folder, images, expected, names = finished(tmp_path, method, hyper=hyper)
    model = model_from_run(folder, tmp_path / "model")
    for one in (model, Model.open(tmp_path / "model")):
        assert [names.index(answer.label) for answer in one.predict(images)] == expected
        assert sorted(one.classes) == sorted(names)
    assert model.info().changeable is learns
    assert model.predict(images[:1])[0].fit is None
    with pytest.raises(ModelError, match="cannot reject"):
        model.predict(images, reject=0.01)
    if learns:
        assert set(model.classes.values()) == {9}
        assert (hyper.get("margin", 0.4) > 0 and method == "amgc") == bool(model.info().margins)
        model.learn(images[:5], "new")
        assert model.classes["new"] == 5
    else:
        with pytest.raises(ModelError, match=f"cannot learn: it was made from a run of {method}"):
            model.learn(images[:5], "new")
        with pytest.raises(ModelError, match="cannot be merged"):
            model.merge(model)
    model.forget(names[0])
    assert names[0] not in Model.open(tmp_path / "model").classes


@pytest.mark.parametrize("method", ["fecam", "ncm", "acil", "ranpac"])
def test_a_method_without_a_linear_head_is_refused(tmp_path, method):
    folder, *_ = finished(tmp_path, method)
    with pytest.raises(ModelError, match=f"{method} does not classify by a linear head"):
        model_from_run(folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_run_on_features_or_half_a_run_is_refused(tmp_path):
    run(tiny.config("amgc"), tmp_path / "vectors", dataset=tiny.vectors())
    with pytest.raises(ModelError, match="feature vectors"):
        model_from_run(tmp_path / "vectors", tmp_path / "model")
    folder, *_ = finished(tmp_path, "amgc")
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"sizes": [*about["sizes"], 2]}))
    with pytest.raises(ModelError, match="has done 3 of 4 tasks; `amgc resume` it first"):
        model_from_run(folder, tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="no run in"):
        model_from_run(tmp_path / "nothing", tmp_path / "model")
