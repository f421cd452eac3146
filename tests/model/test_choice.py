"""A new model chooses its features by the first images, and models on EfficientNet-Lite do all that models do."""

from __future__ import annotations

import importlib.util
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from amgc.cli.main import main
from amgc.core.incremental import IncrementalClassifier
from amgc.features.lite import VARIANTS, is_installed
from amgc.model import Model, extractors
from amgc.model.extractors import INSPECTED_SIDE, in_colour, look
from amgc.model.folder import Folder
from amgc.model.inputs import images_from
from amgc.model.state import State

HUES = {"grass": (60, 140, 40), "sky": (90, 150, 230), "rose": (200, 40, 70)}


def photographs(kind: str, count: int = 4, side: int = 80, seed: int = 0) -> list[Image.Image]:
    """Blotches of a hue beside others, as a photograph in colour has."""
    rng = np.random.default_rng([seed, len(kind), HUES[kind][0]])
    made = []
    for _ in range(count):
        mixed = rng.uniform(0, 255, (6, 6, 3)) * 0.4 + 0.6 * np.array(HUES[kind]) * rng.uniform(0.3, 1.2, (6, 6, 1))
        small = Image.fromarray(mixed.clip(0, 255).astype(np.uint8))
        made.append(small.resize((side + 10, side), Image.Resampling.BICUBIC))
    return made


def chosen(tmp_path: Path, images: object, **options: object) -> dict:
    model = Model.create(tmp_path / "model", **options)
    model.learn_all({"one": images, "two": images})
    return model.info().features


@pytest.fixture
def installed() -> None:
    if not is_installed():
        pytest.skip(f"{VARIANTS['lite0'].package} is not installed")


def test_photographs_in_colour_get_lite0(tmp_path: Path, installed: None) -> None:
    features = chosen(tmp_path, photographs("grass"))
    assert (features["name"], features["given"], features["dim"]) == ("lite0", None, 664)
    assert features["why"] == "the images are photographs in colour"
    assert Model.open(tmp_path / "model").info().image["size"] == 224


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("small", r"the images are small \(48 pixels; lite0, for photographs, needs 64\)"),
        ("grey", "the images are grey, such as writing or drawings"),
        ("tinted", "the images are grey, such as writing or drawings"),
        ("size", r"the images are small \(32 pixels;"),
        ("missing", r"lite0, which is better for photographs, is not installed: pip install 'amgc\[photos\]'"),
    ],
)
def test_other_images_get_patches_and_the_reason_is_given(
    how: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list = photographs("sky", side=48 if how == "small" else 80)
    if how in ("grey", "tinted"):
        images = [image.convert("L").convert("RGB") for image in images]
    if how == "tinted":  # writing on yellowish paper, as a JPEG
        images = [jpeg(np.asarray(image) // 4 + np.array([150, 140, 120], np.uint8)) for image in images]
    if how == "missing":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    if how != "small":  # 400 filters, the default, take a second
        monkeypatch.setattr(extractors, "FILTERS", 20)
    features = chosen(tmp_path, images, size=32 if how == "size" else None)
    assert features["name"] == "patches"
    assert features["options"] == {"filters": 400 if how == "small" else 20, "draw": "gaussian"}
    assert re.match(why, features["why"])


def jpeg(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=60)
    return file.getvalue()


def test_what_is_asked_for_is_not_overruled(tmp_path: Path) -> None:
    for number, asked in enumerate(({"features": "patches", "filters": 8}, {"filters": 8}, {"features": "convnet"})):
        features = chosen(tmp_path / str(number), photographs("rose"), **asked)
        assert features["name"] == asked.get("features", "patches") and "why" not in features


def test_the_first_images_decide_and_later_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractors, "FILTERS", 20)
    model = Model.create(tmp_path / "model")
    assert model.info().features["name"] == "" and model.info().image["size"] is None
    model.learn(photographs("sky", side=32), "sky")
    reopened = Model.open(tmp_path / "model")
    reopened.learn(photographs("rose", side=200), "rose")
    assert reopened.info().features["name"] == "patches" and reopened.info().image["size"] == 32


def test_the_majority_of_a_sample_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractors, "is_installed", lambda name: False)
    monkeypatch.setattr(extractors, "FILTERS", 20)
    colour, grey = photographs("rose", 5), [image.convert("L") for image in photographs("rose", 4)]
    assert "not installed" in chosen(tmp_path / "a", colour + grey)["why"]
    assert "grey" in chosen(tmp_path / "b", grey + colour[:3])["why"]


def test_a_plain_colour_is_not_colour_but_two_colours_are() -> None:
    red = np.full((8, 8, 3), (200, 30, 30), np.uint8)
    assert not in_colour(red)
    red[:, 4:] = (30, 200, 30)
    assert in_colour(red)


def test_images_that_cannot_be_read_leave_the_choice_open(tmp_path: Path) -> None:
    model = Model.create(tmp_path / "model")
    with pytest.raises(ValueError, match="cannot be used"):
        model.learn(b"no image", "one")
    assert Model.open(tmp_path / "model").info().features["name"] == ""


def test_amgc_learn_and_info_say_which_features_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extractors, "FILTERS", 20)
    for kind in ("sky", "rose"):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for number, image in enumerate(photographs(kind, side=32)):
            image.save(tmp_path / "images" / kind / f"{number}.png")
    command = ["learn", str(tmp_path / "model"), str(tmp_path / "images")]
    assert main(command) == 0
    assert "Features: patches, because the images are small (32 pixels;" in capsys.readouterr().out
    assert main(command) == 0
    assert "because" not in capsys.readouterr().out, "said once"
    assert main(["info", str(tmp_path / "model")]) == 0
    assert "Chosen because the images are small" in capsys.readouterr().out


# ---- models on lite0 -----------------------------------------------------------------------------------------------------


def taught(path: Path, *kinds: str, **options: object) -> Model:
    model = Model.create(path, "lite0", size=64, **options)
    model.learn_all({kind: photographs(kind, 6) for kind in kinds})
    return model


def labels(model: Model) -> list[str]:
    shown = [image for kind in HUES for image in photographs(kind, 3, seed=1)]
    return [one.label for one in model.predict(shown)]


def test_two_sites_with_lite0_merge_without_exchanging_an_extractor(tmp_path: Path, installed: None) -> None:
    here, there = taught(tmp_path / "here", "grass", "sky"), taught(tmp_path / "there", "rose", seed=7)
    assert here.info().features["checksum"] == there.info().features["checksum"]
    both = here.merge(there)
    assert both.classes == {"grass": 6, "sky": 6, "rose": 6}
    assert labels(both) == labels(taught(tmp_path / "one", *HUES))


def test_a_model_on_lite0_forgets_learns_on_and_is_reopened(tmp_path: Path, installed: None) -> None:
    model = taught(tmp_path / "model", "grass", "sky")
    model.forget("sky").learn(photographs("rose", 6), "rose")
    reopened = Model.open(tmp_path / "model")
    assert labels(reopened) == labels(model) == labels(taught(tmp_path / "other", "grass", "rose"))
    assert "the network lite0 with its weights" in reopened.info().kept


def backgrounds(model: Model) -> tuple[str | None, str | None]:
    """Return what a model gives to new lessons, and what its classifier has."""
    state = State.read(Folder(model.path))
    assert isinstance(state.classifier, IncrementalClassifier)
    return state.manifest.made["classifier"].get("background"), state.classifier.background


def test_a_model_on_lite0_uses_its_background_and_an_older_one_stays_without(
    tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = taught(tmp_path / "new", "grass", "sky")
    site = Model.create(tmp_path / "site", tmp_path / "new")  # the extractor of the other folder: the same weights
    site.learn_all({"rose": photographs("rose", 6)})
    assert backgrounds(new) == backgrounds(site) == backgrounds(new.merge(site)) == ("lite0", "lite0")
    assert new.info().features["background"] == "lite0"
    with monkeypatch.context() as patch:
        patch.setattr(extractors, "background_of", lambda extractor: None)
        old = taught(tmp_path / "old", "grass", "sky")
        answers = [one.probabilities for one in old.predict(photographs("sky", 3, seed=1))]
    reopened = Model.open(tmp_path / "old")
    assert [one.probabilities for one in reopened.predict(photographs("sky", 3, seed=1))] == answers
    reopened.learn(photographs("rose", 6), "rose")
    assert backgrounds(reopened) == (None, None)
    assert "background" not in reopened.info().features


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [("lite0", {}, "lite0"), ("lite0", {"resize": 96}, "lite0"), ("lite0", {"unit": False}, None), ("resnet32", {}, None)],
)
def test_a_background_is_that_of_the_default_features(name: str, options: dict, expected: str | None, installed: None) -> None:
    assert extractors.background_of(extractors.create(name, options, 64, 0)) == expected


def test_a_network_with_other_weights_has_no_background(installed: None) -> None:
    trained = extractors.create("lite0", {}, 64, 0)
    with torch.no_grad():
        next(iter(trained.parameters())).mul_(1.001)
    assert extractors.background_of(trained) is None


@pytest.mark.slow  # test_export.py has a smaller network
def test_an_onnx_file_holds_the_network(tmp_path: Path, installed: None) -> None:
    """The export compares onnxruntime's answers with the model's and raises an error if they differ."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = taught(tmp_path / "model", "grass", "sky")
    model.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    shown = photographs("sky", 3, seed=1)
    found = session.run(["name"], {"images": np.stack([np.asarray(image) for image in shown])})[0]
    assert found.tolist() == [one.label for one in model.predict(shown)]
    assert [path.name for path in tmp_path.glob("*.onnx*")] == ["model.onnx"], "one file"


@pytest.mark.parametrize("size", [(1200, 1100), (300, 700), (130, 100)])
def test_a_png_is_inspected_at_the_size_of_a_jpeg(size):
    sides = []
    for kind in ("PNG", "JPEG"):
        file = io.BytesIO()
        Image.new("RGB", size, (200, 30, 30)).save(file, kind)
        sides.append(look(images_from(file.getvalue())).side)
    assert sides[0] == sides[1] <= 2 * INSPECTED_SIDE
