"""`read_info` describes a model by the headers of its files, as `Model.info` does from memory, and without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from model.drawing import draw
from PIL import Image

from amgc.files import FileFormatError
from amgc.model import Model
from amgc.model.info import read_info
from amgc.model.manifest import Manifest
from amgc.model.state import FixedHead, State


@pytest.mark.parametrize(
    "how",
    [
        {"filters": 6},
        {"filters": 6, "draw": "patches"},
        {"features": "convnet"},
        {"filters": 6, "covariance": "lowrank"},
        {"filters": 6, "covariance": "diagonal"},
    ],
)
def test_the_files_and_the_memory_give_the_same_description(tmp_path, how):
    model = Model.create(tmp_path / "model", **how)
    model.learn_all({"cat": draw("cat"), "dog": draw("dog")})
    model.learn(draw("owl", 1), "owl")
    assert read_info(model.path) == model.info()
    assert Model.open(model.path).info() == model.info()


def test_margins_and_models_without_classes_or_statistics_are_described_alike(make, tmp_path):
    empty = Model.create(tmp_path / "empty")
    assert read_info(empty.path) == empty.info()
    model = make("cat", "dog")
    state = model._state
    state.classifier.margin = 0.4
    state.classifier.partial_fit(draw("owl", 20).reshape(20, -1)[:, : state.classifier.n_features_in_], ["owl"] * 20)
    margins = Model.begin(tmp_path / "margins", State(_new(state.manifest), state.extractor, state.classifier))
    assert margins.info().margins["cat"] > 0 and read_info(margins.path) == margins.info()
    weight = state.classifier.coef_[:2].astype(float)
    fixed = Model.begin(
        tmp_path / "fixed", State(_new(state.manifest), state.extractor, FixedHead(("a", "b"), weight, weight[:, 0]))
    )
    assert not fixed.info().changeable and read_info(fixed.path) == fixed.info()


def _new(manifest: Manifest) -> Manifest:
    return Manifest(manifest.made, manifest.features, manifest.image)


def test_describing_a_model_imports_no_torch(make):
    path = make("cat", "dog").path
    script = (
        "import sys; from amgc.cli.main import main; assert main(sys.argv[1:]) == 0; "
        "print(sorted({'torch', 'sklearn', 'scipy', 'pandas', 'PIL'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script, "info", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert "2 classes from 60 images" in output and output.splitlines()[-1] == "[]"


def test_a_damaged_file_is_not_described(make):
    path = make("cat", "dog").path / "classes-000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="is damaged: its checksum does not match"):
        read_info(path.parent)


def test_predicting_imports_no_scikit_learn(make, tmp_path):
    path = make("cat", "dog").path
    Image.fromarray(draw("cat", 1)[0]).save(tmp_path / "cat.png")
    script = (
        "import sys; from amgc.cli.main import main; assert main(sys.argv[1:]) == 0; "
        "print(sorted({'sklearn', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, "predict", str(path), str(tmp_path / "cat.png"), "--reject", "0.05"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "probability" in output and output.splitlines()[-1] == "[]"
