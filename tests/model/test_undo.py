"""Undo, rename and join: the state before the last change is restored to the bit, and nothing of it stays afterwards."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from model.drawing import alike, answers, draw

from amgc.files import FileFormatError
from amgc.model import Model, ModelError


def contents(model: Model) -> dict[str, bytes]:
    """Return the files of the classes and the extractor that the manifest names as current."""
    named = json.loads((model.path / "manifest.json").read_text())["files"].values()
    return {entry["name"]: (model.path / entry["name"]).read_bytes() for entry in named}


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which states for undo are kept."""
    monkeypatch.setenv("AMGC_STATE", str(tmp_path / "state"))
    return tmp_path / "state" / "undo"


CHANGES = {
    "learn a new class": lambda model, other: model.learn(draw("owl", 10), "owl"),
    "learn a known class": lambda model, other: model.learn(draw("cat", 10, seed=5), "cat"),
    "rename": lambda model, other: model.rename("dog", "wolf"),
    "join": lambda model, other: model.rename("dog", "cat", join=True),
    "merge": lambda model, other: model.merge(other),
}


@pytest.mark.parametrize("covariance", ["shared", "full"])
@pytest.mark.parametrize("change", CHANGES)
def test_undo_restores_every_bit_of_the_state_before_a_change(make, tmp_path, change, covariance):
    model = make("cat", "dog", covariance=covariance)
    second = Model.create(tmp_path / "second", model.path, covariance=covariance)
    second.learn(draw("fox"), "fox")
    before, said, classes = contents(model), answers(model), model.classes
    CHANGES[change](model, second)
    assert contents(model) != before and model.info().can_undo
    assert model.undo() is model
    assert contents(model) == before and answers(model) == said == answers(Model.open(model.path))
    assert model.classes == classes and not model.info().can_undo
    assert {path.name for path in model.path.iterdir()} - {".lock"} == {"manifest.json", *before}, "nothing else is left"
    with pytest.raises(ModelError, match="no change to undo"):
        model.undo()
    CHANGES[change](model, second)  # the way forward is open again
    assert model.info().can_undo


def test_after_forgetting_no_earlier_state_is_left(make, states):
    model = make("cat", "dog")
    model.learn(draw("owl", 5), "owl")
    assert list(states.iterdir())
    model.forget("dog")
    assert not model.info().can_undo and len(list(model.path.glob("classes-*"))) == 1 and not list(states.iterdir())
    with pytest.raises(ModelError, match="none after `forget`"):
        model.undo()


def test_undoing_the_first_lesson_leaves_a_model_that_has_seen_nothing(make):
    model = make("cat", "dog")
    model.undo()
    assert model.classes == {} and model.info().features["dim"] is None
    assert [path.name for path in model.path.iterdir() if path.suffix == ".safetensors"] == []
    model.learn(draw("owl"), "owl")
    assert model.classes == {"owl": 30}


def test_one_earlier_state_is_kept_outside_of_the_folder_and_info_says_so(make, states):
    model = make("cat", "dog")
    for number in range(3):
        model.learn(draw("owl", 5, seed=number), "owl")
    files = {path.name for path in model.path.iterdir()} - {".lock"}
    assert len(files) == 3 and files == set(model.info().bytes)
    assert len(list(states.iterdir())) == 1 and not any(path.stat().st_mode & 0o077 for path in states.iterdir())
    assert any("the state before the last change, for undo" in text for text in model.info().kept)
    model.undo()
    assert model.classes["owl"] == 10
    model.learn(draw("owl", 5, seed=2), "owl")
    model.drop_previous()
    assert not model.info().can_undo and not list(states.iterdir())
    assert not any("undo" in text for text in model.info().kept)
    assert model.classes["owl"] == 15


def test_another_process_sees_the_undo_and_can_undo_a_change_that_it_did_not_make(make):
    model = make("cat", "dog")
    elsewhere = Model.open(model.path)
    before = answers(model)
    model.learn(draw("owl"), "owl")
    elsewhere.undo()
    assert model.refresh() and answers(model) == before
    model.learn(draw("owl"), "owl")
    elsewhere.drop_previous()
    assert model.refresh() and not model.info().can_undo


def test_a_damaged_earlier_state_is_refused_and_the_model_stays(make, states):
    model = make("cat", "dog")
    model.learn(draw("owl"), "owl")
    (before,) = states.glob("*/classes-*")
    before.write_bytes(before.read_bytes()[:-1] + b"?")
    with pytest.raises(FileFormatError, match="checksum does not match"):
        model.undo()
    assert answers(Model.open(model.path)) == answers(model) and "owl" in model.classes


def test_a_model_of_an_earlier_version_without_an_earlier_state_opens(make):
    model = make("cat", "dog")
    path = model.path / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["undo"], manifest["checksum"]
    before = {name: value for name, value in manifest.items() if name not in ("kind", "version")}
    for previous in (None, before):  # earlier versions listed the state before the last change in the manifest
        path.write_text(json.dumps(manifest | {"previous": previous}))
        assert not Model.open(model.path).info().can_undo


def test_a_copy_of_the_folder_has_no_earlier_state(make, states, monkeypatch):
    model = make("cat", "dog")
    before = contents(model)
    model.learn(draw("owl"), "owl")
    there = b"".join(path.read_bytes() for path in model.path.iterdir())
    assert not any(name.startswith("classes") and content in there for name, content in before.items())
    elsewhere = Path(shutil.copytree(model.path, model.path.with_name("copy")))
    monkeypatch.setenv("AMGC_STATE", str(model.path / "of another machine"))
    copy = Model.open(elsewhere)
    assert not copy.info().can_undo
    with pytest.raises(ModelError, match="no change to undo"):
        copy.undo()
    copy.rename("owl", "bird").undo()
    assert "owl" in copy.classes


def test_states_are_deleted_after_a_week(make, states, tmp_path):
    model, other = make("cat", "dog"), Model.create(tmp_path / "other", filters=2)
    model.rename("cat", "lynx")
    (old,) = states.iterdir()
    other.learn(draw("owl"), "owl")
    assert old.exists()
    week = time.time() - 8 * 24 * 3600
    os.utime(old, (week, week))
    other.rename("owl", "bird")
    assert not old.exists() and not model.info().can_undo


@pytest.mark.parametrize("obstacle", ["a file", "no home"])
def test_where_no_state_can_be_kept_changes_are_made_all_the_same(make, tmp_path, monkeypatch, obstacle):
    model = make("cat", "dog")
    (tmp_path / "file").write_text("")
    if obstacle == "a file":
        monkeypatch.setenv("AMGC_STATE", str(tmp_path / "file"))
    else:
        for name in ("AMGC_STATE", "XDG_STATE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", no_home)
    model.rename("cat", "lynx")
    assert "lynx" in Model.open(model.path).classes and not model.info().can_undo
    with pytest.raises(ModelError, match="no change to undo"):
        model.undo()
    model.forget("lynx")
    assert len(list(model.path.glob("classes-*"))) == 1


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("token", ["../../x", "/etc", "x" * 32])
def test_a_strangers_manifest_names_no_folder_to_delete(make, token):
    model = make("cat", "dog")
    manifest = json.loads((model.path / "manifest.json").read_text())
    del manifest["checksum"]
    (model.path / "manifest.json").write_text(json.dumps(manifest | {"undo": token}))
    with pytest.raises(FileFormatError, match="undo must be"):
        Model.open(model.path)


def test_a_merged_model_and_an_extractor_carry_no_earlier_state(make, tmp_path):
    model = make("cat", "dog")
    model.learn(draw("owl"), "owl")
    second = Model.create(tmp_path / "second", model.path)
    second.learn(draw("fox"), "fox")
    merged = Model.merged([model, second], tmp_path / "merged")
    assert not merged.info().can_undo and len(list(merged.path.glob("*.safetensors"))) == 2


# ---- rename and join ------------------------------------------------------------------------------------------------------


def test_a_renamed_class_keeps_its_place_and_its_answers(make):
    model = make("cat", "dog", "owl")
    before = [one.probabilities for one in model.predict(draw("dog", 5, seed=9), top=3)]
    model.rename("dog", "собака")
    assert model.classes == {"cat": 30, "собака": 30, "owl": 30}
    found = Model.open(model.path).predict(draw("dog", 5, seed=9), top=3)
    assert {one.label for one in found} == {"собака"}
    for one, probabilities in zip(found, before, strict=True):
        assert one.probabilities == pytest.approx(probabilities, rel=1e-9)


@pytest.mark.parametrize("covariance", ["shared", "full"])
def test_two_joined_classes_answer_as_if_learned_as_one(make, covariance):
    model = make("cat", "dog", "owl", covariance=covariance)
    model.rename("dog", "cat", join=True)
    one = make(name="one", covariance=covariance)
    one.learn_all({"cat": [*draw("cat"), *draw("dog")], "owl": draw("owl")})
    assert model.classes == one.classes == {"cat": 60, "owl": 30}
    assert alike(model, Model.open(one.path), tolerance=1e-4)


def test_a_name_that_is_taken_or_unknown_or_invalid_is_refused(make):
    model = make("cat", "dog")
    before = answers(model)
    for old, new, said in (
        ("cat", "dog", "already has a class 'dog'. To make one class of both, join"),
        ("owl", "fox", "no class 'owl'"),
        ("cat", "cat", "is already called 'cat'"),
        ("cat", " ", "is empty"),
    ):
        with pytest.raises(ValueError, match=said):
            model.rename(old, new)
    assert answers(model) == before and Model.open(model.path).info().generation == model.info().generation


# ---- the same image twice -------------------------------------------------------------------------------------------------


def test_an_image_that_is_given_twice_in_a_lesson_counts_once_and_is_named(make, tmp_path):
    from PIL import Image

    images = draw("cat", 4)
    for number, pixels in enumerate([*images, images[1]]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    Image.open(tmp_path / "2.png").save(tmp_path / "5.bmp")  # other bytes, the same pixels
    model = make("dog")
    learned = model.learn(sorted(path for path in tmp_path.iterdir() if path.is_file()), "cat")
    assert learned.added == {"cat": 4}
    assert [Path(name).name for name in learned.repeated] == ["4.png", "5.bmp"]


@pytest.mark.cpus
@pytest.mark.parametrize("covariance", ["shared", "full"])
def test_an_image_that_was_learned_in_an_earlier_lesson_is_named(make, covariance):
    images, others = draw("cat", 10), draw("cat", 4, seed=5)
    model = make("dog", count=4, covariance=covariance)
    model.learn(images[:8], "cat")
    again = model.learn([*others, *images[2:5]], "cat")
    assert again.learned_before == ("image 5", "image 6", "image 7") and again.added == {"cat": 7}
    assert model.learn(images[8:], "cat").learned_before == ()
    assert model.learn(images[:1], "owl").learned_before == ()  # of another class


def test_an_image_may_be_given_to_two_classes(make):
    model = make()
    learned = model.learn_all({"cat": draw("cat", 5), "pet": draw("cat", 5), "dog": draw("dog", 5)})
    assert learned.added == {"cat": 5, "pet": 5, "dog": 5} and learned.repeated == ()


# ---- in notebooks -----------------------------------------------------------------------------------------------------------


def test_a_model_shows_its_classes_in_a_notebook_and_escapes_their_names(make):
    model = make("cat", "<b>dog</b>")
    assert repr(model) == f"Model({str(model.path)!r}, 2 classes from 60 images, patches with 48 features)"
    shown = model._repr_html_()
    assert "<td>&lt;b&gt;dog&lt;/b&gt;</td><td>30</td>" in shown and "<b>dog" not in shown
    empty = make(name="empty")
    assert "0 classes, features not fitted yet" in repr(empty) and "<table>" not in empty._repr_html_()


def test_evaluation_takes_images_by_class_as_learning_does(make):
    model = make("cat", "dog")
    images = {"cat": draw("cat", 6, seed=3), "dog": draw("dog", 5, seed=3), "owl": draw("owl", 4, seed=3)}
    found = model.evaluate(images)
    labels = [label for label, own in images.items() for _ in own]
    same = model.evaluate([image for own in images.values() for image in own], labels)
    assert found.to_json() == same.to_json() and found.unseen == {"owl": 4}
    with pytest.raises(ValueError, match="no labels"):
        model.evaluate(images, labels)
    with pytest.raises(ValueError, match="needs the labels"):
        model.evaluate(images["cat"])
