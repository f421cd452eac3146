"""Models learn, predict, forget, merge and are opened again."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from model.drawing import KINDS, alike, answers, draw

from amgc.features import build
from amgc.features.weights import save_extractor
from amgc.model import Model, ModelError

pytestmark = pytest.mark.cpus


def right(model: Model, *kinds: str) -> float:
    """Return the accuracy on new drawings."""
    found = [one.label == kind for kind in kinds for one in model.predict(draw(kind, 20, seed=5))]
    return float(np.mean(found))


def test_classes_are_learned_one_after_another_and_recognised(make):
    model = make()
    for kind in KINDS:
        learned = model.learn(draw(kind), kind)
        assert learned.added == {kind: 30} and learned.again == ()
    assert list(model.classes) == list(KINDS) and right(model, *KINDS) > 0.6  # one in five by chance


def test_a_model_opened_again_answers_the_same(make):
    model = make("cat", "dog")
    assert answers(Model.open(model.path)) == answers(model)


def test_one_call_or_several_lead_to_the_same_answers(make, tmp_path):
    at_once = make("cat", "dog", "owl", name="at once")
    stepwise = Model.create(tmp_path / "stepwise", next(at_once.path.glob("extractor-*")))  # the same extractor
    for kind in ("cat", "dog", "owl"):
        stepwise.learn(draw(kind)[:11], kind)
        stepwise.learn(draw(kind)[11:], kind)
    assert alike(at_once, stepwise)


@pytest.mark.parametrize("features", ["convnet", "patches"])
def test_disjoint_halves_of_sites_that_never_saw_the_others_merge_exactly(tmp_path, features):
    file = tmp_path / "extractor.safetensors"
    teacher = Model.create(tmp_path / "teacher", features, **({"filters": 6} if features == "patches" else {"dim": 16}))
    teacher.learn_all({"seed": draw("bee")})
    extractor = next(teacher.path.glob("extractor-*"))
    file.write_bytes(extractor.read_bytes())
    parts = [("cat", "dog"), ("owl", "fox")]
    sites = [Model.create(tmp_path / f"site {number}", file) for number in range(2)]
    whole = Model.create(tmp_path / "whole", file)
    for site, part in zip(sites, parts, strict=True):
        site.learn_all({kind: draw(kind) for kind in part})
    whole.learn_all({kind: draw(kind) for part in parts for kind in part})
    merged = Model.merged(sites, tmp_path / "merged")
    assert merged.classes == whole.classes
    assert alike(merged, whole) and alike(Model.open(tmp_path / "merged"), whole)


def test_the_same_class_from_two_sites_is_one_class(make, tmp_path):
    one = make("cat", "dog", name="one")
    other = Model.create(tmp_path / "other", one.path)
    other.learn_all({"cat": draw("cat", 20, seed=7), "dog": draw("dog", 30, seed=7)})
    merged = Model.merged([one, other], tmp_path / "merged")
    assert merged.classes == {"cat": 50, "dog": 60}
    assert all(0 <= fit <= 1 for _, fit, _ in answers(merged))


def test_models_with_different_extractors_are_not_merged(make, tmp_path):
    one, other = make("cat", name="one"), make("dog", name="other")
    before = answers(one)
    with pytest.raises(ModelError, match=r"different extractors.*create the others with that model"):
        one.merge(other)
    with pytest.raises(ModelError, match="different extractors"):
        Model.merged([one, other], tmp_path / "merged")
    assert answers(one) == before and not (tmp_path / "merged").exists()


def test_a_class_learned_again_adds_to_its_statistics_and_is_reported(make):
    model = make("cat", "dog")
    learned = model.learn_all({"cat": draw("cat", 10, seed=3), "owl": draw("owl")})
    assert learned.again == ("cat",) and model.classes == {"cat": 40, "dog": 30, "owl": 30}
    together = Model.merged([model], model.path.parent / "again")
    together.forget("cat")
    together.learn(np.concatenate([draw("cat"), draw("cat", 10, seed=3)]), "cat")
    one, two = (m._state.classifier.statistics_ for m in (model, together))
    assert np.allclose(one.mean[one.index("cat")], two.mean[two.index("cat")])


def test_a_forgotten_class_is_gone(make):
    model = make("cat", "dog", "owl")
    model.forget("owl")
    assert model.classes == {"cat": 30, "dog": 30}
    assert b"owl" not in b"".join(path.read_bytes() for path in model.path.iterdir())
    with pytest.raises(ModelError, match="has no class 'owl'; its classes are 'cat', 'dog'"):
        model.forget("owl")


def test_a_class_forgotten_by_a_model_with_a_covariance_per_class_was_never_seen(tmp_path):
    forgetful, never = (Model.create(tmp_path / name, "convnet", dim=16) for name in ("forgetful", "never"))
    forgetful.learn_all({kind: draw(kind) for kind in ("cat", "owl", "dog")})
    forgetful.forget("owl")
    never.learn_all({kind: draw(kind) for kind in ("cat", "dog")})
    assert forgetful.info().covariance == "full" and answers(forgetful) == answers(never)


def test_the_last_class_can_be_forgotten_and_others_learned_after(make):
    model = make("cat").forget("cat")
    assert model.classes == {} and not list(model.drop_previous().path.glob("classes-*"))
    with pytest.raises(ModelError, match="has no classes yet"):
        Model.open(model.path).predict(draw("cat", 1))
    model.learn(draw("dog"), "dog")
    assert model.predict(draw("dog", 1))[0].label == "dog"


NAMES = ("../a/b", "кошка", "猫", "🦊" * 3, "x" * 300, "a\nb", "con", ".", "C:\\", "true \\ predicted", " spaced ", "'\"`$(x)")


@pytest.mark.any_cpu
def test_any_string_is_a_class_name(make):
    model = make()
    model.learn_all({name: draw(f"{place}") for place, name in enumerate(NAMES)})
    again = Model.open(model.path)
    assert tuple(again.classes) == NAMES
    assert {one.label for one in again.predict(np.concatenate([draw(f"{n}", 5) for n in range(len(NAMES))]))} <= set(NAMES)
    files = sorted(path.name.rpartition("-")[0] or path.name for path in model.path.iterdir())
    assert files == [".lock", "classes", "extractor", "manifest.json"]
    for name in NAMES[:-1]:
        model.forget(name)
    assert tuple(model.classes) == NAMES[-1:]


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "\ud800", 3, None])
def test_an_invalid_class_name_is_refused(make, name):
    model = make()
    with pytest.raises((ValueError, TypeError), match="name"):
        model.learn(draw("cat"), name)
    assert model.classes == {}


def test_a_name_is_the_same_however_its_accents_are_written(make):
    model = make()
    model.learn(draw("cat"), "caf\u00e9")
    assert model.learn(draw("cat", 10, 3), "cafe\u0301").again == ("caf\u00e9",)


def test_two_spellings_of_a_name_are_one_class_everywhere(make):
    composed, apart = "caf\u00e9", "cafe\u0301"
    model = make("dog")
    assert model.learn_all({composed: draw("cat", 7), apart: draw("cat", 8, seed=1)}).added == {composed: 15}
    found = model.evaluate(draw("cat", 5, seed=2), [apart] * 5)
    assert len(found.correct) == 5 and not found.unseen
    assert list(model.forget(apart).classes) == ["dog"]


def test_predictions_have_the_requested_number_of_classes_in_order_of_probability(make):
    model = make("cat", "dog", "owl")
    (one,) = model.predict(draw("dog", 1, 4), top=2)
    assert len(one.labels) == len(one.probabilities) == 2 and one.probabilities[0] > one.probabilities[1]
    (everything,) = model.predict(draw("dog", 1, 4), top=50)
    assert set(everything.labels) == {"cat", "dog", "owl"} and abs(sum(everything.probabilities) - 1) < 1e-9
    for wrong in ({"top": 0}, {"reject": 1.5}, {"reject": -0.1}):
        with pytest.raises(ValueError, match=r"top must be at least 1 and reject from 0 to 0\.5"):
            model.predict(draw("dog", 1), **wrong)


def test_the_first_images_determine_size_and_mirroring_of_patches(make, rng):
    colour, grey = make(name="colour"), make(name="grey")
    colour.learn(draw("cat", side=20), "cat")
    assert colour.info().image["size"] == 20 and colour._state.extractor.settled.mirror
    grey.learn(rng.integers(0, 255, (9, 40, 90), dtype=np.uint8), "noise")
    assert grey.info().image["size"] == 40 and not grey._state.extractor.settled.mirror
    large = make(name="large")
    large.learn(draw("cat", side=100), "cat")
    assert large.info().image["size"] == 64


def test_a_folder_that_holds_something_is_not_taken_for_a_model(make, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("dear")
    with pytest.raises(FileExistsError, match="is not empty"):
        make(name="full")
    make(name="new")
    with pytest.raises(FileExistsError, match="already contains a model"):
        make(name="new")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        make(name="file")
    with pytest.raises(FileNotFoundError, match="there is no model in"):
        Model.open(tmp_path / "nothing")


def test_an_invalid_extractor_is_refused_before_anything_is_written(tmp_path):
    for features, options, text in (
        ("resnet99", {}, "no extractor, file or model 'resnet99'"),
        ("patches", {"filter": 3}, "no option 'filter'"),
        ("patches", {"size": 3}, "from 8 to 2048 pixels"),
        (Model.create(tmp_path / "empty").path, {}, "has no extractor yet"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            Model.create(tmp_path / "model", features, **options)
    assert not (tmp_path / "model").exists()


def test_an_extractor_or_the_weights_of_a_network_come_from_a_file(tmp_path):
    network = build("resnet18", image_shape=(3, 32, 32), width=0.0625)
    save_extractor(tmp_path / "ours.safetensors", network)
    import torch

    torch.save(network.state_dict(), tmp_path / "theirs.pth")
    made = [Model.create(tmp_path / name, tmp_path / file) for name, file in (("a", "ours.safetensors"), ("b", "theirs.pth"))]
    for model in made:
        model.learn_all({kind: draw(kind, 12) for kind in ("cat", "dog")})
    assert [a[0] for a in answers(made[0])] == [a[0] for a in answers(made[1])]
    assert made[0].info().features["name"] == "resnet18" and made[0].info().features["dim"] == 32
    third = Model.create(tmp_path / "third", made[0].path)  # another model's extractor
    assert third.info().features["checksum"] == made[0].info().features["checksum"]
    with pytest.raises(ValueError, match="has its own size and options"):
        Model.create(tmp_path / "c", tmp_path / "ours.safetensors", size=64)


def test_changes_of_another_process_are_visible_after_a_refresh(make):
    model = make("cat", "dog")
    elsewhere = Model.open(model.path)
    elsewhere.learn(draw("owl"), "owl")
    assert "owl" not in model.classes and model.refresh() and model.classes == elsewhere.classes
    assert not model.refresh() and answers(model) == answers(elsewhere)


def test_another_model_in_the_same_folder_is_noticed(make, tmp_path):
    """As after restoring a copy: the same number of changes, but other files."""
    model, other = make("cat", "dog"), make("owl", "fox", name="other")
    shutil.rmtree(model.path)
    shutil.copytree(other.path, model.path)
    assert model.refresh() and list(model.classes) == ["owl", "fox"]
    shutil.rmtree(model.path)
    shutil.copytree(make("fox", "dog", name="third").path, model.path)
    model.learn(draw("bee"), "bee")
    assert list(Model.open(model.path).classes) == ["fox", "dog", "bee"]


def test_a_copy_is_not_merged_with_what_it_was_copied_from(make, tmp_path):
    model = make("cat", "dog")
    shutil.copytree(model.path, tmp_path / "copy")
    copy = Model.open(tmp_path / "copy")
    copy.learn(draw("owl"), "owl")
    with pytest.raises(ModelError, match="'cat', 'dog' from the same images"):
        model.merge(copy)
    for kind in ("cat", "dog"):
        copy.forget(kind)
    assert list(model.merge(copy).classes) == ["cat", "dog", "owl"]


def test_a_change_builds_on_what_is_in_the_folder_not_on_what_is_in_memory(make):
    model = make("cat", "dog")
    Model.open(model.path).learn(draw("owl"), "owl")
    model.learn(draw("fox"), "fox")
    assert list(model.classes) == list(Model.open(model.path).classes) == ["cat", "dog", "owl", "fox"]


def test_threads_that_predict_while_classes_come_and_go_see_one_model_or_another(make):
    model = make("cat", "dog")
    shown = draw("cat", 4, 8)
    allowed, wrong, stop = {("cat", "dog")}, [], threading.Event()

    def predict() -> None:
        while not stop.is_set():
            for one in model.predict(shown, top=9):
                if tuple(sorted(one.labels)) not in allowed or abs(sum(one.probabilities) - 1) > 1e-9:
                    wrong.append(one)

    allowed |= {("cat", "dog", "owl")}
    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        model.learn(draw("owl", 10), "owl")
        model.forget("owl")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_info_lists_what_is_stored_and_what_is_never_stored(make):
    about = make("cat", "dog").info()
    assert about.classes == {"cat": 30, "dog": 30} and about.images == 60 and about.covariance == "shared"
    assert about.bytes.keys() == {"manifest.json", "extractor-000002.safetensors", "classes-000002.safetensors"}
    assert any("no fragment" in line for line in about.kept) and any("parts of images" in line for line in about.not_kept)
    fragments = make("cat", name="fragments", draw="patches").info()
    assert any("fragments of the first images" in line for line in fragments.kept)
    assert not any("parts of" in line for line in fragments.not_kept)


def test_info_names_classes_of_one_or_two_images(make):
    model = make("cat")
    model.learn(draw("dog", 1), "dog")
    model.learn(draw("owl", 2), "owl")
    assert any("2 classes with one or two images (such as 'dog')" in line for line in model.info().kept)
    assert any("which tell those of one or two images" in line for line in model.info().not_kept)


def test_evaluation_counts_by_hand(make):
    model = make("cat", "dog")
    shown = [*draw("cat", 6, 4), *draw("dog", 5, 4), *draw("bee", 3, 4)]
    labels = ["cat"] * 6 + ["dog"] * 5 + ["bee"] * 3
    found = model.evaluate(shown, labels, reject=0.05)
    answers_ = model.predict(shown)
    correct = [one.label == label for one, label in zip(answers_, labels, strict=True)][:11]
    assert found.accuracy == pytest.approx(np.mean(correct)) and found.unseen == {"bee": 3}
    assert found.confusion.sum() == 11 and np.trace(found.confusion) == sum(correct)
    assert found.by_class["cat"] == (sum(correct[:6]), 6)
    fits = np.array([one.fit for one in answers_])
    assert found.rejected() == (pytest.approx((fits[:11] < 0.05).mean()), pytest.approx((fits[11:] < 0.05).mean()))
    sure = np.array([one.probabilities[0] for one in answers_[:11]])
    bins = np.minimum((sure * 15).astype(int), 14)
    by_hand = (
        sum(abs(np.mean(np.array(correct)[bins == b]) - sure[bins == b].mean()) * (bins == b).sum() for b in set(bins)) / 11
    )
    assert found.calibration_error == pytest.approx(by_hand)


def test_progress_ends_at_the_number_of_images(make):
    seen: list[tuple[int, int]] = []
    make().learn_all({"cat": draw("cat", 7), "dog": draw("dog", 5)}, progress=lambda *now: seen.append(now))
    assert seen[-1] == (12, 12) and sorted(seen) == seen


def test_a_manifest_of_another_version_or_a_damaged_file_is_refused(make):
    model = make("cat", "dog")
    manifest = model.path / "manifest.json"
    text = manifest.read_text()
    for changed, said in (
        (text.replace('"version": 1', '"version": 9'), "version 9"),
        (text[:50], "damaged"),
        ("{}", "not a model's manifest"),
        (text.replace("classes-", "../classes-"), "not a file of a model"),
    ):
        manifest.write_text(changed)
        with pytest.raises(ValueError, match=said):
            Model.open(model.path)
    manifest.write_text(text)
    classes = next(model.path.glob("classes-*"))
    content = bytearray(classes.read_bytes())
    content[-10] ^= 1
    classes.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        Model.open(model.path)
    classes.unlink()
    with pytest.raises(ValueError, match="is incomplete"):
        Model.open(Path(model.path))
