"""A model with a privacy budget: noise once a lesson, a record of what was spent, nothing beyond the budget."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from model.drawing import draw

from amgc.cli.main import main
from amgc.core.background import background
from amgc.core.privacy import BudgetError, Privacy
from amgc.features.lite import is_installed
from amgc.files import FileFormatError
from amgc.model import Model, ModelError
from amgc.model.folder import Folder
from amgc.model.info import read_info

KINDS = ("cat", "dog", "owl")


@pytest.fixture
def private(tmp_path):
    def make(name: str = "private", **settings) -> Model:
        return Model.create(tmp_path / name, "convnet", size=16, dim=8, privacy=Privacy(**{"epsilon": 8.0} | settings))

    return make


def lesson(count: int = 60) -> dict[str, np.ndarray]:
    return {kind: draw(kind, count) for kind in KINDS}


def test_the_budget_is_spent_by_class_shown_and_never_exceeded(private):
    model = private(lessons=2)
    learned = model.learn_all(lesson())
    assert learned.added == dict.fromkeys(KINDS, 60)
    model.learn(draw("owl", 30, 1), "owl")
    spent = model.info().privacy["spent"]
    assert spent["owl"] == pytest.approx(8.0) and spent["cat"] == pytest.approx(
        Privacy(8.0).epsilon_of(Privacy(8.0).budget / 2)
    )
    before = (model.path / "manifest.json").read_bytes()
    with pytest.raises(BudgetError, match="budget of 'owl' is spent"):
        model.learn_all({"cat": draw("cat", 9), "owl": draw("owl", 9)})
    assert (model.path / "manifest.json").read_bytes() == before
    again = Model.open(model.path)
    assert again.info().privacy["spent"] == spent and read_info(model.path) == again.info() == model.info()
    with pytest.raises(BudgetError):
        again.learn(draw("owl", 9), "owl")


def test_another_process_cannot_spend_the_same_budget(private):
    model = private()
    other = Model.open(model.path)
    model.learn_all(lesson())
    with pytest.raises(BudgetError):
        other.learn_all(lesson())  # its state in memory has not spent anything


def test_stored_numbers_have_noise_and_no_earlier_state_is_stored(private):
    model = private(epsilon=0.5)
    model.learn_all(lesson())
    model.rename("owl", "bird")
    assert not model.info().can_undo and list(model.info().classes) == ["cat", "dog", "bird"]
    assert model.info().classes != dict.fromkeys(["cat", "dog", "bird"], 60)
    with pytest.raises(ModelError, match="private model cannot be undone"):
        model.undo()
    assert len(list(model.path.glob("classes-*"))) == 1
    assert json.loads((model.path / "manifest.json").read_text())["undo"] == ""


def test_forgetting_keeps_the_record_and_the_last_class_cannot_be_forgotten(private):
    model = private()
    model.learn_all(lesson())
    model.forget("dog").forget("owl")
    assert model.info().privacy["spent"]["dog"] == pytest.approx(8.0)
    with pytest.raises(BudgetError):
        model.learn(draw("dog", 9), "dog")
    with pytest.raises(ModelError, match="last class of a private model"):
        model.forget("cat")


def test_forgetting_on_the_command_line_gives_the_statistics_of_the_sums_without_the_class(private):
    model = private()
    model.learn_all(lesson())
    expected = copy.deepcopy(model._state.classifier).forget("dog")
    assert main(["forget", str(model.path), "dog"]) == 0
    found = Model.open(model.path)._state.classifier
    assert found.statistics_.classes == ["cat", "owl"] and found.spent_ == expected.spent_
    assert found.sums_.second.equal(expected.sums_.second) and found.statistics_.mean.equal(expected.statistics_.mean)
    with pytest.raises(ModelError, match="private model cannot be undone"):
        Folder(model.path).undo()


def test_a_class_that_gets_the_name_of_a_forgotten_one_has_spent_both_budgets(private):
    model = private(lessons=2)
    model.learn_all(lesson())
    loss = Privacy(8.0, lessons=2).loss
    model.forget("dog").rename("owl", "dog")
    assert model._state.classifier.sums_.spent == pytest.approx({"cat": loss, "dog": 2 * loss})
    assert read_info(model.path).privacy["spent"] == pytest.approx(model._state.classifier.spent_)
    assert "owl" not in model.info().privacy["spent"]
    with pytest.raises(BudgetError, match="budget of 'dog' is spent"):
        model.learn(draw("dog", 9), "dog")


def test_vectors_can_have_a_budget_with_a_centre_of_the_user_or_none(tmp_path):
    random = np.random.default_rng(0)
    given = {kind: random.normal(size=(60, 4)) + 9 * np.eye(4)[place] for place, kind in enumerate(KINDS)}
    for name, centre in (("none", None), ("chosen", [1.0, 2.0, 3.0, 4.0])):
        model = Model.create(tmp_path / name, "vectors", privacy=Privacy(8.0, centre=centre))
        model.learn_all(given)
        model = Model.open(model.path)
        assert model._state.classifier.privacy_.centre == (centre and tuple(centre))
        assert model.evaluate(given).accuracy > 0.9 and not model.info().can_undo
        with pytest.raises(BudgetError):
            model.learn(given["owl"], "owl")
    with pytest.raises(ValueError, match="centre has 3 numbers, but rows have 4"):
        Model.create(tmp_path / "wrong", "vectors", privacy=Privacy(8.0, centre=[0.0] * 3)).learn_all(given)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("privacy", "epsilon"), -1.0, "epsilon must be a number above 0"),
        (("privacy", "delta"), 2.0, "delta must be a number"),
        (("privacy", "lessons"), 1.5, r"made\.privacy\.lessons must be int"),
        (("privacy",), None, r"made\.classifier\.epsilon must be that of made\.privacy, None"),
        (("classifier", "epsilon"), 100.0, r"made\.classifier\.epsilon must be that of made\.privacy, 8\.0"),
        (("classifier", "centre"), "x", r"made\.classifier\.centre must be"),
        (("classifier", "centre"), [0.0] * 7, "the centre has 7 numbers for 8 features"),
        (("fewest",), 0, r"made\.fewest must be at least 1"),
    ],
)
def test_settings_of_privacy_in_a_damaged_manifest_are_named(private, place, value, message):
    model = private()
    path = model.path / "manifest.json"
    content = json.loads(path.read_text())
    *above, last = ("made", *place)
    within = content
    for name in above:
        within = within[name]
    within[last] = value
    del content["checksum"]
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=message):
        Model.open(model.path)


def test_a_manifest_without_the_budget_of_its_classes_is_refused(private):
    model = private()
    model.learn_all(lesson(9))
    path = model.path / "manifest.json"
    content = json.loads(path.read_text())
    del content["checksum"], content["made"]["privacy"]
    content["made"]["classifier"] = {"covariance": "shared"}
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="it has a privacy budget and the manifest has none"):
        Model.open(model.path)


def test_a_small_lesson_does_not_narrow_a_model_that_has_learned_many_images(tmp_path):
    random = np.random.default_rng(0)
    means = random.normal(size=(4, 600))
    vectors = [mean + 0.5 * random.normal(size=(count, 600)) for mean, count in zip(means, (60, 60, 5, 5), strict=True)]
    for name, first, later, narrow in (("wide", (0, 1), (2,), False), ("narrow", (2, 3), (0,), True)):
        model = Model.create(tmp_path / name, "vectors", privacy=Privacy(8.0))
        model.learn_all({str(place): vectors[place] for place in first})
        width = model._state.classifier.sums_.dim
        assert (width < 200) == narrow
        model.learn_all({str(place): vectors[place] for place in later})
        assert model._state.classifier.sums_.dim == width
        again = Model.open(model.path).evaluate({str(later[0]): vectors[later[0]]})
        assert again.accuracy > 0.5 or not narrow  # five images are too few for all directions


def test_sites_merge_their_noisy_sums_and_a_copy_is_noticed(private, tmp_path):
    one, other = private("one"), private("other")
    one.learn_all({kind: draw(kind, 60) for kind in KINDS[:2]})
    other.learn_all({kind: draw(kind, 60, 5) for kind in KINDS[1:]})
    merged = Model.merged([one, other], tmp_path / "both")
    spent, loss = merged.info().privacy["spent"], Privacy(8.0).loss
    assert spent["cat"] == pytest.approx(8.0) and spent["dog"] == pytest.approx(Privacy(8.0).epsilon_of(2 * loss))
    with pytest.raises(BudgetError):
        merged.learn(draw("dog", 5), "dog")
    with pytest.raises(ModelError, match="from the same images"):
        merged.merge(merged)
    plain = Model.create(tmp_path / "plain", "convnet", size=16, dim=8)
    plain.learn_all(lesson(5))
    empty = Model.create(tmp_path / "empty", "convnet", size=16, dim=8)
    for public in (plain, empty):
        with pytest.raises(ModelError, match="both models must have a privacy budget"):
            Model.merged([one, public], tmp_path / "mixed")
        with pytest.raises(ModelError, match="both models must have a privacy budget"):
            public.merge(one)


def test_info_says_what_others_can_find_out(private, make):
    model = private(epsilon=2.0)
    model.learn_all(lesson(9))
    shown = " ".join(model.info().reveals)
    assert "(ε = 2, δ = 1e-05)-differential privacy for each image" in shown and "spent so far: ε = 2 of 2" in shown
    assert any("with noise" in line for line in model.info().kept)
    shown = " ".join(make("cat", "dog").info().reveals)
    assert (
        "whether a given image was learned" in shown
        and "probabilities of the answers" in shown
        and "two versions" in shown
        and "merged model" in shown
    )
    assert "this model has none" in shown


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"features": "patches"}, "private model cannot use patches"),
        ({"filters": 6}, "private model cannot use patches"),
        ({"features": "convnet", "covariance": "full"}, "one covariance for all classes"),
    ],
)
def test_what_would_depend_on_images_without_noise_is_refused(tmp_path, how, message):
    with pytest.raises(ValueError, match=message):
        Model.create(tmp_path / "model", privacy=Privacy(1.0), **how)
    assert not (tmp_path / "model").exists()


def test_features_are_not_chosen_by_the_images(tmp_path, monkeypatch):
    assert Model.create(tmp_path / "a", privacy=Privacy(1.0)).info().features["name"] == "lite0"
    monkeypatch.setattr("amgc.model.extractors.is_installed", lambda name: False)
    with pytest.raises(ValueError, match="lite0 is not installed"):
        Model.create(tmp_path / "b", privacy=Privacy(1.0))


def test_a_private_model_is_exported_with_its_projection(make, tmp_path):
    pytest.importorskip("onnxruntime")
    public = make("cat", "dog")  # patches that are fitted on other images
    model = Model.create(tmp_path / "private", public.path, privacy=Privacy(8.0, directions=4))
    model.learn_all(lesson())
    assert model.predict(draw("cat", 2)) and len(model._state.classifier.coef_[0]) == 4
    assert model.export_onnx(tmp_path / "model.onnx").difference < 1e-4


# ---- lessons of few images -------------------------------------------------------------------------------------------


@pytest.fixture
def careful(tmp_path):
    """A model that learns at least five images of a class at a time."""
    model = Model.create(tmp_path / "careful", "convnet", size=16, dim=8, fewest=5)
    model.learn_all({"cat": draw("cat"), "dog": draw("dog")})
    return model


def test_a_lesson_of_too_few_images_is_refused_and_nothing_changes(careful):
    before = (careful.path / "manifest.json").read_bytes()
    with pytest.raises(ModelError, match="at least 5 images of a class at a time, and there are 4 of 'cat'"):
        careful.learn(draw("cat", 4, 1), "cat")
    with pytest.raises(ModelError, match="there are 1 of 'owl'"):
        Model.open(careful.path).learn_all({"cat": draw("cat", 9, 1), "owl": draw("owl", 1)})
    assert (careful.path / "manifest.json").read_bytes() == before


def test_too_few_images_are_learned_in_memory_if_wanted(careful):
    assert careful.learn(draw("cat", 4, 1), "cat", hold=1).held == {"cat": 4}
    assert careful.classes["cat"] == 34 and Model.open(careful.path).classes["cat"] == 30


@pytest.mark.parametrize("wrong", [{"fewest": 0}, {"fewest": 2, "privacy": Privacy(1.0)}])
def test_a_wrong_number_of_images_is_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="fewest must be at least 1"):
        Model.create(tmp_path / "model", "convnet", **wrong)


# ---- the centre ------------------------------------------------------------------------------------------------------


def test_the_centre_of_a_private_model_does_not_depend_on_its_images_and_is_stored(private, tmp_path):
    one, other = private("one"), private("other")
    one.learn_all(lesson(9))
    centre = one._state.classifier.privacy_.centre
    assert len(centre) == 8 and any(centre)
    other.learn_all({kind: 255 - draw(kind, 9) for kind in KINDS})
    assert other._state.classifier.privacy_.centre == centre
    assert Model.open(one.path)._state.classifier.privacy_.centre == centre
    chosen = Model.create(tmp_path / "chosen", "convnet", size=16, dim=8, privacy=Privacy(8.0, centre=[1.0] * 8))
    chosen.learn_all(lesson(9))
    assert chosen._state.classifier.privacy_.centre == (1.0,) * 8
    with pytest.raises(ValueError, match="same clip, directions, centre"):
        one.merge(chosen)


# ---- the background --------------------------------------------------------------------------------------------------


def test_a_private_model_of_photographs_uses_what_is_known_of_public_images(tmp_path, monkeypatch):
    if not is_installed("lite0"):
        pytest.skip("the extra photos is not installed")
    model = Model.create(tmp_path / "model", "lite0", size=64, privacy=Privacy(8.0, lessons=2))
    model.learn_all(lesson(12))
    privacy = model._state.classifier.privacy_
    assert privacy.background == "lite0" and privacy.centre == tuple(background("lite0").mean.tolist())
    assert model._state.classifier.sums_.dim < 664 / 3
    again = Model.open(model.path)
    assert again.predict(draw("cat", 3)) == model.predict(draw("cat", 3))
    second = Model.create(tmp_path / "second", model.path, privacy=Privacy(8.0, lessons=2))
    second.learn_all({kind: draw(kind, 12, 1) for kind in KINDS})
    assert Model.merged([model, second], tmp_path / "merged").info().privacy is not None
    monkeypatch.setattr("amgc.core.incremental.checksum", lambda name: "another")
    with pytest.raises(FileFormatError, match="another version"):
        Model.open(model.path)
