"""Pipes, devices, links and wrong contents in the places of files."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from model.drawing import answers, draw
from PIL import Image

from amgc.cli.main import main
from amgc.data import CorruptImageError, load
from amgc.engine.run import check_data
from amgc.files import FileFormatError
from amgc.model import Model
from amgc.model.manifest import Manifest
from amgc.runs.folder import RunError, RunFolder


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End a test that waits for a pipe without a writer, or for an endless device."""
    before = signal.signal(signal.SIGALRM, _fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _fail(*_: object) -> None:
    pytest.fail("it hangs")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of six images, and among those of one class everything that is not a file."""
    for kind in ("cat", "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number, pixels in enumerate(draw(kind, 6)):
            Image.fromarray(pixels).save(tmp_path / "photos" / kind / f"{number}.png")
    os.mkfifo(tmp_path / "photos/cat/pipe.jpg")
    for name, target in (("zero", "/dev/zero"), ("gone", "nowhere"), ("itself", "itself.jpg")):
        os.symlink(target, tmp_path / f"photos/cat/{name}.jpg")
    with open(tmp_path / "photos/cat/huge.jpg", "wb") as file:
        file.truncate(2 << 30)  # takes no space
    return tmp_path / "photos"


def test_learn_and_run_name_the_same_files_that_cannot_be_read(photos, monkeypatch, tmp_path):
    monkeypatch.setenv("AMGC_CACHE", str(tmp_path / "cache"))
    learned = Model.create(tmp_path / "new", filters=2).learn_all({"cat": photos / "cat"}, on_corrupt="skip")
    expected = {"pipe.jpg", "zero.jpg", "gone.jpg", "itself.jpg", "huge.jpg"}
    assert {Path(name).name for name, _ in learned.skipped} == expected and learned.images == 6
    for cache in (True, True, False):  # written, read, and none
        data = load(f"folder:{photos}", on_corrupt="skip", size=8, cache=cache)
        assert len(data.train) + len(data.test) == 12
        assert {Path(str(name)).name for name in data.skipped} == expected


@pytest.mark.parametrize("name", ["pipe.jpg", "zero.jpg", "gone.jpg", "itself.jpg", "huge.jpg"])
def test_one_of_them_stops_a_run_that_skips_none_and_is_named(photos, name, tmp_path, monkeypatch):
    monkeypatch.setenv("AMGC_CACHE", str(tmp_path / "cache"))
    for other in ("pipe.jpg", "zero.jpg", "gone.jpg", "itself.jpg", "huge.jpg"):
        if other != name:
            (photos / "cat" / other).unlink()
    with pytest.raises(CorruptImageError, match=name):
        load(f"folder:{photos}", size=8)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("file", ["manifest.json", "extractor", "classes"])
def test_a_pipe_or_a_device_in_the_place_of_a_models_file_is_refused(model, file, kind, capsys):
    (path,) = model.glob(f"{file}*")
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        os.symlink("/dev/zero", path)
    commands = [["info", "model"], ["forget", "model", "cat"]]
    if file != "classes":  # undo does not need the classes that it replaces
        commands.append(["undo", "model"])
    for command in commands:
        assert main(command) in (1, 2), command
        assert "amgc: error: " in capsys.readouterr().err


def every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Call the commands that read a run. Each succeeds, or its error is one message."""
    for command in (["show", "run"], ["report", "run"], ["resume", "run", "--quiet"], ["model", "run", "--out", "new"]):
        code, told = main(command), capsys.readouterr().err
        assert code == 0 or (code in (1, 2) and told.count("amgc: error: ") == 1), f"{command}: {told}"
        shutil.rmtree("new", ignore_errors=True)


@pytest.mark.parametrize("kind", ["pipe", pytest.param("device", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "file", ["run.json", "metrics.jsonl", "plan.json", "observed/task-1.json", "checkpoint.safetensors", "compare.json"]
)
def test_a_pipe_or_a_device_in_the_place_of_a_runs_file_does_not_hang(run, file, kind, capsys):
    path = run / file
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        os.symlink("/dev/zero", path)
    every_command(capsys)


def edited(model: Path, **new: object) -> None:
    """Write other values into a manifest, with a checksum that is right."""
    content = json.loads((model / "manifest.json").read_text())
    content = {name: value for name, value in content.items() if name != "checksum"}
    for name, value in new.items():
        *above, last = name.split(".")
        place = content
        for part in above:
            place = place[part]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value
    (model / "manifest.json").write_text(json.dumps(content))


WRONG = {
    "made": [3, {}, []],
    "made.seed": ["0", None, 1.5],
    "made.covariance": [5],
    "made.classifier": ["full", {"covariance": "round"}, {"covarianc": "full"}, {"rank": "x"}],
    "features": [None, [1]],
    "features.dim": ["12", -1, 1e400, 10**30],
    "features.options": [[], "x"],
    "image": [[], "x", 3],
    "image.size": ["64", -1, 0, 1.5, True],
    "image.scale": ["64", -5, 10**12, 4],
    "classes": [[], "cat", {"cat": "x"}, {"cat": -1, "dog": 1}],
    "files": [[], {"extractor": 3}, {"extractor": {"name": "x"}}, {}],
    "files.extractor": [KeyError, {"name": "/etc/passwd", "sha256": "", "bytes": 1}],
    "files.classes": [KeyError],
    "generation": ["1", -3, None],
    "created": [1],
    "undo": [[], "x", 1],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_in_a_manifest_is_an_error_that_names_the_field(model, field, capsys):
    whole = (model / "manifest.json").read_bytes()
    for value in WRONG[field]:
        edited(model, **{field: value})
        with pytest.raises(FileFormatError, match=field if value != {} else "manifest"):
            Model.open(model)
        assert main(["learn", "model", "--label", "cat", "x.png"]) in (1, 2)
        capsys.readouterr()
        (model / "manifest.json").write_bytes(whole)


def test_without_the_extractors_entry_nothing_is_learned(model, capsys):
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    edited(model, **{"files.extractor": KeyError})
    changed = (model / "manifest.json").read_bytes()
    (Path("more") / "owl").mkdir(parents=True)
    for number, pixels in enumerate(draw("owl", 4)):
        Image.fromarray(pixels).save(f"more/owl/{number}.png")
    assert main(["learn", "model", "more"]) == 1 and "files.extractor" in capsys.readouterr().err
    after = {path.name: path.read_bytes() for path in model.iterdir() if path.name != ".lock"}
    before.pop(".lock", None)
    assert after == before | {"manifest.json": changed}


def test_any_other_change_of_a_manifest_is_found_by_its_checksum(model):
    path = model / "manifest.json"
    content = json.loads(path.read_text())
    content["image"]["scale"] = 2 * content["image"]["size"]
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="checksum"):
        Model.open(model)


def test_a_manifest_of_an_earlier_version_without_checksum_is_read(model):
    before = answers(Model.open(model))
    edited(model)
    assert "checksum" not in json.loads((model / "manifest.json").read_text())
    found = Model.open(model)
    assert answers(found) == before
    assert "checksum" in json.loads(json.dumps(found.rename("cat", "lynx").state.manifest.to_json()))


def test_a_manifest_survives_json(model):
    manifest = Model.open(model).state.manifest
    assert Manifest.from_json(Path("x"), json.loads(json.dumps(manifest.to_json()))) == manifest


DEEP = "[" * 100_000
RUN_FILES = ["run.json", "plan.json", "metrics.jsonl", "observed/task-1.json", "compare.json"]


FOREIGN = [DEEP, '{"version": 1, "a": ' + DEEP, "[]", "3", '"x"', "null", '{"version": 1}', b"\xed\xa0\x80"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content"),
    [*((RUN_FILES[0], content) for content in FOREIGN), *itertools.product(RUN_FILES[1:], (DEEP, "[]", b"\xed\xa0\x80"))],
)
def test_foreign_contents_of_a_runs_file_are_one_message(run, file, content, capsys):
    (run / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    every_command(capsys)


@pytest.mark.parametrize("content", [DEEP, '{"kind": ' + DEEP, "[]", "3", "null", "{}"])
def test_foreign_contents_of_a_manifest_are_one_message(model, content, capsys):
    (model / "manifest.json").write_text(content)
    assert main(["info", "model"]) == 1 and "manifest.json" in capsys.readouterr().err


PLAN = {
    "version": ["1", None, 9],
    "runs": [None, [], 3, {}, {"x": 3}, {"x": None}],
    "paper": [3, []],
    "giver": [3],
    "takers": [3, [1]],
}


@pytest.mark.parametrize("field", PLAN)
def test_a_wrong_value_in_a_plan_is_an_error_that_names_the_field(run, field, capsys):
    content = json.loads((run / "plan.json").read_text())
    for value in PLAN[field]:
        (run / "plan.json").write_text(json.dumps(content | {field: value}))
        assert main(["resume", "run"]) in (1, 2)
        error = capsys.readouterr().err
        assert "plan.json" in error and field in error, error


COMPARE = [{"version": 1, "commands": []}, {"version": 1, "commands": 3}, {"version": 1, "commands": [3]}]
COMPARE += [{"version": 1, "commands": [[{}]]}, {"commands": []}, [], {"version": "x", "commands": [["compare"]]}]


@pytest.mark.parametrize("content", COMPARE)
def test_a_wrong_compare_json_is_one_message(run, content, capsys):
    (run / "compare.json").write_text(json.dumps(content))
    assert main(["resume", "run"]) in (1, 2)
    assert "compare.json" in capsys.readouterr().err


@pytest.mark.parametrize("value", [-1, True, 1.5, "x", None, {}])
def test_a_wrong_list_of_classes_in_a_run_is_one_message(run, value, capsys):
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(content | {"class_names": value}))
    assert main(["resume", "run"]) in (1, 2)
    assert "run.json" in capsys.readouterr().err
    (run / "run.json").write_text(json.dumps(content | {"class_counts": value}))
    stream = SimpleNamespace(class_names=content["class_names"], class_counts=tuple(content["class_counts"].values()))
    with pytest.raises(RunError, match=r"run\.json.*class_counts"):
        check_data(SimpleNamespace(folder=RunFolder(run), stream=stream))


def test_options_of_another_extractor_in_a_run_are_one_message(run, capsys):
    content = json.loads((run / "run.json").read_text())
    content["config"]["features"] = "convnet"
    (run / "run.json").write_text(json.dumps(content))
    assert main(["model", "run", "--out", "made"]) == 1
    assert "config.features: convnet has no option 'filters'" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["1e400", "-1e400", "NaN", '"x"', "[1]", "null", "1.5", "1" * 5000])
def test_a_seed_that_is_none_is_one_message(run, value, capsys):
    for name in ("run.json", "plan.json"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace('"seed": 1993', f'"seed": {value}'))
        assert f'"seed": {value}' in (run / name).read_text()
    assert main(["resume", "run"]) in (1, 2)
    error = capsys.readouterr().err
    assert "run.json" in error or "plan.json" in error
