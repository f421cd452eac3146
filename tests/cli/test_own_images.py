"""The commands for models of your own images."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from model.drawing import draw
from PIL import Image
from rich.console import Console

from amgc.cli.learn import with_cost
from amgc.cli.main import main
from amgc.features import build
from amgc.features.weights import save_extractor
from amgc.model import Model
from amgc.text import DASH

QUICK = ["--filters", "6"]


def folder(root: str, *kinds: str, count: int = 12, seed: int = 0) -> str:
    """Write images in a sub-folder for each class."""
    for kind in kinds:
        place = Path(root, kind)
        place.mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(draw(kind, count, seed)):
            Image.fromarray(pixels).save(place / f"{seed} {number}.png")
    return root


@pytest.fixture
def taught() -> str:
    assert main(["learn", "model", folder("photos", "cat", "dog"), *QUICK, "--quiet"]) == 0
    return "model"


def test_classes_are_learned_from_folders_and_predicted(capsys):
    assert main(["learn", "model", folder("photos", "cat", "dog"), *QUICK]) == 0
    output = capsys.readouterr().out
    assert re.match(
        r"Learned 2 classes from 24 images in [\d.]+ s \([\d.,]+ images/s\); the model has 2 classes\. No image", output
    )
    assert main(["learn", "model", folder("more", "owl"), folder("again", "cat", count=5, seed=1)]) == 0
    output = capsys.readouterr().out
    assert "Learned 2 classes from 17 images" in output and "images added: cat" in output
    assert Model.open("model").classes == {"cat": 17, "dog": 12, "owl": 12}
    assert main(["predict", "model", "photos/dog/0 0.png", "--top", "2"]) == 0
    output = capsys.readouterr().out
    assert "photos/dog/0 0.png" in output and "dog" in output and "probability" in output and "fit" in output


def test_answers_as_json_and_as_csv_say_the_same(taught, capsys):
    assert main(["predict", taught, "photos", "--top", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["predict", taught, "photos", "--top", "2", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(lines) == len(rows) == 24
    for line, row in zip(lines, rows, strict=True):
        assert line["source"] == row["image"] and line["answer"] == row["answer"] == row["class 1"]
        assert row["rejected"] == "no" and not line["rejected"]
        assert [float(row["fit"]), float(row["probability 1"])] == [line["fit"], line["classes"][0]["probability"]]
    assert main(["predict", taught, "photos", "--json", "--csv"]) == 2


def test_an_image_that_fits_nothing_is_unknown(taught, capsys):
    noise = np.random.default_rng(0).integers(0, 2, (16, 16, 3), dtype=np.uint8) * 255
    Image.fromarray(noise).save("noise.png")
    assert main(["predict", taught, "noise.png", "--reject", "0.01", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (
        line["answer"] == "unknown"
        and line["rejected"]
        and line["fit"] < 0.01
        and line["classes"][0]["label"] in ("cat", "dog")
    )
    assert main(["predict", taught, "noise.png", "--reject", "0.01"]) == 0
    assert "unknown (nearest: " in capsys.readouterr().out


def test_unreadable_images_are_counted_in_learning_and_reported_in_predicting(capsys):
    folder("photos", "cat")
    Path("photos/cat/text.jpg").write_text("dear all")
    Path("photos/empty").mkdir()
    assert main(["learn", "model", "photos", *QUICK]) == 0
    output = capsys.readouterr().out
    assert (
        "1 image could not be used:\n  photos/cat/text.jpg: it is none of" in output
        and "Left out: photos/empty (no images)" in output
    )
    assert main(["predict", "model", "photos/cat"]) == 1
    said = capsys.readouterr()
    assert "error: photos/cat/text.jpg cannot be used" in said.err and said.out.count(".png") == 12


def test_files_that_are_no_images_are_named_in_predicting_and_evaluating(taught, capsys):
    folder("new", "cat")
    Path("new/cat/notes.txt").write_text("hello")
    Path("new/.DS_Store").write_text("hello")
    assert main(["predict", taught, "new"]) == 0
    said = capsys.readouterr().err
    assert "left out: new/cat/notes.txt (not an image, by its name)" in said and "left out: new/.DS_Store (hidden)" in said
    assert main(["evaluate", taught, "new"]) == 0
    output = capsys.readouterr().out
    assert "Left out: new/cat/notes.txt (not an image, by its name)" in output and "Left out: new/.DS_Store (hidden)" in output


def test_missing_or_conflicting_arguments_are_errors_with_exit_code_2(taught, capsys):
    folder("photos", "cat")
    Path("flat").mkdir()
    folder("split/train", "cat"), folder("split/test", "cat")
    for arguments, said in (
        (["learn", "model"], "specify at least one folder"),
        (["learn", "model", "nowhere"], "there is no folder 'nowhere'"),
        (["learn", "model", "flat"], "no sub-folders"),
        (["learn", "model", "photos", "--filters", "9"], "--filters can only be chosen for a new one"),
        (["learn", "other", "photos", "--filters", "0"], "filters must be at least 1, not 0"),
        (["learn", "other", "photos", "--filters", "-3"], "filters must be at least 1, not -3"),
        (
            ["learn", "other", "photos", "--filters", "6", "--seed", "1" + 30 * "0"],
            "seed must be a whole number of at most 64 bits",
        ),
        (["learn", "other", "photos", "--features", "resnet99"], "no extractor, file or model 'resnet99'"),
        (["learn", "other", "photos", "--weights", "any.pth"], "patches have no weights"),
        (["learn", "other", "photos", "--size", "100000"], "size must be from 8 to 2048"),
        (
            ["learn", "other", "split"],
            "are not classes; specify one of them, such as 'split/train'",
        ),
        (["predict", "nowhere", "photos"], "there is no model in 'nowhere'"),
        (["predict", "model"], "specify at least one image"),
        (["forget", "model", "owl"], "has no class 'owl'; its classes are 'cat', 'dog'"),
        (["merge", "model", "-o", "x"], "at least two models"),
        (["info", "nowhere"], "there is no model"),
        (["evaluate", "model", "nowhere"], "there is no folder"),
        (["model", "nowhere", "-o", "x"], "there is no run"),
    ):
        assert main(arguments) == 2, arguments
        assert said in capsys.readouterr().err, arguments
    assert not Path("other").exists() and not Path("x").exists()


def test_a_first_learn_that_fails_leaves_nothing_and_can_be_repeated(capsys, monkeypatch):
    folder("photos", "cat", "dog")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("amgc.model.changes.learn", stop)
        assert main(["learn", "model", "photos", *QUICK]) == 130
    assert not Path("model").exists()
    assert main(["learn", "model", "photos", *QUICK]) == 0
    before = Model.open("model").info().generation
    with monkeypatch.context() as patch:
        patch.setattr("amgc.model.changes.learn", stop)
        assert main(["learn", "model", folder("more", "owl")]) == 130
    assert Model.open("model").info().generation == before, "a model that was there stays"


def test_a_first_learn_that_fails_keeps_what_another_process_has_taught_meanwhile(monkeypatch):
    folder("photos", "cat", "dog")

    def taught_elsewhere(*_: object, **__: object) -> None:
        Model.open("model").learn(draw("owl"), "owl")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("amgc.model.model.Model.learn_all", lambda *_, **__: (patch.undo(), taught_elsewhere()))
        assert main(["learn", "model", "photos", *QUICK]) == 130
    assert list(Model.open("model").classes) == ["owl"]


def test_every_image_that_could_not_be_used_is_named(capsys):
    folder("photos", "cat")
    names = [f"photos/cat/damaged {number}.png" for number in range(12)]
    for name in names:
        Path(name).write_text("no image")
    assert main(["learn", "model", "photos", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "12 images could not be used:" in said and all(f"  {name}: " in said for name in names)


def test_images_that_were_not_learned_are_reported(capsys):
    folder("photos", "cat", "dog")
    Path("photos/bad").mkdir()
    Path("photos/bad/text.jpg").write_text("dear all")
    Image.new("RGB", (16, 16)).save("photos/loose.png")
    assert main(["learn", "model", "photos", *QUICK]) == 0
    output = capsys.readouterr().out
    assert "none of their images could be used: bad" in output and "photos/loose.png (outside sub-folders)" in output


def test_every_file_that_is_left_out_is_counted_and_named(capsys):
    folder("photos", "cat", "dog")
    names = [f"photos/cat/note{number}.txt" for number in range(60)]
    for name in names:
        Path(name).touch()
    assert main(["learn", "model", "photos", *QUICK]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Left out: 60: " in output and all(name in output for name in names)


@pytest.mark.parametrize("name", ["resnet18", "resnet32", "convnet"])
def test_a_network_without_weights_is_refused_before_anything_is_learned(name, capsys):
    folder("photos", "cat", "dog")
    assert main(["learn", "model", "photos", "--features", name]) == 2
    said = capsys.readouterr().err
    assert f"the weights of {name} would be random" in said and "--weights FILE" in said and "lite0" in said
    assert not Path("model").exists()


def test_a_network_with_weights_learns():
    save_extractor("weights.safetensors", build("convnet", image_shape=(3, 32, 32)))
    arguments = ["learn", "model", folder("photos", "cat", "dog"), "--features", "convnet", "--weights", "weights.safetensors"]
    assert main(arguments) == 0 and list(Model.open("model").classes) == ["cat", "dog"]


def test_the_expected_time_is_printed_once_and_only_if_it_is_long(monkeypatch, capsys):
    clock = iter([100.0, 102.0, 104.0, 0.0, 0.1, 0.2])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    calls = []
    for total in (1616, 48):
        shown = with_cost(lambda done, of: calls.append((done, of)), Console(width=100))
        for done in (16, 32, 48):
            shown(done, total)
    assert capsys.readouterr().out == "1,616 images at 8 images/s: about 3 min 18 s.\n"  # 1,584 / 8 = 198
    assert calls == [(done, total) for total in (1616, 48) for done in (16, 32, 48)]


def test_an_evaluation_of_unknown_classes_only_says_so(taught, capsys):
    assert main(["evaluate", taught, folder("strange", "owl"), "--reject", "0.05"]) == 0
    output = capsys.readouterr().out
    assert "No accuracy: no usable image is of a class that the model knows (cat, dog)." in output
    assert "Classes unknown to the model: 12 images (owl)" in output and "of those of unknown classes" in output
    assert "Calibration" not in output and DASH not in output and "of known classes" not in output


def test_predictions_explain_the_fit_or_that_it_cannot_be_told(taught, capsys):
    assert main(["predict", taught, "photos/dog/0 0.png"]) == 0
    assert "fit: about this share of images of known classes are less typical" in capsys.readouterr().out
    assert main(["learn", "few", folder("two", "cat", "dog", count=1), *QUICK]) == 0
    capsys.readouterr()
    assert main(["predict", "few", "photos/dog/0 0.png", "--reject", "0.5"]) == 0
    output = capsys.readouterr().out
    assert f"fit {DASH}: not available" in output and "unknown" not in output
    assert main(["evaluate", "few", "photos", "--reject", "0.5"]) == 0
    assert f"Rejected: none. fit {DASH}: not available" in capsys.readouterr().out


def test_a_missing_image_is_named_and_the_others_are_predicted(taught, capsys):
    assert main(["predict", taught, "gone.png", "photos/dog/0 0.png"]) == 1
    said = capsys.readouterr()
    assert "error: gone.png cannot be used: there is no such file" in said.err and "photos/dog/0 0.png" in said.out


def test_an_evaluation_without_a_known_class_is_valid_json(taught, capsys):
    assert main(["evaluate", taught, folder("strange", "owl"), "--reject", "0.01", "--json"]) == 0

    def refuse(text: str) -> None:
        raise ValueError(text)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["accuracy"] is None and found["calibration_error"] is None and found["rejected"] is None


def test_a_class_is_forgotten_and_info_lists_what_is_left(taught, capsys):
    assert main(["forget", taught, "cat"]) == 0
    assert (
        "Forgot 'cat'; the model has 1 class. Its contribution to the covariance shared by all classes"
        in capsys.readouterr().out
    )
    assert main(["info", taught]) == 0
    output = capsys.readouterr().out
    for text in ("1 class from 12 images", "patches, 48 features, images of 16 × 16", "Stored:", "Never stored:", "dog"):
        assert text in output
    assert main(["info", taught, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == {"dog": 12}


def test_two_models_are_merged_into_a_third(taught, capsys):
    assert main(["learn", "site", folder("elsewhere", "owl"), "--features", taught]) == 0
    capsys.readouterr()
    assert main(["merge", taught, "site", "-o", "both"]) == 0
    assert "both: 3 classes from 36 images." in capsys.readouterr().out
    assert main(["learn", "stranger", folder("elsewhere", "owl"), *QUICK]) == 0
    assert main(["merge", taught, "stranger", "-o", "x"]) == 2
    assert "different extractors" in capsys.readouterr().err


def test_an_evaluation_is_shown_and_written(taught, capsys):
    folder("held out", "cat", "dog", "owl", count=8, seed=3)
    Path("held out/cat/text.jpg").write_text("dear all")
    assert main(["evaluate", taught, "held out", "--reject", "0.01", "--out", "report"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"Accuracy: [\d.]+ % of 16 images of 2 known classes", output)
    for text in (
        "expected calibration error",
        "unknown to the model: 8 images (owl)",
        "Rejected (fit below 0.01)",
        "Not usable",
    ):
        assert text in output
    names = {path.name for path in Path("report").iterdir()}
    assert names == {"evaluation.json", "confusion.csv", "confusion.png", "reliability.png"}
    written = json.loads(Path("report/evaluation.json").read_text())
    rows = list(csv.reader(Path("report/confusion.csv").read_text().splitlines()))
    assert rows[0][1:] == ["cat", "dog"] and sum(int(cell) for row in rows[1:] for cell in row[1:]) == 16
    right = sum(int(rows[place][place]) for place in (1, 2))
    assert written["accuracy"] == right / 16 and written["unseen"] == {"owl": 8}
    assert main(["evaluate", taught, "held out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == written["accuracy"]


def test_names_in_any_script_are_shown_and_control_characters_are_not(capsys):
    folder("photos", "猫", "🦊 fox", "esc\x1b[31m")
    assert main(["learn", "model", "photos", *QUICK]) == 0
    assert main(["predict", "model", "photos/猫"]) == 0
    assert main(["info", "model"]) == 0
    assert main(["evaluate", "model", "photos", "--out", "report"]) == 0
    output = capsys.readouterr().out
    assert "猫" in output and "🦊 fox" in output and "\x1b" not in output


def test_help_names_the_commands(capsys):
    for name in ("learn", "predict", "forget", "merge", "info", "evaluate", "model"):
        assert main([name, "--help"]) == 0
        assert "MODEL" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "own images" in capsys.readouterr().out


def test_learn_says_what_few_images_of_a_known_class_give_away(taught, capsys):
    for count, said in ((1, "Only one image more"), (4, "Only 4 images more, or fewer"), (5, "")):
        assert main(["learn", taught, "--label", "cat", folder(f"more {count}", "cat", count=count, seed=count)]) == 0
        output = capsys.readouterr().out
        assert output.count("a copy of the model from before") == bool(said) and said in output
    assert main(["learn", "private", "photos", "--features", "model", "--epsilon", "8", "--lessons", "2"]) == 0
    capsys.readouterr()
    assert main(["learn", "private", "--label", "cat", folder("one more", "cat", count=1, seed=9)]) == 0
    assert "Only one" not in capsys.readouterr().out
