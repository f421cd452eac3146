"""`amgc forget`, `rename` and `undo` change the folder of a model without torch, as `Model` does."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from model.drawing import answers, draw

from amgc import tensor_files
from amgc.cli.main import main
from amgc.core.statistics import ClassStatistics
from amgc.model import Model
from amgc.model.info import read_info
from amgc.model.manifest import CLASSES, Manifest
from amgc.model.state import FixedHead, State


def classes_file(model: Model) -> bytes:
    (path,) = (model.path / entry.name for role, entry in model._folder.manifest().files.items() if role == "classes")
    return path.read_bytes()


def stored(model: Model) -> tuple[dict, dict]:
    (path,) = (model.path / entry.name for role, entry in model._folder.manifest().files.items() if role == "classes")
    return tensor_files.read(path, CLASSES)


@pytest.mark.parametrize("covariance", ["shared", "full", "lowrank", "diagonal"])
def test_the_stored_statistics_of_a_forgotten_class_are_removed_as_those_in_memory(tmp_path, covariance):
    model = Model.create(tmp_path / "model", filters=3, covariance=covariance)
    model.learn_all({kind: draw(kind, 12) for kind in ("cat", "owl", "dog")})
    header, tensors = stored(model)
    prefix = "classifier/statistics."
    kept = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    statistics = ClassStatistics.from_file(header["classifier"]["statistics"], copy.deepcopy(kept))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a shared covariance keeps the class's part
        statistics.remove("owl")
    assert main(["forget", str(model.path), "owl"]) == 0
    header, tensors = stored(model)
    assert header["classifier"]["statistics"] == statistics.header() and header["classifier"]["latest"] == [1, 1]
    expected = statistics.tensors()
    assert {name.removeprefix(prefix) for name in tensors} == set(expected)  # and no classifier, which would be another one
    for name, tensor in expected.items():
        if name == "factor":  # correlations in half precision; reading and writing may round them once more
            assert torch.allclose(tensors[prefix + name], tensor, rtol=2**-10, atol=2**-24)
            assert torch.equal(tensors[prefix + name], kept[name][[0, 2]])
        else:
            assert torch.equal(tensors[prefix + name], tensor), name


def test_the_commands_write_the_same_files_as_the_methods(make, capsys):
    model = make("cat", "owl", "dog")
    other = Model.open(shutil.copytree(model.path, model.path.with_name("other")))
    for command, method in (
        (["rename", "owl", "bird"], lambda: model.rename("owl", "bird")),
        (["undo"], lambda: model.undo()),
        (["forget", "owl"], lambda: model.forget("owl")),
    ):
        assert main([command[0], str(other.path), *command[1:]]) == 0
        method()
        Model.open(other.path)  # solves for a classifier after forgetting, and stores it
        assert classes_file(model) == classes_file(other)
        mine, theirs = (one._folder.manifest() for one in (model, other))
        assert mine.classes == theirs.classes and mine.files == theirs.files
        assert bool(mine.undo) == bool(theirs.undo) == (command[0] == "rename")
    images = [*draw("cat", 5, seed=2), *draw("owl", 5, seed=2)]
    assert Model.open(other.path).predict(images, top=2) == model.predict(images, top=2)


def test_a_trained_head_forgets_and_renames_by_rows(make, tmp_path):
    state, rng = make("cat")._state, np.random.default_rng(0)
    weight, bias = rng.normal(size=(3, state.extractor.dim)), rng.normal(size=3)
    manifest = Manifest(state.manifest.made, state.manifest.features, state.manifest.image)
    model = Model.begin(tmp_path / "fixed", State(manifest, state.extractor, FixedHead(("a", "b", "c"), weight, bias)))
    model.rename("c", "d").forget("b")
    head = Model.open(model.path)._state.classifier
    assert head.classes == ("a", "d")
    assert np.array_equal(head.weight, weight[[0, 2]]) and np.array_equal(head.bias, bias[[0, 2]])


def test_margins_of_a_model_that_has_forgotten_are_still_described(make, tmp_path):
    state = make("cat", "dog", "owl")._state
    state.classifier.margin = 0.4
    state.classifier.partial_fit(draw("fox", 20).reshape(20, -1)[:, : state.classifier.n_features_in_], ["fox"] * 20)
    manifest = Manifest(state.manifest.made, state.manifest.features, state.manifest.image)
    model = Model.begin(tmp_path / "margins", State(manifest, state.extractor, state.classifier)).forget("owl")
    assert read_info(model.path) == model.info() and model.info().margins["cat"] > 0


def test_a_file_written_from_arrays_is_that_written_from_tensors(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "b": rng.normal(size=(3, 4)),
        "a": rng.normal(size=5).astype(np.float16),
        "n": np.arange(3),
        "e": np.zeros((0, 2)),
    }
    arrays["t"] = rng.normal(size=(4, 3)).astype(np.float32).T  # not contiguous
    header = {"text": "ä", "numbers": [1, 0.1]}
    tensor_files.write_arrays(tmp_path / "arrays", "kind", header, arrays)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    tensor_files.write(tmp_path / "tensors", "kind", header, tensors)
    assert (tmp_path / "arrays").read_bytes() == (tmp_path / "tensors").read_bytes()
    again, found = tensor_files.read_arrays(tmp_path / "tensors", "kind")
    assert again == header and all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_forgetting_renaming_and_undoing_import_no_torch(make):
    path = str(make("cat", "dog", "owl").path)
    script = (
        "import sys; from amgc.cli.main import main; path = sys.argv[1]\n"
        "codes = [main(each) for each in (['rename', path, 'owl', 'bird'], ['undo', path], ['forget', path, 'owl'])]\n"
        "print(codes, sorted({'torch', 'sklearn', 'scipy', 'pandas', 'PIL'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[0, 0, 0] []" and "Forgot 'owl'; the model has 2 classes." in output


def test_a_classifier_is_solved_and_stored_by_the_first_reader_that_can(make, monkeypatch):
    model = make("cat", "dog", "owl")
    path = str(model.path)
    assert main(["forget", path, "owl"]) == 0
    forgotten = model._folder.manifest()
    with model._folder.lock():  # another process is changing the model
        waiting = answers(Model.open(path))
        assert model._folder.manifest() == forgotten
    with monkeypatch.context() as patch:
        patch.setattr("amgc.model.folder.files.write_json", _full)  # or its disk is full
        assert answers(Model.open(path)) == waiting
    assert model._folder.manifest() == forgotten
    assert answers(Model.open(path)) == waiting
    settled = model._folder.manifest()
    assert settled.generation == forgotten.generation + 1 and not settled.undo
    assert answers(Model.open(path)) == waiting and model._folder.manifest() == settled


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")
