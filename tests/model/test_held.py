"""Lessons of few images are answered with at once, and written together once there are enough."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from model.drawing import answers, draw

from amgc.model import Model, ModelError

COVARIANCES = ("full", "lowrank", "shared", "diagonal")


@pytest.fixture
def taught(tmp_path: Path) -> Model:
    return fresh(tmp_path / "taught")


def fresh(path: Path, **options: str) -> Model:
    model = Model.create(path, "convnet", size=16, dim=8, **options)  # type: ignore[arg-type]
    model.learn_all({"cat": draw("cat"), "dog": draw("dog")})
    return model


def folder(model: Model) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model.path.iterdir() if path.name != ".lock"}


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_model_answers_with_lessons_in_memory_as_if_they_were_written(tmp_path, covariance):
    one, whole = fresh(tmp_path / "one", covariance=covariance), fresh(tmp_path / "whole", covariance=covariance)
    more = draw("owl", 4)
    before = folder(one)
    assert one.learn(more[:1], "owl", hold=5).held == {"owl": 1}
    assert one.learn(more[1:], "owl", hold=5).held == {"owl": 4}
    assert one.learn(draw("cat", 2, seed=3), "cat", hold=5).held == {"owl": 4, "cat": 2}
    whole.learn(more, "owl")
    whole.learn(draw("cat", 2, seed=3), "cat")
    assert one.classes == whole.classes == {"cat": 32, "dog": 30, "owl": 4}
    found, expected = (model.predict([*draw("cat", 3, 9), *draw("owl", 3, 9)], top=3) for model in (one, whole))
    assert [each.label for each in found] == [each.label for each in expected]
    tolerance = 1e-2 if covariance == "lowrank" else 1e-5  # its factor is rounded in the folder
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.probabilities == pytest.approx(theirs.probabilities, abs=tolerance)
    assert folder(one) == before and Model.open(one.path).classes == {"cat": 30, "dog": 30}
    assert one.info().held == {"owl": 4, "cat": 2} and one.info().bytes == Model.open(one.path).info().bytes


def test_once_there_are_enough_images_of_a_class_they_are_written_together(taught, tmp_path):
    more = draw("cat", 6, 1)
    generation = taught.info().generation
    for first in (0, 2):
        taught.learn(more[first : first + 2], "cat", hold=5)
    taught.learn(draw("owl", 2), "owl", hold=5)
    assert taught.info().generation == generation
    learned = taught.learn(more[4:], "cat", hold=5)
    assert learned.added == {"cat": 2} and learned.held == {"owl": 2}
    stored = Model.open(taught.path)
    assert stored.classes == {"cat": 36, "dog": 30} and taught.classes == {"cat": 36, "dog": 30, "owl": 2}
    once = fresh(tmp_path / "once")
    once.learn(more, "cat")
    found, expected = (one.state.classifier.statistics_.mean for one in (stored, once))
    np.testing.assert_allclose(found, expected, rtol=1e-6)  # float32 in a file


def test_enough_images_are_written_at_once_and_nothing_is_lost_that_is_written_later(taught):
    assert taught.learn(draw("owl", 5), "owl", hold=5).held == {}
    taught.learn(draw("owl", 3, 1), "owl", hold=5)
    taught.learn(draw("fox", 1), "fox", hold=5)
    said = answers(taught, "owl", "fox")
    assert taught.write_held() == {"owl": 3, "fox": 1} and taught.write_held() == {}
    assert Model.open(taught.path).classes == taught.classes == {"cat": 30, "dog": 30, "owl": 8, "fox": 1}
    assert answers(taught, "owl", "fox") == said


def test_what_leaves_the_model_has_no_lesson_in_memory(taught, tmp_path):
    taught.learn(draw("owl", 3), "owl", hold=5)
    assert Model.unpacked(taught.packed(), tmp_path / "unpacked").classes == {"cat": 30, "dog": 30}
    assert Model.merged([taught], tmp_path / "merged").classes == {"cat": 30, "dog": 30}
    pytest.importorskip("onnxruntime")
    assert taught.export_onnx(tmp_path / "model.onnx").classes == ("cat", "dog")


def test_a_new_model_can_hold_its_first_lesson(tmp_path):
    model = Model.create(tmp_path / "model", filters=4)
    model.learn(draw("cat", 3), "cat", hold=5)
    model.learn(draw("dog", 3), "dog", hold=5)
    assert {answer.label for answer in model.predict([*draw("cat", 2), *draw("dog", 2)])} <= {"cat", "dog"}
    again = Model.open(model.path)
    assert again.classes == {} and again.info().features["dim"] == model.info().features["dim"]
    model.write_held()
    assert again.refresh() and again.classes == {"cat": 3, "dog": 3}


def test_classes_in_memory_are_renamed_joined_and_forgotten(taught):
    before = folder(taught)
    for kind, count in (("owl", 2), ("fox", 1)):
        taught.learn(draw(kind, count), kind, hold=5)
    with pytest.raises(ModelError, match="already has a class 'fox'"):
        taught.rename("owl", "fox")
    with pytest.raises(ModelError, match="already has a class 'cat'"):
        taught.rename("owl", "cat")
    with pytest.raises(ModelError, match="no class 'bee'"):
        taught.rename("bee", "ant")
    taught.rename("owl", "fox", join=True)
    assert taught.classes == {"cat": 30, "dog": 30, "fox": 3}
    taught.rename("fox", "cat", join=True)
    assert taught.classes == {"cat": 33, "dog": 30} and folder(taught) == before
    taught.rename("cat", "lynx")
    assert taught.classes == {"lynx": 33, "dog": 30} and Model.open(taught.path).classes == {"lynx": 30, "dog": 30}
    taught.rename("lynx", "dog", join=True)
    assert taught.classes == {"dog": 63} and taught.held.counts == {"dog": 3}
    taught.learn(draw("owl", 1), "owl", hold=5)
    assert taught.info().can_undo
    assert taught.forget("owl").classes == {"dog": 63}
    assert not taught.info().can_undo, "no earlier state has it either"
    assert taught.forget("dog").classes == {} and not taught.held.counts


def test_changes_of_another_process_and_lessons_in_memory_go_together(taught):
    taught.learn(draw("owl", 2), "owl", hold=5)
    Model.open(taught.path).learn(draw("owl", 6, 1), "owl")
    assert taught.refresh() and taught.classes == {"cat": 30, "dog": 30, "owl": 8}
    Model.open(taught.path).forget("owl")
    assert taught.refresh() and taught.classes["owl"] == 2, "what another process forgot was not taught here"


def test_lessons_in_memory_are_restored(taught):
    stored = taught.stored
    taught.learn(draw("owl", 2), "owl", hold=5)
    held = taught.held
    taught.learn(draw("owl", 4, 1), "owl", hold=5)
    assert taught.restore(stored, held).classes == {"cat": 30, "dog": 30, "owl": 2} == {**stored.manifest.classes, "owl": 2}
    assert taught.restore(stored).classes == stored.manifest.classes


def test_a_model_that_is_replaced_by_one_of_other_features_says_what_is_lost(taught, tmp_path, caplog):
    taught.learn(draw("owl", 2), "owl", hold=5)
    other = Model.create(tmp_path / "other", filters=4)
    other.learn(draw("bee"), "bee")
    with caplog.at_level(logging.WARNING, "amgc.model"):
        Model.open(taught.path).restore(other.stored)
        taught.refresh()
    assert "lost were 2 images in memory" in caplog.text and taught.classes == {"bee": 30} and not taught.held.counts


def test_a_full_disk_loses_nothing_in_memory(taught, monkeypatch):
    taught.learn(draw("owl", 4), "owl", hold=5)
    said = answers(taught, "owl")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("amgc.model.folder.files.write_json", full)
        for change in (lambda: taught.learn(draw("owl", 1, 1), "owl", hold=5), taught.write_held):
            with pytest.raises(OSError, match="No space"):
                change()
    assert answers(taught, "owl") == said and taught.held.counts == {"owl": 4}
    assert json.loads((taught.path / "manifest.json").read_text())["classes"] == {"cat": 30, "dog": 30}
