"""A few photographs are predicted without torch, with the answers of `Model.predict`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from amgc import Privacy, tensor_files
from amgc.cli.main import main
from amgc.features.lite import is_installed
from amgc.files import FileFormatError
from amgc.model import ImageError, Model, predict
from amgc.model.folder import Folder
from amgc.model.manifest import CLASSES
from amgc.model.predict import predict_few

pytestmark = [pytest.mark.cpus, pytest.mark.skipif(not is_installed("lite0"), reason="the extra `photos` is not installed")]
COLOURS = {"red": (150, 100, 100), "green": (100, 145, 105), "blue": (105, 105, 150)}


def photo(kind: str, seed: int) -> Image.Image:
    """Coarse noise around a colour, enlarged."""
    noise = np.random.default_rng([seed, *COLOURS[kind]]).normal(COLOURS[kind], 70, (6, 6, 3))
    return Image.fromarray(noise.clip(0, 255).astype(np.uint8)).resize((80, 100), Image.Resampling.BICUBIC)


def taught(path: Path, count: int = 8, **options) -> Model:
    """A model of three classes, with fewer features than usual unless they are chosen."""
    model = Model.create(path, "lite0", size=64, **{"stages": (5,), "textures": ()} | options)
    model.learn_all({kind: [photo(kind, seed) for seed in range(count)] for kind in COLOURS})
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return taught(tmp_path_factory.mktemp("quick") / "model", stages=(5, 7), textures=(3, 4, 5))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    """Photographs of each class and between two, grey, transparent, white, small and long ones."""
    folder, images = tmp_path_factory.mktemp("files"), [photo(kind, 50 + seed) for kind in COLOURS for seed in range(3)]
    images += [Image.blend(photo("red", 1), photo("blue", 2), share) for share in (0.3, 0.5, 0.6)]
    images += [photo("green", 3).convert("L"), photo("red", 4).convert("RGBA"), Image.new("RGB", (70, 70), "white")]
    images += [photo("blue", 9).resize((9, 8)), photo("green", 9).resize((400, 70))]
    for number, image in enumerate(images):
        image.save(folder / f"{number:02}.png")
    return [str(path) for path in sorted(folder.iterdir())]


def assert_same(found, expected) -> None:
    assert [one.labels for one in found] == [one.labels for one in expected]
    assert [(one.source, one.rejected) for one in found] == [(one.source, one.rejected) for one in expected]
    for name, atol in (("probabilities", 2e-5), ("fit", 1e-4)):  # features are float32
        np.testing.assert_allclose([getattr(one, name) for one in found], [getattr(one, name) for one in expected], atol=atol)


def test_the_answers_are_those_of_the_model(model, files):
    expected = model.predict(files, top=3, reject=0.05)
    assert len({one.label for one in expected}) == 3 and len({one.rejected for one in expected}) == 2
    assert 0.4 < min(one.probabilities[0] for one in expected) < 0.99, "some answers are not clear"
    found = predict_few(model.path, files, 3, 0.05)
    assert found is not None
    assert_same(found, expected)
    assert predict_few(model.path, files, 3, 0.05) == found


@pytest.mark.parametrize("options", [{"covariance": "lowrank"}, {"covariance": "shared"}, {"stages": (6,), "unit": False}])
def test_so_are_those_of_other_forms_of_covariance_and_of_features(options, files, tmp_path):
    model = taught(tmp_path / "model", **options)
    for opened in (model, Model.open(model.path)):
        assert_same(predict_few(model.path, files, 2, None), opened.predict(files, top=2))


def test_after_a_class_is_renamed_forgotten_or_learned_the_answers_are_those_of_the_new_state(files, tmp_path):
    model = taught(tmp_path / "model")
    assert main(["rename", str(model.path), "red", "zinnober"]) == 0  # the last in the order of names, and still the first row
    assert_same(predict_few(model.path, files, 3, None), Model.open(model.path).predict(files, top=3))
    assert main(["forget", str(model.path), "green"]) == 0
    assert predict_few(model.path, files, 2, None) is None, "the classifier has not been solved yet"
    expected = Model.open(model.path).predict(files, top=2)
    assert_same(predict_few(model.path, files, 2, None), expected)
    model.refresh()
    model.learn([photo("green", seed) for seed in range(9)], "green")
    assert_same(predict_few(model.path, files, 3, None), model.predict(files, top=3))
    model.undo()
    assert_same(predict_few(model.path, files, 2, None), expected)


def test_what_is_stored_is_used_by_an_opened_model(model, files):
    opened = Model.open(model.path)
    assert list(opened.state.classifier._solved().typicality) == [tuple(opened.state.extractor.far)]
    assert opened.predict(files, top=3) == model.predict(files, top=3)


def test_an_unreadable_image_is_an_error_in_its_place(model, files, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    given = [files[0], str(tmp_path / "broken.jpg"), str(tmp_path / "missing.jpg"), files[1]]
    found = predict_few(model.path, given, 1, None)
    assert [isinstance(one, ImageError) for one in found] == [False, True, True, False]
    assert [str(one) for one in found[1:3]] == [str(one) for one in [*model.predict_each(given)][1:3]]
    assert predict_few(model.path, given[1:2], 1, None)[0].path == given[1]


@pytest.mark.parametrize(("top", "reject"), [(0, None), (1, 1.5)])
def test_wrong_arguments_are_refused_in_the_same_words(top, reject, model, files):
    with pytest.raises(ValueError) as expected:
        model.predict(files[:1], top, reject)
    with pytest.raises(ValueError) as found:
        predict_few(model.path, files[:1], top, reject)
    assert str(found.value) == str(expected.value)


def test_torch_is_used_for_many_images_and_for_models_that_need_it(model, files, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "MOST", 3)
    assert len(predict_few(model.path, files[:3], 1, None)) == 3 and predict_few(model.path, files[:4], 1, None) is None
    others = {
        "patches": Model.create(tmp_path / "patches", filters=4, size=16),
        "resized": Model.create(tmp_path / "resized", "lite0", size=32, resize=48, stages=(1,), textures=()),
        "private": Model.create(tmp_path / "private", "lite0", size=32, privacy=Privacy(8.0), stages=(1,), textures=()),
        "empty": Model.create(tmp_path / "empty", "lite0", size=32),
        "few": Model.create(tmp_path / "few", "lite0", size=32, stages=(1,), textures=()),
    }
    for name, other in others.items():
        if name != "empty":
            count = 1 if name == "few" else 4
            other.learn_all({kind: [photo(kind, seed) for seed in range(count)] for kind in COLOURS})
        assert predict_few(other.path, files[:1], 1, None) is None, name


def test_the_command_prints_the_same_with_and_without_torch(model, files, monkeypatch, capsys):
    printed = []
    for most in (64, 0):
        monkeypatch.setattr(predict, "MOST", most)
        assert main(["predict", str(model.path), *files[:4], "--top", "2"]) == 0
        printed.append(capsys.readouterr().out)
        assert main(["predict", str(model.path), files[0], "--csv"]) == 0
        assert capsys.readouterr().out.startswith("image,answer,rejected,fit,class 1,probability 1\r\n" + files[0])
    assert printed[0] == printed[1]


def test_the_command_does_not_import_torch(model, files):
    code = "import sys\nfrom amgc.cli.main import main\nassert main(sys.argv[1:]) == 0\nassert 'torch' not in sys.modules"
    found = subprocess.run([sys.executable, "-c", code, "predict", str(model.path), files[0]], capture_output=True, text=True)
    assert found.returncode == 0 and "red" in found.stdout, found.stderr


@pytest.mark.parametrize("fault", ["head", "centre", "whiten", "far", "nearest", "nan", "classes", "temperature"])
def test_a_file_that_does_not_fit_is_refused_by_both(fault, model, files, tmp_path):
    folder = Folder(shutil.copytree(model.path, tmp_path / "model"))
    manifest = folder.manifest()
    header, arrays = tensor_files.read_arrays(folder.path / manifest.files["classes"].name, CLASSES)
    prefix = "classifier/typicality."
    if fault == "head":
        arrays["classifier/head.bias"] = arrays["classifier/head.bias"][:2]
    elif fault in ("centre", "whiten"):
        arrays[f"{prefix}near.{fault}"] = arrays[f"{prefix}near.{fault}"][:-1]
    elif fault == "far":
        arrays[f"{prefix}far"] = arrays[f"{prefix}far"] + 10_000
    elif fault == "nearest":
        arrays[f"{prefix}nearest"] = arrays[f"{prefix}nearest"][:1]
    elif fault == "nan":
        arrays[f"{prefix}cosines"][0, 3] = np.nan
    elif fault == "classes":
        header["classifier"]["statistics"]["classes"][0] = "other"
    else:
        header["classifier"]["temperature"] = "warm"
    write = {"classes": lambda path: tensor_files.write_arrays(path, CLASSES, header, arrays)}
    folder.change(manifest, write, undoable=False)
    for read in (lambda: predict_few(folder.path, files[:1], 1, None), lambda: Model.open(folder.path)):
        with pytest.raises(FileFormatError, match="classes-"):
            read()
