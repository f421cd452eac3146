"""A model of vectors over HTTP: JSON instead of images; and a model whose features are a function."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from serving import BASE, parts, png, server, taught

pytest.importorskip("fastapi", reason="needs the extra `serve`")
from fastapi.testclient import TestClient

from amgc.model import Model
from amgc.serve.app import create_app
from amgc.serve.batching import VECTORS

ZIP = {"Content-Type": "application/zip"}


def drawn(kind: str, count: int = 12, seed: int = 0) -> np.ndarray:
    centre = np.random.default_rng(sum(kind.encode())).normal(0, 3, 4)
    return centre + np.random.default_rng([seed, *kind.encode()]).normal(size=(count, 4))


@pytest.fixture
def model(tmp_path) -> Model:
    model = Model.create(tmp_path / "model", "vectors")
    model.learn_all({kind: drawn(kind) for kind in ("ant", "bee")})
    return model


@pytest.fixture
def client(model):
    with TestClient(create_app(model), base_url=BASE) as client:
        yield client


def test_vectors_are_learned_and_asked_as_json(client, model):
    answer = client.post("/api/learn", json={"label": "猫", "vectors": drawn("猫").tolist()})
    assert answer.status_code == 200 and answer.json()["pictures"] == 12 and not answer.json()["known_before"]
    new = np.concatenate([drawn(kind, 3, seed=1) for kind in ("ant", "bee", "猫")])
    answers = client.post(
        "/api/predict", params={"top": 3, "reject": 0.01}, json={"vectors": [*new.tolist(), [90, 90, 0, 0]]}
    ).json()
    expected = [one.to_json() for one in model.predict(np.vstack([new, [90, 90, 0, 0]]), top=3, reject=0.01)]
    assert answers == {"answers": expected} and answers["answers"][-1]["answer"] == "unknown"
    about = client.get("/api/classes").json()
    assert about["input"] == {"kind": "vector", "numbers": 4} and about["quality"]["accuracy"] > 0.5
    assert client.post("/api/undo").json()["undone"] == "learning “猫”" and set(model.classes) == {"ant", "bee"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"vectors": []}, "vectors: List should have at least 1 item"),
        ({"vectors": [[]]}, "vectors: List should have at least 1 item"),
        ({"vectors": [["1", 2, 3, 4]]}, "valid number"),
        ({"vectors": [[1, 2, 3]]}, "vector 1 cannot be used: it has 3 numbers, and the model takes 4."),
        ({"vectors": [[1, 2, 3, 4], [1]]}, "do not have the same number of features"),
        ({"images": [[1]]}, "vectors: Field required"),
        ({"vectors": [[1, 2, 3, 4]], "other": 1}, "other: Extra inputs are not permitted"),
    ],
)
def test_other_requests_are_refused_with_the_reason(client, body, reason):
    answer = client.post("/api/predict", json=body)
    assert answer.status_code == 422 and reason in answer.json()["detail"]


def test_pictures_json_that_is_none_and_vectors_without_a_name_are_refused(client, model, tmp_path):
    answer = client.post("/api/predict", files=parts(png("sea", 1)))
    assert answer.status_code == 415 and "takes vectors: send them as application/json" in answer.json()["detail"]
    broken = client.post("/api/predict", content=b'{"vectors": [[1, 2', headers={"Content-Type": "application/json"})
    huge = client.post("/api/predict", content=b'{"vectors": [[1e999, 2, 3, 4]]}', headers={"Content-Type": "application/json"})
    unnamed = client.post("/api/learn", json={"label": " ", "vectors": [[1, 2, 3, 4]]})
    assert [one.status_code for one in (broken, huge, unnamed)] == [422, 422, 422]
    with TestClient(create_app(taught(tmp_path / "images")), base_url=BASE) as images:
        assert images.post("/api/predict", json={"vectors": [[1, 2]]}).status_code == 415
        assert images.get("/api/classes").json()["input"] == {"kind": "image", "numbers": None}
        answer = images.post("/api/open", content=model.packed(), headers=ZIP)
        assert answer.status_code == 422 and "a model of vectors, and this server takes images" in answer.json()["detail"]
    assert client.post("/api/open", content=model.packed(), headers=ZIP).status_code == 200


def test_vectors_that_wait_have_a_limit(model):
    app = create_app(model)
    with TestClient(app, base_url=BASE) as client:
        app.state.batcher.waiting = VECTORS  # as if others' vectors waited
        refused = client.post("/api/predict", json={"vectors": drawn("ant", 2).tolist()})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "2"
        assert "100000 vectors are waiting" in refused.json()["detail"]
        app.state.batcher.waiting = 0
        assert client.post("/api/predict", json={"vectors": drawn("ant", 2).tolist()}).status_code == 200
        assert app.state.batcher.waiting == 0


def test_the_description_says_that_requests_are_vectors(client):
    operations = client.get("/openapi.json").json()["paths"]
    for path, wanted in (("/api/predict", {"vectors"}), ("/api/learn", {"vectors", "label"})):
        (kind,) = operations[path]["post"]["requestBody"]["content"].items()
        assert kind[0] == "application/json" and set(kind[1]["schema"]["required"]) == wanted


def test_the_example_runs_with_the_onnx_file_of_vectors(client, model, tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(client.get("/api/model.onnx").content)
    (tmp_path / "classify.py").write_bytes(client.get("/classify.py").content)
    np.save(tmp_path / "new.npy", drawn("bee", 2, seed=3))
    output = subprocess.run(
        [sys.executable, "classify.py", "new.npy"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    expected = model.predict(drawn("bee", 2, seed=3))
    assert output.splitlines() == [f"{row}: {one.label}, {one.probabilities[0]:.0%}" for row, one in enumerate(expected)]


def test_a_model_whose_features_are_a_function_takes_pictures(tmp_path):
    def colours(images: list) -> np.ndarray:
        return np.array([np.asarray(image).reshape(-1, 3).mean(0) for image in images])

    model = Model.create(tmp_path / "model", colours)
    with TestClient(create_app(model), base_url=BASE) as client:
        for kind in ("sea", "grass"):
            sent = parts(*(png(kind, seed) for seed in range(6)))
            assert client.post("/api/learn", files=sent, data={"label": kind}).status_code == 200
        zipped = client.get("/api/model.zip").content
        assert client.post("/api/open", content=zipped, headers=ZIP).status_code == 200
        answer = client.post("/api/predict", files=parts(png("sea", 9)))
        assert answer.json()["answers"][0]["answer"] == "sea"
    with TestClient(create_app(taught(tmp_path / "other")), base_url=BASE) as client:
        answer = client.post("/api/open", content=zipped, headers=ZIP)
        assert answer.status_code == 422 and "a Python function, which this server does not have" in answer.json()["detail"]


@pytest.mark.slow
def test_the_page_says_that_the_model_takes_vectors(tab, model, tmp_path):
    with server(model.path, home=tmp_path) as served:
        tab.visit(served.address)
        tab.until("document.getElementById('known-sum').innerText.includes('2 classes, learned from 24 vectors')")
        assert "takes vectors of 4 numbers, not pictures" in tab.text("takes-vectors")
        parts = "[...document.querySelectorAll('.zone, #ask, #add, input:not(#open-file)')]"
        assert tab.evaluate(f"{parts}.filter((one) => one.checkVisibility()).length") == 0
        tab.rename("ant", "aunt")
        tab.until("[...document.querySelectorAll('.card')].some(({ card }) => card.said.innerText.includes('Renamed'))")
        for width in (360, 1400):
            tab.resize(width)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.screenshot(tmp_path / "page.png")
        assert not tab.complaints
