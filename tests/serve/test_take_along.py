"""Undo, names, the expected accuracy, and models that are downloaded and opened again."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from serving import BASE, parts, png, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
from fastapi.testclient import TestClient

from amgc.model import Model
from amgc.serve.app import create_app
from amgc.serve.guard import Limits, Settings

ZIP = {"Content-Type": "application/zip"}


def learn(client: TestClient, kind: str, seeds: range, label: str | None = None, lesson: str = "") -> None:
    sent = parts(*(png(kind, seed) for seed in seeds))
    answer = client.post("/api/learn", params={"lesson": lesson}, files=sent, data={"label": label or kind})
    assert answer.status_code == 200, answer.text


def about(client: TestClient) -> dict:
    return client.get("/api/classes").json()


def known(client: TestClient) -> dict[str, int]:
    return {one["label"]: one["pictures"] for one in about(client)["classes"]}


def statistics(model: Model) -> list[bytes]:
    _, tensors = Model.open(model.path).state.classifier.packed()
    return [tensors[name].numpy().tobytes() for name in sorted(tensors)]


def zipped(entries: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


# ---- undo and names --------------------------------------------------------------------------------------------------------


def test_undo_takes_a_lesson_of_several_requests_back_to_the_bit(client, model):
    before = statistics(model)
    learn(client, "brick", range(3), lesson="a")
    learn(client, "brick", range(3, 6), lesson="a")
    learn(client, "grass", range(20, 23), lesson="a")
    assert known(client) == {"grass": 15, "sea": 12, "brick": 6} and about(client)["undo"] == "learning several classes"
    undone = client.post("/api/undo").json()
    assert undone == {"undone": "learning several classes", "classes": 2}
    assert statistics(model) == before and known(client) == {"grass": 12, "sea": 12}
    assert about(client)["undo"] is None and client.post("/api/undo").status_code == 409


def test_undo_takes_only_the_last_lesson_back(client):
    learn(client, "brick", range(3), lesson="a")
    learn(client, "brick", range(3, 5), lesson="b")
    assert client.post("/api/undo").json()["undone"] == "learning “brick”"
    assert known(client)["brick"] == 3


def test_forgetting_cannot_be_undone(client):
    learn(client, "brick", range(3))
    client.post("/api/forget", json={"label": "sea"})
    assert about(client)["undo"] is None and client.post("/api/undo").status_code == 409
    assert known(client) == {"grass": 12, "brick": 3}


def test_undo_does_not_bring_back_what_another_process_has_just_forgotten(client, model):
    learn(client, "brick", range(3))
    Model.open(model.path).forget("sea")
    assert client.post("/api/undo").status_code == 409
    assert known(client) == {"grass": 12, "brick": 3}


def test_the_first_lesson_is_undone_to_a_model_without_classes(tmp_path):
    model = Model.create(tmp_path / "model", filters=8)
    with TestClient(create_app(model), base_url=BASE) as client:
        learn(client, "sea", range(4))
        client.post("/api/undo")
        assert known(client) == {} == Model.open(model.path).classes
        learn(client, "grass", range(4))
        assert known(client) == {"grass": 4}


def test_a_change_of_another_process_is_what_is_undone_after_it(client, model):
    learn(client, "brick", range(3))
    Model.open(model.path).rename("sea", "ocean")
    client.app.state.updates._check_folder()
    assert known(client) == {"grass": 12, "ocean": 12, "brick": 3} and about(client)["undo"] == "the last change"
    assert client.post("/api/undo").status_code == 200
    assert known(client) == {"grass": 12, "sea": 12, "brick": 3}


def test_a_class_is_renamed_and_joined(client):
    assert client.post("/api/rename", json={"label": "sea", "to": "木の葉"}).json() == {"label": "木の葉"}
    assert known(client) == {"grass": 12, "木の葉": 12}
    refused = client.post("/api/rename", json={"label": "木の葉", "to": "grass"})
    assert refused.status_code == 409 and "already" in refused.json()["detail"]
    assert client.post("/api/rename", json={"label": "sea", "to": "x"}).status_code == 404
    assert client.post("/api/rename", json={"label": "木の葉", "to": " "}).status_code == 422
    assert client.post("/api/rename", json={"label": "木の葉", "to": "grass", "join": True}).status_code == 200
    assert known(client) == {"grass": 24}
    client.post("/api/undo")
    assert known(client) == {"grass": 12, "木の葉": 12}


def test_the_expected_accuracy_follows_the_lessons(client, model):
    quality = about(client)["quality"]
    assert quality["accuracy"] == pytest.approx(model.expected_accuracy().accuracy)
    assert quality["confused"] == ["grass", "sea"]
    learn(client, "brick", range(3))
    assert about(client)["quality"] is None and about(client)["enough"] == 10  # three pictures are too few to say
    client.post("/api/forget", json={"label": "brick"})
    assert about(client)["quality"] is not None


# ---- files -----------------------------------------------------------------------------------------------------------------


def test_a_downloaded_model_is_opened_again_and_answers_the_same(client, model, tmp_path):
    asked = [png("sea", 100), png("grass", 101)]
    expected = client.post("/api/predict", files=parts(*asked)).json()
    content = client.get("/api/model.zip").content
    client.post("/api/forget", json={"label": "sea"})
    assert client.post("/api/open", content=content, headers=ZIP).json() == {"classes": 2}
    assert client.post("/api/predict", files=parts(*asked)).json() == expected
    assert Model.unpacked(content, tmp_path / "elsewhere").classes == model.classes
    learn(client, "brick", range(3))
    assert client.post("/api/undo").status_code == 200 and known(client) == {"grass": 12, "sea": 12}


def test_opening_a_model_can_be_undone(client, tmp_path):
    other = Model.create(tmp_path / "other", filters=4)
    other.learn([png("brick", seed) for seed in range(4)], "brick")
    assert client.post("/api/open", content=other.packed(), headers=ZIP).json() == {"classes": 1}
    assert known(client) == {"brick": 4}
    client.post("/api/undo")
    assert known(client) == {"grass": 12, "sea": 12}


def test_no_earlier_state_is_in_a_zip_file(model):
    model.learn([png("brick", seed) for seed in range(3)], "secret")
    model.rename("secret", "brick")
    assert model.info().can_undo
    with zipfile.ZipFile(io.BytesIO(model.packed())) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        named = {entry["name"] for entry in manifest["files"].values()}
        assert not manifest["undo"] and set(archive.namelist()) == {"manifest.json", *named}
        assert all(b"secret" not in archive.read(name) for name in archive.namelist())


def test_a_zip_file_names_no_place_of_this_machine(tmp_path):
    model = taught(tmp_path / "model")
    copy = Model.create(tmp_path / "copy", features=tmp_path / "model")
    with zipfile.ZipFile(io.BytesIO(copy.packed())) as archive:
        assert str(tmp_path) not in archive.read("manifest.json").decode()
        assert json.loads(archive.read("manifest.json"))["features"]["given"] == "model"
    assert model.path.exists()


def hostile(model: Model) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(model.packed())) as archive:
        own = {name: archive.read(name) for name in archive.namelist()}
    damaged = {name: content[:-1] + b"x" if name.endswith(".safetensors") else content for name, content in own.items()}
    listed = own["manifest.json"].decode()
    first = next(name for name in own if name.startswith("classes"))
    return {
        "outside": zipped(own | {"../outside.txt": b"x"}),
        "absolute": zipped(own | {"/tmp/outside.txt": b"x"}),
        "inside": zipped(own | {"folder/classes-000001.safetensors": b"x"}),
        "windows": zipped(own | {"..\\outside.txt": b"x"}),
        "hidden": zipped(own | {".x.partial": b"x"}),
        "other": zipped(own | {"run.py": b"x"}),
        "named": zipped({"manifest.json": listed.replace(first, "../../etc/passwd").encode()}),
        "bomb": zipped(own | {"classes-000009.safetensors": bytes(50_000_000)}),
        "damaged": zipped(damaged),
        "missing": zipped({"manifest.json": own["manifest.json"]}),
        "empty": zipped({}),
        "text": b"no zip file",
        "cut": model.packed()[:-30],
        "no manifest": zipped({"manifest.json": b"{}"}),
    }


KINDS = ["outside", "absolute", "inside", "windows", "hidden", "other", "named", "bomb", "damaged", "missing", "empty"]
KINDS += ["text", "cut", "no manifest"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_zip_file_that_is_not_a_model_is_refused_and_nothing_is_written(model, kind, tmp_path):
    with TestClient(create_app(model, Settings(limits=Limits(upload_mb=4))), base_url=BASE) as client:
        before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
        refused = client.post("/api/open", content=hostile(model)[kind], headers=ZIP)
        assert refused.status_code == 422, refused.text
        assert refused.json()["detail"].startswith("The file cannot be opened as a model: ")
        assert "/tmp" not in refused.json()["detail"].replace("'/tmp/outside.txt'", "")
        assert known(client) == {"grass": 12, "sea": 12}
        assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_another_type_of_file_is_not_opened(client):
    assert client.post("/api/open", content=b"PK", headers={"Content-Type": "text/plain"}).status_code == 415


def test_the_example_runs_with_the_onnx_file(client, model, tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(client.get("/api/model.onnx").content)
    (tmp_path / "classify.py").write_text(client.get("/classify.py").text, encoding="utf-8")
    (tmp_path / "new.png").write_bytes(png("sea", 100))
    command = [sys.executable, "classify.py", "new.png"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    (prediction,) = model.predict([png("sea", 100)])
    assert said == f"new.png: sea, {np.float32(prediction.probabilities[0]):.0%}\n"


def test_the_documentation_names_every_operation_and_needs_nothing_else(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html") and "<script" not in page.text
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in page.text
    assert "http://" not in page.text and "https://" not in page.text
    assert "the two classes that are confused most" in page.text  # descriptions of fields, from the schema
