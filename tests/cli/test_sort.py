"""`amgc sort`, `rename`, `undo` and `learn --label`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from model.drawing import draw
from PIL import Image

from amgc.cli.main import main
from amgc.cli.moving import JOURNAL
from amgc.cli.sort import folder_names, safe_name
from amgc.model import Model

QUICK = ["--filters", "6"]


def save(folder: str, kind: str, count: int = 12, seed: int = 0) -> str:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(draw(kind, count, seed=seed)):
        Image.fromarray(pixels).save(f"{folder}/{kind} {number}.png")
    return folder


@pytest.fixture
def taught() -> str:
    model = Model.create("model", filters=6)
    model.learn_all({kind: draw(kind) for kind in ("cat", "dog")})
    return "model"


def tree(folder: str) -> dict[str, bytes]:
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.name not in (".lock", JOURNAL))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


# ---- sort ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["--copy", "--move", "--link"])
def test_photos_are_sorted_as_the_model_predicts_and_put_back(taught, capsys, how):
    save("photos/new", "cat", 5, seed=9), save("photos", "dog", 4, seed=9)
    Path("photos/notes.txt").write_text("hello")
    Path("photos/.hidden.png").write_bytes(b"")
    before = tree("photos")
    said = {one.source: one.label for one in Model.open(taught).predict("photos")}
    assert main(["sort", taught, "photos", "--into", "sorted", how, "--unsure", "0", "--reject", "0"]) == 0
    output = capsys.readouterr().out
    found = {path.name: path.parent.name for path in Path("sorted").glob("*/*.png")}
    assert found == {Path(source).name: label for source, label in said.items()} and set(found.values()) == {"cat", "dog"}
    assert "9 photos into sorted." in output and "`amgc sort --undo sorted` takes this back" in output
    for line in ("Left where they are, 2 files:", "photos/notes.txt: not an image, by its name", "photos/.hidden.png: hidden"):
        assert line in output
    if how == "--move":
        assert list(tree("photos")) == [".hidden.png", "notes.txt"]
    else:
        assert tree("photos") == before
    assert all(path.is_symlink() == (how == "--link") for path in Path("sorted").glob("*/*.png"))
    assert main(["sort", "--undo", "sorted"]) == 0
    assert "Took back 9 photos" in capsys.readouterr().out
    assert tree("photos") == before and not Path("sorted").exists()


def test_unsure_and_unknown_photos_get_piles_of_their_own(taught, capsys):
    save("photos", "cat", 8, seed=9), save("photos", "dog", 8, seed=9)
    noise = np.random.default_rng(0).integers(0, 2, (16, 16, 3), dtype=np.uint8) * 255
    Image.fromarray(noise).save("photos/noise.png")
    answers = Model.open(taught).predict("photos", reject=0.01)
    limit = sorted(one.probabilities[0] for one in answers if not one.rejected)[3] + 1e-12
    assert main(["sort", taught, "photos", "--into", "sorted", "--unsure", str(limit)]) == 0
    piles = {path.name: path.parent.name for path in Path("sorted").glob("*/*.png")}
    for one in answers:
        wanted = "unknown" if one.rejected else "unsure" if one.probabilities[0] < limit else one.label
        assert piles[Path(one.source).name] == wanted
    assert piles["noise.png"] == "unknown" and list(piles.values()).count("unsure") == 4
    rows = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["unsure"])
    assert rows == {"unsure": "4"}


def test_a_dry_run_says_what_sorting_would_do_and_changes_nothing(taught, capsys):
    save("photos/a", "cat", 3, seed=9), save("photos/b", "cat", 3, seed=8)  # the same names twice
    flags = [taught, "photos", "--into", "sorted", "--move", "--unsure", "0", "--reject", "0"]
    before = tree("photos")
    assert main(["sort", *flags, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert tree("photos") == before and not Path("sorted").exists() and "nothing has changed" in output
    assert main(["sort", *flags]) == 0
    for name in tree("sorted"):
        assert f"sorted/{name}" in output
    assert len(tree("sorted")) == 6 and "would move to" in output


def test_files_that_cannot_be_sorted_are_named_and_the_others_sorted(taught, capsys):
    save("photos", "cat", 2)
    Path("photos/text.jpg").write_text("dear all")
    os.symlink("cat 0.png", "photos/link.png")
    assert main(["sort", taught, "photos", "--into", "sorted", "--move"]) == 1
    output = capsys.readouterr().out
    assert "Moved 2 photos" in output and "Left where they are, 2 files:" in output
    assert "photos/text.jpg: it is none of" in output and "photos/link.png: " in output
    assert Path("photos/text.jpg").exists() and os.path.islink("photos/link.png")


def test_sorting_again_into_a_folder_within_the_photos_copies_only_what_is_new(taught, capsys):
    save("photos", "cat", 4)
    assert main(["sort", taught, "photos", "--into", "photos/sorted"]) == 0
    before = tree("photos")
    save("photos", "dog", 2)
    capsys.readouterr()
    assert main(["sort", taught, "photos", "--into", "photos/sorted"]) == 0
    output = capsys.readouterr().out
    assert "Copied 2 photos" in output and "4 were there already" in output and "Left" not in output
    assert len(tree("photos")) == len(before) + 4
    assert main(["sort", "--undo", "photos/sorted"]) == 0
    assert tree("photos").keys() == before.keys() | {"dog 0.png", "dog 1.png"}


def test_photos_in_a_part_of_the_target_are_sorted(taught):
    save("photos/inbox", "cat", 3)
    assert main(["sort", taught, "photos/inbox", "--into", "photos", "--move", "--unsure", "0", "--reject", "0"]) == 0
    assert not tree("photos/inbox") and len(tree("photos")) == 3


def test_names_of_classes_become_names_of_folders_on_every_system():
    names = [
        "кошка",
        "猫",
        "a/b",
        "a_b",
        "..",
        ".",
        "C:\\",
        "con",
        "CON",
        "Aux.txt",
        "unknown",
        "Unsure",
        "x" * 300,
        " ",
        "a\nb",
    ]
    folders = folder_names(names)
    assert list(folders) == names and folders["кошка"] == "кошка" and folders["猫"] == "猫" and folders["a_b"] == "a_b"
    assert len({name.casefold() for name in folders.values()} | {"unknown", "unsure"}) == len(names) + 2
    for name in folders.values():
        assert 0 < len(name.encode()) < 255 and not set(name) & set('<>:"/\\|?*\n\0') and name.strip(". ") == name
        assert name.split(".")[0].lower() not in ("con", "aux")
    assert safe_name("猫" * 100) == "猫" * 66, "cut between characters"


def test_photos_of_classes_with_strange_names_are_sorted_within_the_folder(capsys):
    Model.create("model", filters=6).learn_all({"../up": draw("cat"), "кошка/2": draw("dog")})
    save("photos", "cat", 3), save("photos", "dog", 3)
    assert main(["sort", "model", "photos", "--into", "deep/sorted", "--unsure", "0", "--reject", "0"]) == 0
    assert {Path(name).parts[0] for name in tree("deep/sorted")} == {"___up", "кошка_2"} and len(tree("deep")) == 6
    assert "(class ../up)" in capsys.readouterr().out


def test_wrong_arguments_are_errors_before_anything_is_created(taught, capsys):
    save("photos", "cat", 1)
    for arguments, said in (
        (["photos", "--into", "x"], "specify a model"),
        ([taught, "photos"], "specify a model, a folder of photos and where"),
        ([taught, "nowhere", "--into", "x"], "there is no folder or photo 'nowhere'"),
        ([taught, "photos", "--into", "photos"], "cannot be sorted into itself"),
        ([taught, "photos", "--into", "x", "--move", "--link"], "choose one of --copy, --move and --link"),
        ([taught, "photos", "--into", "x", "--unsure", "2"], "--unsure must be from 0 to 1"),
        ([taught, "photos", "--into", "x", "--reject", "2"], "reject from 0 to 0.5"),
        (["nowhere", "photos", "--into", "x"], "there is no model"),
        ([taught, "--undo", "x"], "--undo takes only the folder"),
        (["--undo", "photos"], "nothing was sorted into it"),
    ):
        assert main(["sort", *arguments]) == 2, arguments
        assert said in capsys.readouterr().err, arguments
    assert not Path("x").exists() and list(tree("photos")) == ["cat 0.png"]


# ---- learn --label, rename, undo -------------------------------------------------------------------------------------------


def test_one_class_is_learned_from_files_and_folders(capsys):
    save("a", "cat", 6), save("b/deep", "cat", 5, seed=1)
    Path("b/notes.txt").write_text("hello")
    assert main(["learn", "model", "--label", "кошка/1", "a/cat 0.png", "a/cat 1.png", "b", *QUICK]) == 0
    output = capsys.readouterr().out
    assert Model.open("model").classes == {"кошка/1": 7}
    assert "Left out: b/notes.txt (not an image, by its name)" in output
    for arguments, said in (
        (["learn", "model", "--label", "cat"], "specify at least one image"),
        (["learn", "model", "--label", "cat", "gone.png"], "there is no file or folder 'gone.png'"),
        (["learn", "model", "--label", " ", "a"], "is empty"),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err


def test_a_folder_without_images_says_what_is_in_it(capsys):
    Path("docs").mkdir()
    for number in range(7):
        Path(f"docs/{number}.txt").write_text("hello")
    assert main(["learn", "model", "--label", "cat", "docs"]) == 2
    assert "there are no images in 'docs'. Left out: 7: docs/0.txt, " in capsys.readouterr().err
    assert not Path("model").exists()


def test_images_with_the_same_pixels_count_once_and_are_named(capsys):
    save("a", "cat", 6)
    Path("a/copy.png").write_bytes(Path("a/cat 3.png").read_bytes())
    assert main(["learn", "model", "--label", "cat", "a", *QUICK]) == 0
    assert "1 image had the same pixels as another one of the class and counted once: a/copy.png" in capsys.readouterr().out
    assert Model.open("model").classes == {"cat": 6}


def test_images_that_were_learned_in_an_earlier_call_are_named(capsys):
    save("a", "cat", 6)
    for _ in range(2):
        assert main(["learn", "model", "--label", "cat", "a", *(QUICK if not Path("model").exists() else [])]) == 0
    said = capsys.readouterr().out
    assert "6 images had probably been learned before, by the same class, and count twice now" in said
    assert main(["learn", "model", "--label", "cat", "a/cat 3.png"]) == 0
    assert "1 image had probably been learned before, by the same class, and counts twice now" in capsys.readouterr().out
    assert said.count("a/cat 3.png") == 1


def test_a_class_is_renamed_joined_and_both_are_undone(taught, capsys):
    assert main(["rename", taught, "dog", "wolf"]) == 0
    assert "Renamed 'dog' to 'wolf'." in capsys.readouterr().out
    assert main(["rename", taught, "wolf", "cat"]) == 2
    assert "--join" in capsys.readouterr().err
    assert main(["rename", taught, "wolf", "cat", "--join"]) == 0
    assert "Joined 'wolf' with 'cat', which has 60 images now." in capsys.readouterr().out
    assert main(["undo", taught]) == 0
    assert (
        capsys.readouterr().out == "Undone: 'cat' has 30 images again, 'wolf' has 30 images again. The model has 2 classes.\n"
    )
    assert main(["undo", taught]) == 2
    assert "no change to undo" in capsys.readouterr().err
    assert list(Model.open(taught).classes) == ["cat", "wolf"]


def test_the_state_before_a_change_is_stored_until_it_is_cleared_and_forgetting_is_final(taught, capsys):
    assert main(["rename", taught, "dog", "wolf"]) == 0
    capsys.readouterr()
    assert main(["info", taught, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["can_undo"] and len([name for name in info["bytes"] if name.startswith("classes")]) == 1
    assert main(["undo", taught, "--clear"]) == 0
    assert main(["undo", taught]) == 2
    assert len(list(Path(taught).glob("classes-*"))) == 1
    assert main(["forget", taught, "wolf"]) == 0
    assert main(["undo", taught]) == 2 and "none after `forget`" in capsys.readouterr().err
    assert len(list(Path(taught).glob("classes-*"))) == 1


# ---- HEIC and AVIF ---------------------------------------------------------------------------------------------------------


def test_a_folder_of_heic_without_the_extra_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr("amgc.data.decode.FORMATS", ("PNG", "JPEG"))  # as if nothing else were installed
    Path("phone").mkdir()
    for number in range(3):
        Path(f"phone/IMG_{number}.HEIC").write_bytes(b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + bytes(100))
    assert main(["learn", "model", "--label", "cat", "phone"]) == 2
    said = capsys.readouterr().err
    assert "none of the 3 images can be used" in said and "it is HEIC; to read it, pip install 'amgc[heic]'" in said
    assert not Path("model").exists()


def test_photos_in_avif_are_learned():
    if not _avif():
        pytest.skip("this Pillow does not read AVIF")
    Path("phone").mkdir()
    for number, pixels in enumerate(draw("cat", 4, side=32)):
        Image.fromarray(pixels).save(f"phone/{number}.avif")
    assert main(["learn", "model", "--label", "cat", "phone", *QUICK]) == 0
    assert Model.open("model").classes == {"cat": 4}


def _avif() -> bool:
    from PIL import features

    return bool(features.check("avif"))


def test_photos_in_heic_are_learned_with_the_extra():
    heif = pytest.importorskip("pillow_heif", reason="needs the extra `heic`")
    Path("phone").mkdir()
    for number, pixels in enumerate(draw("cat", 4, side=32)):
        heif.from_pillow(Image.fromarray(pixels)).save(f"phone/{number}.HEIC")
    assert main(["learn", "model", "--label", "cat", "phone", *QUICK]) == 0
    assert Model.open("model").classes == {"cat": 4}
